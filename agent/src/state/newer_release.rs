//! Words of a newer release, read by this one. Agent and shim are of different releases while a Mac is rolled, forwards or back.
//!
//! A file is a protocol: a new field is ignored, a new word is kept as it is, and what every release has to know stands beside the word.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// A value of this release, or one of a newer release as it was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum OrNewer<T> {
    Known(T),
    Newer(Value),
}

/// Reads a value that can be done without: one with a word of a newer release counts as absent.
pub(super) fn optional<'de, T: DeserializeOwned, D: Deserializer<'de>>(
    file: D,
) -> Result<Option<T>, D::Error> {
    Ok(serde_json::from_value(Value::deserialize(file)?).ok())
}
