//! A Pod's UID, and its name in the API.

use std::fmt;
use std::str::FromStr;

/// A Pod's UID that can be a file name and a part of a VM's name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
pub(crate) struct PodUid(String);

/// A UID that could not be a file name.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{0}` is not a Pod UID: letters, digits and `-` are allowed, 63 at most, and no `-` at either end")]
pub(crate) struct BadUid(String);

impl PodUid {
    /// Whether it is a UUID in lower case, as API servers make them.
    pub(crate) fn is_uuid(&self) -> bool {
        self.0.len() == 36
            && self.0.bytes().enumerate().all(|(at, byte)| match at {
                8 | 13 | 18 | 23 => byte == b'-',
                _ => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
            })
    }
}

impl FromStr for PodUid {
    type Err = BadUid;

    fn from_str(uid: &str) -> Result<Self, Self::Err> {
        let fits = (1..=63).contains(&uid.len())
            && uid.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !uid.starts_with('-')
            && !uid.ends_with('-');
        if fits { Ok(Self(uid.to_owned())) } else { Err(BadUid(uid.to_owned())) }
    }
}

impl fmt::Display for PodUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A Pod's namespace and name in the API.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub(crate) struct PodName {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl fmt::Display for PodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uid_is_a_plain_file_name() {
        assert!("0b1c2d3e-0000-4000-8000-0123456789ab".parse::<PodUid>().is_ok());
        for bad in ["", ".", "..", "a/b", "-a", "a-", "a b", "a\0", &"a".repeat(64)] {
            assert!(bad.parse::<PodUid>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_uuid_has_one_spelling() {
        let is_uuid = |uid: &str| uid.parse::<PodUid>().unwrap().is_uuid();
        assert!(is_uuid("0b1c2d3e-0000-4000-8000-0123456789ab"));
        for other in [
            "builder",
            "0B1c2d3e-0000-4000-8000-0123456789ab",
            "0b1c2d3e-0000-4000-8000-0123456789a",
            "0b1c2d3e-0000-4000-8000-0123456789abc",
            "0b1c2d3e00000-4000-8000-0123456789ab",
            "0b1c2d3e-0000-4000-8000-0123456789ag",
        ] {
            assert!(!is_uuid(other), "{other}");
        }
    }
}
