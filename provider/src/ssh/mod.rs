//! SSH to a Mac: by key only, with the Mac's host key pinned, one connection for everything. No other module knows russh.

mod address;
mod connection;
mod error;
mod key;
mod known_hosts;
mod quote;
mod remote_mac;
mod upload;

pub(crate) use address::{BadSshAddress, SshAddress};
pub(crate) use connection::{Connection, HostKeyPolicy};
pub(crate) use error::SshError;
pub(crate) use key::{Fingerprint, SshKey, SshKeyError};
pub(crate) use quote::quoted;
pub(crate) use upload::{OnUpload, Upload};
