//! Names of remote images: `host/namespace:tag` and `host/namespace@sha256:…`.

use std::fmt;

use crate::error::{Error, Result};

/// The part of a remote name that selects one image of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reference {
    /// A name that the registry may move to another image.
    Tag(String),
    /// `sha256:` and 64 hexadecimal digits.
    Digest(String),
}

impl Reference {
    /// The tag or digest itself.
    pub(crate) fn value(&self) -> &str {
        match self {
            Self::Tag(value) | Self::Digest(value) => value,
        }
    }
}

/// The name of an image in a registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RemoteName {
    /// Host, with its port if there is one.
    pub(crate) host: String,
    /// Everything between host and reference.
    pub(crate) namespace: String,
    /// Tag (`latest` unless given) or digest.
    pub(crate) reference: Reference,
}

impl RemoteName {
    /// Reads a remote name. Everything without a slash is a local name, and fails.
    pub(crate) fn parse(name: &str) -> Result<Self> {
        let refuse = |cause: String| Error::runtime(format!("failed to parse remote name: {cause}"));
        let Some((host, rest)) = name.split_once('/') else {
            return Err(refuse(format!("line 1:{} mismatched input '<EOF>' expecting '/'", name.len())));
        };
        let (namespace, reference) = if let Some((namespace, digest)) = rest.split_once('@') {
            (namespace, Reference::Digest(digest.into()))
        } else if let Some((namespace, tag)) = rest.split_once(':') {
            (namespace, Reference::Tag(tag.into()))
        } else {
            (rest, Reference::Tag("latest".into()))
        };
        let (bare_host, port) = host.split_once(':').unwrap_or((host, "0"));
        let well_formed = is_word(bare_host)
            && !port.is_empty()
            && port.bytes().all(|byte| byte.is_ascii_digit())
            && namespace.split('/').all(is_word)
            && match &reference {
                Reference::Tag(tag) => is_word(tag),
                Reference::Digest(digest) => is_digest(digest),
            };
        if well_formed {
            Ok(Self { host: host.into(), namespace: namespace.into(), reference })
        } else {
            Err(refuse(format!("line 1:{} no viable alternative at input '{rest}'", host.len() + 1)))
        }
    }

    /// The repository with its host.
    pub(crate) fn repository(&self) -> String {
        format!("{}/{}", self.host, self.namespace)
    }

    /// The same repository's image with this digest.
    pub(crate) fn with_digest(&self, digest: &str) -> Self {
        Self { reference: Reference::Digest(digest.into()), ..self.clone() }
    }
}

impl fmt::Display for RemoteName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separator = match self.reference {
            Reference::Tag(_) => ':',
            Reference::Digest(_) => '@',
        };
        write!(f, "{}/{}{separator}{}", self.host, self.namespace, self.reference.value())
    }
}

fn is_word(word: &str) -> bool {
    !word.is_empty()
        && !word.starts_with('.')
        && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'))
}

fn is_digest(digest: &str) -> bool {
    digest
        .strip_prefix("sha256:")
        .is_some_and(|hex| hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_printed_in_full() {
        let digest = format!("sha256:{}", "0".repeat(64));
        for (name, printed) in [
            ("registry.example/team/image", "registry.example/team/image:latest"),
            ("registry.example:5000/image:v1.2", "registry.example:5000/image:v1.2"),
            (&format!("registry.example/a/b@{digest}"), &format!("registry.example/a/b@{digest}")),
        ] {
            assert_eq!(RemoteName::parse(name).unwrap().to_string(), printed);
        }
    }

    #[test]
    fn anything_else_is_no_remote_name() {
        for name in [
            "",
            "vm",
            "host/",
            "/image",
            "host/image:",
            "host/image@sha256:12",
            "host/im age",
            "host:port/image",
            "a//b",
            "h/../x",
        ] {
            let error = RemoteName::parse(name).unwrap_err();
            assert!(error.description().starts_with("failed to parse remote name: "), "{name:?}: {error:?}");
            assert_eq!(error.exit_code(), 1);
        }
    }
}
