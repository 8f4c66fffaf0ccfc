//! TODO-DOC shim/supervise

pub(crate) mod launch;
pub(crate) mod recover_exit;
pub(crate) mod stray_processes;
