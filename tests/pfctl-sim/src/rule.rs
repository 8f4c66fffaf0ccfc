//! The rules of a ruleset, as the kernel has them: lists, macros and `self` are expanded.

use serde::{Deserialize, Serialize};

use crate::address::{Family, Net};

/// Which way a packet goes, as the Mac sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Direction {
    /// The Mac receives it.
    In,
    /// The Mac sends it.
    Out,
}

/// A transport protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// ICMP of IPv4.
    Icmp,
    /// ICMP of IPv6.
    Icmp6,
}

/// The part of a ruleset in which a rule stands. The order is the one that pfctl asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Section {
    Options,
    Scrub,
    Translation,
    Dummynet,
    Filter,
}

/// What an anchor rule evaluates, or what a translation rule translates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    Scrub,
    Nat,
    Rdr,
    Dummynet,
    Filter,
}

impl Kind {
    pub(crate) fn section(self) -> Section {
        match self {
            Self::Scrub => Section::Scrub,
            Self::Nat | Self::Rdr => Section::Translation,
            Self::Dummynet => Section::Dummynet,
            Self::Filter => Section::Filter,
        }
    }
}

/// How a sender learns that its packet was blocked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum BlockPolicy {
    Drop,
    Return,
}

/// Whether a rule remembers a connection that it lets pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum State {
    /// It matches the packet that opens a TCP connection, and remembers the connection: the default.
    KeepFromStart,
    /// It matches any packet, and remembers the connection: `flags any`.
    KeepFromAny,
    /// It matches any packet, and remembers nothing.
    No,
}

/// What a rule does with a packet that it matches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Action {
    Pass(State),
    Block(BlockPolicy),
    Scrub,
    /// Translates to an address; `None` for `no nat` and `no rdr`.
    Translate(Option<Translation>),
    /// Evaluates the rules of other rulesets.
    Anchor(String),
}

/// The right side of `->`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Translation {
    Address(Net),
    /// The first address that an interface has at the moment.
    Interface(String),
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Rule {
    pub(crate) kind: Kind,
    pub(crate) action: Action,
    pub(crate) direction: Option<Direction>,
    pub(crate) quick: bool,
    pub(crate) interface: Option<Negated<String>>,
    pub(crate) family: Option<Family>,
    pub(crate) protocol: Option<Protocol>,
    pub(crate) source: Peer,
    pub(crate) destination: Peer,
}

/// One side of a packet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Peer {
    pub(crate) host: Negated<Host>,
    pub(crate) port: Option<Ports>,
}

impl Peer {
    pub(crate) fn any() -> Self {
        Self { host: Negated { not: false, value: Host::Any }, port: None }
    }
}

/// A value that may have a `!` before it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Negated<T> {
    pub(crate) not: bool,
    pub(crate) value: T,
}

/// Which addresses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Host {
    Any,
    Net(Net),
    Table(String),
    /// `(en0)`: the addresses that an interface has at the moment.
    Interface(String),
}

/// Which ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Ports {
    One(u16),
    /// `a:b`, both included.
    Range(u16, u16),
}

impl Ports {
    pub(crate) fn contains(self, port: u16) -> bool {
        match self {
            Self::One(one) => port == one,
            Self::Range(first, last) => (first..=last).contains(&port),
        }
    }
}
