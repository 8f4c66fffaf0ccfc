//! TODO-DOC os

pub(crate) mod command;
pub(crate) mod dhcp_leases;
pub(crate) mod host;
pub(crate) mod open_files;
pub(crate) mod process_table;
