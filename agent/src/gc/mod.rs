//! Collecting orphan VMs, and the state directories of Pods that are gone.
//!
//! `observer` observes the host and the API server, `orphan` decides what is deleted and why the rest is kept, and `collector` deletes.

pub(crate) mod ages;
pub(crate) mod collector;
pub(crate) mod observer;
pub(crate) mod orphan;
