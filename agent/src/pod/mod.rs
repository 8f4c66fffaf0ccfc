//! Pods of this Node: who they are, what to do with each, and what to tell the API server about it.

pub(crate) mod admission;
pub(crate) mod manager;
pub(crate) mod registry;
pub(crate) mod status;
pub(crate) mod sync;
pub(crate) mod worker;
