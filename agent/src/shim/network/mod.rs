//! The guest's address, and the host ports that are forwarded to it.

pub(super) mod address;
pub(super) mod host_ports;
