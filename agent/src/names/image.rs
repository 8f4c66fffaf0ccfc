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

/// Why a text is not the name of an image that the agent takes.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub(crate) enum BadImageName {
    /// It could be a flag of tart.
    #[error("an image at a registry has a `/` in its name, no spaces, and no `-` at its start")]
    NotRemote,
    #[error(
        "`{0}` is not the name of an image: host and repository have only small letters, digits, `.`, `_`, `-`, single slashes, and \
         a `:` before a port"
    )]
    Spelling(String),
    #[error("`{0}` is not the name of an image: 64 digits from 0-9 and a-f follow `@sha256:`")]
    Digest(String),
}

/// Refuses names of which a Mac's disk has two spellings: it takes `ORG` for `org`, and tart takes `//` for `/` and writes a colon as
/// `%3A`. The record of images has one spelling, so that a Pod would get a private image by another one.
pub(crate) fn check_name(image: &str) -> Result<(), BadImageName> {
    if !image.contains('/') || image.starts_with('-') || image.contains(char::is_whitespace) {
        return Err(BadImageName::NotRemote);
    }
    let (host, path) = repository(image).split_once('/').ok_or(BadImageName::NotRemote)?;
    let (host, port) = host.split_once(':').unwrap_or((host, "0"));
    let is_word = |word: &str| {
        !matches!(word, "" | "." | "..")
            && word.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-'))
    };
    let is_port = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    if !is_word(host) || !is_port || !path.split('/').all(is_word) {
        return Err(BadImageName::Spelling(image.to_owned()));
    }
    if image.contains('@') && ImageDigest::parse(image).is_none() {
        return Err(BadImageName::Digest(image.to_owned()));
    }
    Ok(())
}

/// Whether an image by tag or digest may be this one: a name with a digest stands for no other.
pub(crate) fn allows(image: &str, found: &ImageDigest) -> bool {
    image.split_once('@').is_none_or(|(_, digest)| digest == found.parts().1)
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
    fn a_name_with_a_second_spelling_is_refused() {
        let hex = "0123456789abcdef".repeat(4);
        for good in ["r.test/a", "r.test:5000/a-b/c_d.e:V1", &format!("r.test/a@sha256:{hex}")] {
            assert_eq!(check_name(good), Ok(()), "{good}");
        }
        for remote in ["", "a", "--a/b", "r.test/a b"] {
            assert_eq!(check_name(remote), Err(BadImageName::NotRemote), "{remote}");
        }
        for bad in [
            "R.test/a",
            "r.test/A",
            "r.test/ORG/a:1",
            "r.test//a",
            "/r.test/a",
            "r.test/a/",
            "r.test/../a",
            "r.test%3A5000/a",
            "r.test:/a",
            "r.test:x/a",
            "r.test/\u{e9}",
        ] {
            assert_eq!(check_name(bad), Err(BadImageName::Spelling(bad.to_owned())), "{bad}");
        }
        for bad in ["r.test/a@sha256:00".to_owned(), format!("r.test/a@sha256:{}", hex.to_uppercase())] {
            assert_eq!(check_name(&bad), Err(BadImageName::Digest(bad.clone())), "{bad}");
        }
    }

    #[test]
    fn a_name_with_a_digest_stands_for_no_other() {
        let of = |digit: char| format!("r.test/a@sha256:{}", digit.to_string().repeat(64));
        let found = ImageDigest::parse(&of('a')).unwrap();
        assert!(allows("r.test/a:1", &found) && allows("r.test/a", &found) && allows(&of('a'), &found));
        assert!(!allows(&of('b'), &found));
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
