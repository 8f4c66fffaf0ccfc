//! The names and IDs that every layer uses. A value of each type is well-formed.

pub(crate) mod image;
mod node;
mod pod;
mod vm;

pub(crate) use image::{ImageDigest, full_name};
pub(crate) use node::{BadNodeName, NodeName};
pub(crate) use pod::{PodName, PodUid};
pub(crate) use vm::{BaseName, Restart, VmName};
