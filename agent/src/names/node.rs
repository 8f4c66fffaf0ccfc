//! The name of the Node.

use std::fmt;
use std::str::FromStr;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct NodeName(String);

/// A name that no Node can have.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "`{0}` is not a Node name: lower-case letters, digits, `-` and `.` are allowed, 253 at most, letters or digits at both ends"
)]
pub(crate) struct BadNodeName(String);

impl FromStr for NodeName {
    type Err = BadNodeName;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let alphanumeric = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        let bytes = name.as_bytes();
        let fits = (1..=253).contains(&bytes.len())
            && bytes.iter().all(|&b| alphanumeric(b) || b == b'-' || b == b'.')
            && bytes.first().is_some_and(|&b| alphanumeric(b))
            && bytes.last().is_some_and(|&b| alphanumeric(b));
        if fits { Ok(Self(name.to_owned())) } else { Err(BadNodeName(name.to_owned())) }
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_rules_of_the_api() {
        for good in ["a", "mac-1", "mac-1.example.org", "1"] {
            assert!(good.parse::<NodeName>().is_ok(), "{good}");
        }
        for bad in ["", "Mac", "-a", "a-", "a_b", "a b", &"a".repeat(254)] {
            assert!(bad.parse::<NodeName>().is_err(), "{bad}");
        }
    }
}
