//! The agent's side: it launches a shim, and recovers what a dead one left.

pub(super) mod attach;
pub(super) mod launch;
pub(super) mod recover_exit;
pub(super) mod stray_processes;
