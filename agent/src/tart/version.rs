//! Releases of tart.

use std::fmt;

/// A release, as `tart --version` names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TartVersion {
    name: String,
    /// Major and minor; development builds have none.
    release: Option<(u32, u32)>,
}

impl TartVersion {
    /// The first release with `tart exec` and its socket, through which the shim runs commands in guests.
    pub(crate) const OLDEST: &str = "2.27.0";
    const OLDEST_RELEASE: (u32, u32) = (2, 27);

    pub(crate) fn parse(text: &str) -> Option<Self> {
        // Development builds of tart call themselves SNAPSHOT.
        if text == "SNAPSHOT" {
            return Some(Self { name: text.to_owned(), release: None });
        }
        let mut parts = text.split('.').map(|part| part.parse::<u32>().ok());
        let release = (parts.next()??, parts.next()??);
        Some(Self { name: text.to_owned(), release: Some(release) })
    }

    /// Whether the agent can work with it.
    pub(crate) fn is_supported(&self) -> bool {
        self.release.is_none_or(|release| release >= Self::OLDEST_RELEASE)
    }
}

impl fmt::Display for TartVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_before_the_oldest_are_not_supported() {
        let table = [
            ("2.35.0", Some(true)),
            ("2.27.0", Some(true)),
            ("3.0", Some(true)),
            ("SNAPSHOT", Some(true)),
            ("2.26.9", Some(false)),
            ("1.99.0", Some(false)),
            ("", None),
            ("2", None),
            ("tart 2.35.0", None),
        ];
        for (text, supported) in table {
            assert_eq!(TartVersion::parse(text).map(|version| version.is_supported()), supported, "{text}");
        }
    }
}
