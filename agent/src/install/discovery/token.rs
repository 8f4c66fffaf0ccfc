//! A bootstrap token.

use std::fmt;
use std::str::FromStr;

/// A bootstrap token: an id that may be shown, and a secret.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct BootstrapToken {
    id: String,
    secret: String,
}

/// A text that is no bootstrap token. It does not have the text, which may be a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the token is none: a bootstrap token has six letters or digits, a dot, and sixteen more, as `kubeadm token create` prints it"
)]
pub(crate) struct BadToken;

impl BootstrapToken {
    /// What may be shown of it.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// The part that signs.
    pub(super) fn secret(&self) -> &str {
        &self.secret
    }

    /// The whole token.
    pub(crate) fn reveal(&self) -> String {
        format!("{}.{}", self.id, self.secret)
    }
}

impl FromStr for BootstrapToken {
    type Err = BadToken;

    fn from_str(text: &str) -> Result<Self, BadToken> {
        let is_part = |part: &str, length| {
            part.len() == length
                && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        };
        match text.trim().split_once('.') {
            Some((id, secret)) if is_part(id, 6) && is_part(secret, 16) => {
                Ok(Self { id: id.to_owned(), secret: secret.to_owned() })
            }
            _ => Err(BadToken),
        }
    }
}

impl fmt::Debug for BootstrapToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BootstrapToken").field("id", &self.id).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_strictly_and_its_secret_is_never_shown() {
        let token: BootstrapToken = "abcdef.0123456789abcdef\n".parse().unwrap();
        assert_eq!((token.id(), token.reveal().as_str()), ("abcdef", "abcdef.0123456789abcdef"));
        assert!(!format!("{token:?}").contains("0123456789abcdef"));
        for text in
            ["", "abcdef", "abcdef.0123456789ABCDEF", "abcde.0123456789abcdef", "abcdef.0123456789abcde"]
        {
            assert_eq!(text.parse::<BootstrapToken>(), Err(BadToken), "{text}");
        }
    }
}
