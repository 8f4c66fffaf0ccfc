//! Images of remote registries: their names, the local cache, the folder that stands for the registries.

mod cache;
mod credentials;
mod failure;
mod manifest;
mod name;
mod outage;
mod pull;
mod registry;

pub(crate) use cache::Cache;
pub(crate) use credentials::{Credentials, Keychain};
pub(crate) use name::{Reference, RemoteName};
pub(crate) use pull::{populate, pull};
pub(crate) use registry::Registry;
