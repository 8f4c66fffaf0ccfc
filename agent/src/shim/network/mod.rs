//! The guest's address, and host ports that lead to it.

pub(crate) mod address;
pub(crate) mod host_ports;
