//! Who may use an image that the agent has pulled: whoever its registry would let have it.
//!
//! A private image that one Pod's pull secret has brought here is not there for Pods without it; they have to ask the registry.

use serde::{Deserialize, Serialize};

/// As many as are remembered of one image. Whoever is forgotten asks its registry again.
const MOST: usize = 100;

/// The UID of a pull secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SecretUid(pub(crate) String);

/// Who may use an image without asking its registry.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ImageAccess {
    /// It was had without anybody's secret, or somebody else has put it here.
    #[default]
    Everyone,
    /// Its registry has let those have it who came with one of these; the last one at the end.
    With(Vec<SecretUid>),
}

impl ImageAccess {
    /// Nobody has shown yet that the registry lets them have it.
    pub(crate) fn nobody() -> Self {
        Self::With(Vec::new())
    }

    /// Whether a Pod with these pull secrets may use the image.
    pub(crate) fn is_for<'a>(&self, secrets: impl IntoIterator<Item = &'a SecretUid>) -> bool {
        match self {
            Self::Everyone => true,
            Self::With(known) => secrets.into_iter().any(|secret| known.contains(secret)),
        }
    }

    /// The registry has let somebody have the image: with a pull secret, or without any. Says whether that is news.
    pub(crate) fn grant(&mut self, secret: Option<&SecretUid>) -> bool {
        match (self, secret) {
            (Self::Everyone, _) => false,
            (access @ Self::With(_), None) => {
                *access = Self::Everyone;
                true
            }
            (Self::With(known), Some(secret)) if known.contains(secret) => false,
            (Self::With(known), Some(secret)) => {
                if known.len() == MOST {
                    known.remove(0);
                }
                known.push(secret.clone());
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(number: usize) -> SecretUid {
        SecretUid(number.to_string())
    }

    #[test]
    fn only_who_was_let_in_is_let_in_again() {
        let mut access = ImageAccess::nobody();
        assert!(!access.is_for([]) && !access.is_for([&secret(1)]));
        assert!(access.grant(Some(&secret(1))) && !access.grant(Some(&secret(1))));
        assert!(
            access.is_for([&secret(2), &secret(1)]) && !access.is_for([&secret(2)]) && !access.is_for([])
        );
        assert!(access.grant(None), "the registry gives it to anybody");
        assert!(access.is_for([]) && !access.grant(Some(&secret(3))));
    }

    #[test]
    fn those_of_long_ago_are_forgotten() {
        let mut access = ImageAccess::nobody();
        for number in 0..=MOST {
            access.grant(Some(&secret(number)));
        }
        assert!(
            !access.is_for([&secret(0)]) && access.is_for([&secret(1)]) && access.is_for([&secret(MOST)])
        );
    }
}
