//! Names of hosts, zones and machines.

use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

/// The id of a host: Scaleway's, or the name of a Mac in a list.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct HostId(String);

/// A zone of Scaleway, or what a list of Macs calls one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Zone(String);

/// A text that cannot stand in the path of a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is neither an id nor a zone; it may have letters, digits, `-`, `_` and `.`")]
pub(crate) struct BadName(String);

fn plain(text: &str) -> Result<String, BadName> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let is_right = !text.is_empty() && !text.starts_with('.') && text.chars().all(is_plain);
    if is_right { Ok(text.to_owned()) } else { Err(BadName(text.to_owned())) }
}

macro_rules! plain_name {
    ($name:ident) => {
        impl $name {
            /// Refuses what could change the meaning of a path.
            pub(crate) fn parse(text: &str) -> Result<Self, BadName> {
                plain(text).map(Self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                Self::parse(&String::deserialize(deserializer)?).map_err(D::Error::custom)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

plain_name!(HostId);
plain_name!(Zone);

impl HostId {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// A machine. Its host bears its name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct MachineRef {
    /// Its namespace.
    pub(crate) namespace: String,
    /// Its name.
    pub(crate) name: String,
}

impl fmt::Display for MachineRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_zones_cannot_change_a_path() {
        for text in ["fr-par-1", "7f6b-1", "mac.office_2"] {
            assert_eq!(HostId::parse(text).unwrap().as_str(), text);
        }
        for text in ["", "a/b", "..", ".", "a?b", "a b", "a%2f", "é"] {
            assert!(Zone::parse(text).is_err(), "{text}");
        }
    }
}
