//! What a Pod brings along in files: volumes, prepared on the host and shared with the guest.

pub mod content;
mod dir;
pub mod files;
#[cfg(test)]
mod hostile;
mod measure;
mod remove;
pub mod token;
mod tree;

pub use tree::TreeError;

use std::collections::BTreeMap;
use std::path::PathBuf;

/// The files that a volume is to hold, by their path below its root.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Payload(pub BTreeMap<PathBuf, PayloadFile>);

/// One file of a volume.
#[derive(Clone, PartialEq, Eq)]
pub struct PayloadFile {
    /// What is in it; may be secret.
    pub bytes: Vec<u8>,
    /// Its permission bits.
    pub mode: u32,
}

impl std::fmt::Debug for PayloadFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The bytes may be secret.
        write!(f, "{} bytes, {:o}", self.bytes.len(), self.mode)
    }
}
