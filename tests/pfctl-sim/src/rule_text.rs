//! Rules as `pfctl -s rules` and `pfctl -s nat` print them.

use std::fmt;

use crate::rule::{
    Action, BlockPolicy, Direction, Host, Kind, Negated, Peer, Ports, Protocol, Rule, State, Translation,
};

/// The service names that pfctl prints for ports, as far as macOS' /etc/services is of use here.
const SERVICES: &[(u16, &str)] =
    &[(22, "ssh"), (53, "domain"), (67, "bootps"), (68, "bootpc"), (80, "http"), (443, "https")];

/// The port of a service's name.
pub(crate) fn service(name: &str) -> Option<u16> {
    SERVICES.iter().find(|(_, known)| *known == name).map(|(port, _)| *port)
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Icmp => "icmp",
            Self::Icmp6 => "ipv6-icmp",
        })
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::In => "in",
            Self::Out => "out",
        })
    }
}

impl<T: fmt::Display> fmt::Display for Negated<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.not {
            f.write_str("! ")?;
        }
        self.value.fmt(f)
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("any"),
            Self::Net(net) => net.fmt(f),
            Self::Table(name) => write!(f, "<{name}>"),
            Self::Interface(name) => write!(f, "({name})"),
        }
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(port) => match SERVICES.iter().find(|(known, _)| known == port) {
                Some((_, name)) => write!(f, " port = {name}"),
                None => write!(f, " port = {port}"),
            },
            Self::Range(first, last) => write!(f, " port {first}:{last}"),
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.host.fmt(f)?;
        self.port.map_or(Ok(()), |port| port.fmt(f))
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let anchor = match self.kind {
            Kind::Scrub => "scrub-anchor",
            Kind::Nat => "nat-anchor",
            Kind::Rdr => "rdr-anchor",
            Kind::Dummynet => "dummynet-anchor",
            Kind::Filter => "anchor",
        };
        let translated = if self.kind == Kind::Rdr { "rdr" } else { "nat" };
        match &self.action {
            Action::Pass(_) => f.write_str("pass")?,
            Action::Block(BlockPolicy::Drop) => f.write_str("block drop")?,
            Action::Block(BlockPolicy::Return) => f.write_str("block return")?,
            Action::Scrub => f.write_str("scrub")?,
            Action::Translate(Some(_)) => f.write_str(translated)?,
            Action::Translate(None) => write!(f, "no {translated}")?,
            Action::Anchor(name) => write!(f, "{anchor} \"{name}\"")?,
        }
        if let Some(direction) = self.direction {
            write!(f, " {direction}")?;
        }
        if self.quick {
            f.write_str(" quick")?;
        }
        if let Some(interface) = &self.interface {
            write!(f, " on {interface}")?;
        }
        if let Some(family) = self.family {
            write!(f, " {family}")?;
        }
        if let Some(protocol) = self.protocol {
            write!(f, " proto {protocol}")?;
        }
        if (&self.source, &self.destination) == (&Peer::any(), &Peer::any()) {
            f.write_str(" all")?;
        } else {
            write!(f, " from {} to {}", self.source, self.destination)?;
        }
        match &self.action {
            Action::Pass(State::No) => f.write_str(" no state"),
            Action::Pass(_) if self.protocol.is_some_and(|protocol| protocol != Protocol::Tcp) => {
                f.write_str(" keep state")
            }
            Action::Pass(State::KeepFromStart) => f.write_str(" flags S/SA keep state"),
            Action::Pass(State::KeepFromAny) => f.write_str(" flags any keep state"),
            Action::Scrub => f.write_str(" fragment reassemble"),
            Action::Translate(Some(Translation::Address(address))) => write!(f, " -> {address}"),
            Action::Translate(Some(Translation::Interface(name))) => write!(f, " -> ({name})"),
            _ => Ok(()),
        }
    }
}
