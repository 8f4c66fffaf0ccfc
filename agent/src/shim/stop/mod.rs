//! Stopping a VM: the request, the grace period, SIGTERM and the shutdown.

pub(super) mod grace_period;
pub(super) mod request;
pub(super) mod shutdown;
pub(super) mod sigterm;
