//! TODO-DOC shim/stop

pub(crate) mod grace_period;
pub(crate) mod request;
pub(crate) mod shutdown;
pub(crate) mod sigterm;
