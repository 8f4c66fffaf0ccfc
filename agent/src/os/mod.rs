//! The operating system: its programs, processes and files, and what it says of the machine.

pub(crate) mod availability;
pub(crate) mod dhcp_leases;
pub(crate) mod host;
pub(crate) mod open_files;
pub(crate) mod process_table;
