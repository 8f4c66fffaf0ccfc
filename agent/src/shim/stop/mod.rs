//! Stopping a VM: the request, the grace period, SIGTERM and the shutdown.

pub(super) mod grace_period;
mod leftover_processes;
pub(super) mod request;
pub(super) mod shutdown;
pub(super) mod sigterm;
