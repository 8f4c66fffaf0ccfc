//! TODO-DOC shim/network

pub(crate) mod address;
pub(crate) mod host_ports;
