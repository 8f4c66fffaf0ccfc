//! What tart logs in to a registry with.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A user's name and password at one registry.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Credential {
    /// The registry, as `host` or `host:port`.
    pub(crate) host: String,
    /// The user's name.
    pub(crate) username: String,
    /// The user's password.
    pub(crate) password: String,
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credential({} at {})", self.username, self.host)
    }
}
