//! Bytes that no log, error or command line may show.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::artifact::Sha256Hash;

/// Bytes that are never shown. Serialized, they are their hash.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Secret(Vec<u8>);

impl Secret {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// The bytes, for a standard input.
    pub(crate) fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(Option::<String>::deserialize(deserializer)?.unwrap_or_default().into_bytes()))
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Sha256Hash::of(&self.0).serialize(serializer)
    }
}
