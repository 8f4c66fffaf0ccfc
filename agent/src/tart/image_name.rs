//! The one exact name of an image.

use std::fmt;

/// An image by digest, `host/namespace/repository@sha256:…`: what a tag pointed at when it was pulled.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ImageDigest(String);

impl ImageDigest {
    /// Reads what tart prints; `None` when it is anything else.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (repository, digest) = text.split_once("@sha256:")?;
        let fits = repository.contains('/')
            && !repository.contains(char::is_whitespace)
            && digest.len() == 64
            && digest.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        fits.then(|| Self(text.to_owned()))
    }

    /// The digest itself, in hexadecimal digits.
    pub fn hex(&self) -> &str {
        self.0.rsplit_once(':').map_or("", |(_, digits)| digits)
    }
}

impl fmt::Display for ImageDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_full_digest_is_one() {
        let hex = "0123456789abcdef".repeat(4);
        let name = format!("registry.test/org/macos@sha256:{hex}");
        assert_eq!(ImageDigest::parse(&name).map(|d| d.hex().to_owned()), Some(hex.clone()));
        assert_eq!(ImageDigest::parse(&name).map(|d| d.to_string()), Some(name));
        for bad in ["", "registry.test/org/macos:latest", "x@sha256:00", &format!("a b/c@sha256:{hex}")] {
            assert_eq!(ImageDigest::parse(bad), None, "{bad}");
        }
    }
}
