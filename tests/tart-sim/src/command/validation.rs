//! Checks of arguments that several commands share.

use crate::error::{Error, Result};

/// Refuses names with a slash, which belong to registries.
pub(crate) fn local_name(argument: &str, name: &str) -> Result<()> {
    if name.contains('/') { Err(Error::usage(format!("{argument} should be a local name"))) } else { Ok(()) }
}

/// Refuses zero network connections.
pub(crate) fn at_least_one_connection(concurrency: u64) -> Result<()> {
    if concurrency == 0 { Err(Error::usage("network concurrency cannot be less than 1")) } else { Ok(()) }
}
