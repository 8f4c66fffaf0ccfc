//! Images on this host: which digest a reference stands for, pulling, ownership, access, and collecting them.

pub(crate) mod access;
mod content_check;
pub(crate) mod credentials;
mod deletion;
mod error;
pub(crate) mod gc;
mod inventory;
pub(crate) mod manager;
pub(crate) mod ownership;
mod partial_pulls;
pub(crate) mod pins;
pub(crate) mod prepull;
pub(crate) mod pull_socket;
mod record_file;
mod recovery;
mod shared_pull;
mod store;

pub(crate) use error::ImageError;
pub(crate) use shared_pull::Pulled;
pub(crate) use store::{ImageStore, PullPolicy, PullStarter};
