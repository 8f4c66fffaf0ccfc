//! TODO-DOC shim/outcome

pub(crate) mod messages;
pub(crate) mod run_result;
pub(crate) mod vm_output;
