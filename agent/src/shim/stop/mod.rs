//! Stopping a VM: the request, the grace period, SIGTERM and the shutdown.

pub(crate) mod grace_period;
pub(crate) mod request;
pub(crate) mod shutdown;
pub(crate) mod sigterm;
