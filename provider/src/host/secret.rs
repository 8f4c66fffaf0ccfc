//! Bytes that no log, error or command line may show.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::artifact::Sha256Hash;

/// Bytes that are never shown. Serialized, they are their hash.
#[derive(Clone, PartialEq, Eq)]
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

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Sha256Hash::of(&self.0).serialize(serializer)
    }
}
