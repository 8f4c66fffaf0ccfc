//! Images: how they get to the Mac, who may use them, and the base VMs that are made from them.

pub(crate) mod base_vm;
mod content;
mod private_image;
pub(crate) mod pull;
mod resumable_pull;
