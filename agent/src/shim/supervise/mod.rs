//! The agent's side of a shim: starting it, and what is left when it has died.

pub(crate) mod launch;
pub(crate) mod recover_exit;
pub(crate) mod stray_processes;
