//! The ports that the agent serves. `local` is the host's own port for health and metrics.

pub(crate) mod local;
pub(crate) mod stream;
