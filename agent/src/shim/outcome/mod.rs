//! How a VM ended: what the shim finds out, and the messages for it.

pub(super) mod messages;
pub(super) mod vm_output;
