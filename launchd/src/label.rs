//! The name of a job.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The name of a job: letters, digits, `.`, `_` and `-`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Label(String);

/// A text that is no label.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no label of a launchd job: it may have letters, digits, `.`, `_` and `-`")]
pub struct BadLabel(String);

impl Label {
    /// The label as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Label {
    type Err = BadLabel;

    fn from_str(text: &str) -> Result<Self, BadLabel> {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let is_label = !text.is_empty() && text.len() <= 128 && text.chars().all(is_allowed);
        if is_label { Ok(Self(text.to_owned())) } else { Err(BadLabel(text.to_owned())) }
    }
}

impl TryFrom<String> for Label {
    type Error = BadLabel;

    fn try_from(text: String) -> Result<Self, BadLabel> {
        text.parse()
    }
}

impl From<Label> for String {
    fn from(label: Label) -> Self {
        label.0
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
