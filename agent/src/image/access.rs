//! Which Pods may use an image that the agent has pulled: those to which its registry would give it.
//!
//! A Pod without the pull secret of a private image has to ask the registry, even if the image is here.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The number of secrets that the record keeps per image. A Pod with a forgotten one asks the registry again.
const MOST: usize = 100;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SecretUid(pub(crate) String);

/// Which Pods may use an image without asking its registry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ImageAccess {
    /// All Pods: it was pulled without a secret, or by another program.
    Everyone,
    /// Pods with one of these secrets, which the registry has accepted; the latest one is last.
    With(Vec<SecretUid>),
    /// A word of a newer agent: no Pod, until the registry grants the image.
    #[serde(untagged)]
    Newer(Value),
}

impl ImageAccess {
    /// No Pod, until the registry grants the image.
    pub(crate) fn no_pod() -> Self {
        Self::With(Vec::new())
    }

    /// Whether a Pod with these pull secrets may use the image.
    pub(crate) fn is_for<'a>(&self, secrets: impl IntoIterator<Item = &'a SecretUid>) -> bool {
        match self {
            Self::Everyone => true,
            Self::Newer(_) => false,
            Self::With(known) => secrets.into_iter().any(|secret| known.contains(secret)),
        }
    }

    /// The registry has granted the image: for a pull secret, or without any. Says whether that changes the access.
    pub(crate) fn grant(&mut self, secret: Option<&SecretUid>) -> bool {
        match (self, secret) {
            (Self::Everyone, _) => false,
            (access @ (Self::With(_) | Self::Newer(_)), None) => {
                *access = Self::Everyone;
                true
            }
            (access @ Self::Newer(_), Some(secret)) => {
                *access = Self::With(vec![secret.clone()]);
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
    fn only_granted_secrets_give_access() {
        let mut access = ImageAccess::no_pod();
        assert!(!access.is_for([]) && !access.is_for([&secret(1)]));
        assert!(access.grant(Some(&secret(1))) && !access.grant(Some(&secret(1))));
        assert!(
            access.is_for([&secret(2), &secret(1)]) && !access.is_for([&secret(2)]) && !access.is_for([])
        );
        assert!(access.grant(None), "the registry gives it without a secret");
        assert!(access.is_for([]) && !access.grant(Some(&secret(3))));
    }

    #[test]
    fn the_oldest_secrets_are_forgotten() {
        let mut access = ImageAccess::no_pod();
        for number in 0..=MOST {
            access.grant(Some(&secret(number)));
        }
        assert!(
            !access.is_for([&secret(0)]) && access.is_for([&secret(1)]) && access.is_for([&secret(MOST)])
        );
    }
}
