//! Releases of macOS by their family, such as Tahoe, and not by their version: Scaleway retires versions without notice.

use std::fmt;

/// A family of releases, in lower case and without spaces: `tahoe`, `goldengate`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct OsFamily(String);

/// A machine asks for a version. Widening it to its family would give the machine another one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("spec.os is `{0}`; it is the name of a macOS release without a version, such as Tahoe")]
pub(crate) struct InvalidOsPin(String);

impl OsFamily {
    /// The family that a machine asks for.
    pub(crate) fn pin(text: &str) -> Result<Self, InvalidOsPin> {
        match Self::of_image(text) {
            Some(family) if !text.contains(|c: char| c.is_ascii_digit()) => Ok(family),
            _ => Err(InvalidOsPin(text.to_owned())),
        }
    }

    /// The family of an image, by its name or by a pin with a version: `macos-tahoe-26.6.1` is of `tahoe`. `None` if there is none.
    pub(crate) fn of_image(text: &str) -> Option<Self> {
        let text = text.to_lowercase();
        let text = text.strip_prefix("macos-").unwrap_or(&text);
        let version =
            text.match_indices('-').find(|(at, _)| text[at + 1..].starts_with(|c: char| c.is_ascii_digit()));
        let family = version.map_or(text, |(at, _)| &text[..at]);
        let family: String = family.chars().filter(|c| !matches!(c, ' ' | '-' | '_')).collect();
        (!family.is_empty()).then_some(Self(family))
    }
}

impl fmt::Display for OsFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_images_have_a_family() {
        for (text, family) in [
            ("macos-tahoe-26.6.1", "tahoe"),
            ("Tahoe", "tahoe"),
            ("macos-golden-gate-27.0", "goldengate"),
            ("Golden Gate", "goldengate"),
            ("devos-tahoe-26.0", "devostahoe"),
            ("macos-sonoma-14.6-xcode", "sonoma"),
        ] {
            assert_eq!(OsFamily::of_image(text).unwrap().to_string(), family, "{text}");
        }
        assert_eq!(OsFamily::of_image(""), None);
        assert_eq!(OsFamily::of_image("macos--26"), None);
    }

    #[test]
    fn a_pin_with_a_version_is_refused() {
        assert!(OsFamily::pin("Tahoe").is_ok());
        for text in ["macos-tahoe-26.3", "26", "", "-"] {
            assert_eq!(OsFamily::pin(text), Err(InvalidOsPin(text.to_owned())));
        }
    }
}
