//! Names of images.

use std::fmt;

use serde::{Deserialize, Serialize};

/// An image by digest: `host/namespace/repository@sha256:…`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct ImageDigest(String);

/// A text that is no image with its digest.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{0}` is not an image with its digest")]
pub(crate) struct NoDigest(String);

impl ImageDigest {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (repository, digest) = text.split_once("@sha256:")?;
        let fits = repository.contains('/')
            && !repository.contains(char::is_whitespace)
            && !repository.split('/').any(|part| matches!(part, "" | "." | ".."))
            && digest.len() == 64
            && digest.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        fits.then(|| Self(text.to_owned()))
    }

    /// The digest itself, in hexadecimal digits.
    pub(crate) fn hex(&self) -> &str {
        self.0.rsplit_once(':').map_or("", |(_, digits)| digits)
    }

    /// Whether an image by tag or digest is of the same repository.
    pub(crate) fn is_of_repository(&self, image: &str) -> bool {
        self.parts().0 == repository(image)
    }

    /// The repository, and the digest with its `sha256:`.
    pub(crate) fn parts(&self) -> (&str, &str) {
        self.0.split_once('@').unwrap_or((&self.0, ""))
    }
}

impl fmt::Display for ImageDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl TryFrom<String> for ImageDigest {
    type Error = NoDigest;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text).ok_or(NoDigest(text))
    }
}

/// The name of an image as tart knows it: with `:latest` when it has neither tag nor digest.
pub(crate) fn full_name(image: &str) -> String {
    let named = repository(image).len() < image.len();
    if named { image.to_owned() } else { format!("{image}:latest") }
}

/// The repository of an image by tag or digest, host included.
pub(crate) fn repository(image: &str) -> &str {
    let image = image.split_once('@').map_or(image, |(repository, _)| repository);
    let last = image.rfind('/').map_or(0, |slash| slash + 1);
    image[last..].find(':').map_or(image, |colon| &image[..last + colon])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_repository_with_a_full_digest_is_parsed() {
        let hex = "0123456789abcdef".repeat(4);
        let name = format!("registry.test/org/macos@sha256:{hex}");
        assert_eq!(ImageDigest::parse(&name).map(|d| d.hex().to_owned()), Some(hex.clone()));
        assert_eq!(ImageDigest::parse(&name).map(|d| d.to_string()), Some(name));
        for bad in [
            "",
            "registry.test/org/macos:latest",
            "x@sha256:00",
            &format!("a b/c@sha256:{hex}"),
            &format!("a/../c@sha256:{hex}"),
            &format!("/a@sha256:{hex}"),
        ] {
            assert_eq!(ImageDigest::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_repository_ends_before_tag_and_digest() {
        for (image, expected, full) in [
            ("registry.test/macos", "registry.test/macos", "registry.test/macos:latest"),
            ("registry.test/org/macos:15", "registry.test/org/macos", "registry.test/org/macos:15"),
            ("registry.test:5000/macos", "registry.test:5000/macos", "registry.test:5000/macos:latest"),
            ("registry.test:5000/macos:1", "registry.test:5000/macos", "registry.test:5000/macos:1"),
            ("registry.test/macos@sha256:00", "registry.test/macos", "registry.test/macos@sha256:00"),
        ] {
            assert_eq!((repository(image), full_name(image)), (expected, full.to_owned()), "{image}");
        }
    }
}
