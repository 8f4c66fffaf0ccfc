//! The operating system: processes, limits, DHCP leases, the GUI session, and facts about the machine.

pub(crate) mod availability;
pub(crate) mod backup;
pub(crate) mod dhcp_leases;
pub(crate) mod gui_session;
pub(crate) mod host;
pub(crate) mod host_cpu;
pub(crate) mod interface;
pub(crate) mod log_file;
pub(crate) mod open_files;
pub(crate) mod power_assertion;
pub(crate) mod privacy;
pub(crate) mod process_table;
pub(crate) mod process_usage;
