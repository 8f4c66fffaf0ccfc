//! How a VM ended: what the shim finds out, and the words for it.

pub(crate) mod messages;
pub(crate) mod run_result;
pub(crate) mod vm_output;
