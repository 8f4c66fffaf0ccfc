//! The credential with which tart logs in to a registry.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A user's name and password at one registry.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Credential {
    /// The registry, as `host` or `host:port`.
    pub(crate) host: String,
    pub(crate) username: String,
    pub(crate) password: String,
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credential({} at {})", self.username, self.host)
    }
}
