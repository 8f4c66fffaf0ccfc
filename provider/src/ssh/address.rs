//! Where a Mac is reached: `user@host`, `user@host:port`, `user@[IPv6]:port`.

use std::fmt;
use std::str::FromStr;

/// The port of SSH.
const PORT: u16 = 22;

/// A user on a Mac that SSH reaches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SshAddress {
    /// The user.
    pub(crate) user: String,
    /// The host's name or address.
    pub(crate) host: String,
    /// The port.
    pub(crate) port: u16,
}

/// A text that is no address for SSH.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no address for SSH; it is USER@HOST or USER@HOST:PORT")]
pub(crate) struct BadSshAddress(String);

impl FromStr for SshAddress {
    type Err = BadSshAddress;

    fn from_str(text: &str) -> Result<Self, BadSshAddress> {
        parse(text).ok_or_else(|| BadSshAddress(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<SshAddress> {
    let (user, place) = text.split_once('@')?;
    let (host, port) = match place.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, "")) => (host, None),
        Some((host, port)) => (host, Some(port.strip_prefix(':')?)),
        None => match place.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (place, None),
        },
    };
    let port = port.map_or(Some(PORT), |port| port.parse().ok())?;
    let is_user = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let is_host = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | ':');
    let is_right = !user.is_empty()
        && !user.starts_with('-')
        && user.chars().all(is_user)
        && !host.is_empty()
        && host.chars().all(is_host);
    is_right.then(|| SshAddress { user: user.to_owned(), host: host.to_owned(), port })
}

impl fmt::Display for SshAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (open, close) = if self.host.contains(':') { ("[", "]") } else { ("", "") };
        write!(f, "{}@{open}{}{close}", self.user, self.host)?;
        if self.port == PORT { Ok(()) } else { write!(f, ":{}", self.port) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_and_written() {
        for text in ["m1@mac-1", "m1@10.0.0.1:2222", "a.b_c-d@[fe80::1]", "m1@[::1]:2200"] {
            assert_eq!(text.parse::<SshAddress>().unwrap().to_string(), text);
        }
        assert_eq!("m1@mac:22".parse::<SshAddress>().unwrap().to_string(), "m1@mac");
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "mac",
            "@mac",
            "m1@",
            "m1@mac:",
            "m1@mac:x",
            "m1@fe80::1",
            "-o@mac",
            "m 1@mac",
            "m1@a b",
            "m1@[::1]2",
        ] {
            assert!(text.parse::<SshAddress>().is_err(), "{text}");
        }
    }
}
