//! TODO-DOC apiserver

pub(crate) mod call_metrics;
pub(crate) mod events;
pub(crate) mod shared_watch;
pub(crate) mod tokens;
pub(crate) mod watched_objects;
