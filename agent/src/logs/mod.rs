//! Container logs in the format of the container runtime interface.

pub(crate) mod writer;
