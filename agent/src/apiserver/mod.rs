//! How the agent uses the API server: calls with a deadline, watched objects, Events, service account tokens.

pub(crate) mod call;
pub(crate) mod events;
pub(crate) mod shared_watch;
pub(crate) mod tokens;
pub(crate) mod watched_objects;
