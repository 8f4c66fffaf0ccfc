//! The arguments of each command.

/// How to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Text,
    Json,
}

/// `tart create`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Create {
    pub(crate) name: String,
    pub(crate) from_ipsw: Option<String>,
    pub(crate) linux: bool,
    pub(crate) disk_size: u64,
    pub(crate) asif: bool,
}

/// `tart clone`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Clone {
    pub(crate) source_name: String,
    pub(crate) new_name: String,
    pub(crate) concurrency: u64,
    /// GiB.
    pub(crate) prune_limit: u64,
}

/// `tart run`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[expect(clippy::struct_excessive_bools, reason = "that many flags it has")]
pub(crate) struct Run {
    pub(crate) name: String,
    pub(crate) no_graphics: bool,
    pub(crate) serial: bool,
    pub(crate) serial_path: Option<String>,
    pub(crate) no_audio: bool,
    pub(crate) no_clipboard: bool,
    pub(crate) recovery: bool,
    pub(crate) vnc: bool,
    pub(crate) vnc_experimental: bool,
    pub(crate) disk: Vec<String>,
    pub(crate) rosetta: Option<String>,
    pub(crate) dir: Vec<String>,
    pub(crate) nested: bool,
    pub(crate) net_bridged: Vec<String>,
    pub(crate) net_softnet: bool,
    pub(crate) net_softnet_allow: Option<String>,
    pub(crate) net_softnet_block: Option<String>,
    pub(crate) net_softnet_expose: Option<String>,
    pub(crate) net_softnet_control_fd: Option<i32>,
    pub(crate) net_host: bool,
    pub(crate) root_disk_opts: Option<String>,
    pub(crate) suspendable: bool,
    pub(crate) capture_system_keys: bool,
    pub(crate) no_trackpad: bool,
    pub(crate) no_pointer: bool,
    pub(crate) no_keyboard: bool,
    pub(crate) provisioning_opts: Option<String>,
}

/// `tart set`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Set {
    pub(crate) name: String,
    pub(crate) cpu: Option<u32>,
    /// MiB.
    pub(crate) memory: Option<u64>,
    pub(crate) display: Option<String>,
    pub(crate) display_refit: Option<bool>,
    pub(crate) random_mac: bool,
    pub(crate) random_serial: bool,
    pub(crate) disk: Option<String>,
    /// GB.
    pub(crate) disk_size: Option<u64>,
}

/// `tart get`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Get {
    pub(crate) name: String,
    pub(crate) format: Format,
}

/// `tart list`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct List {
    pub(crate) source: Option<String>,
    pub(crate) format: Format,
    pub(crate) quiet: bool,
}

/// `tart login`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Login {
    pub(crate) host: String,
    pub(crate) username: Option<String>,
    pub(crate) password_stdin: bool,
    pub(crate) no_validate: bool,
}

/// `tart ip`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ip {
    pub(crate) name: String,
    /// Seconds.
    pub(crate) wait: u64,
    pub(crate) resolver: Resolver,
}

/// Where `tart ip` looks for the address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resolver {
    Dhcp,
    Arp,
    Agent,
}

/// `tart exec`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Exec {
    pub(crate) name: String,
    pub(crate) interactive: bool,
    pub(crate) tty: bool,
    /// The program and its arguments, as given; never empty.
    pub(crate) command: Vec<String>,
}

/// `tart pull`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pull {
    pub(crate) remote_name: String,
    pub(crate) concurrency: u64,
}

/// `tart push`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Push {
    pub(crate) local_name: String,
    pub(crate) remote_names: Vec<String>,
    pub(crate) concurrency: u64,
    pub(crate) labels: Vec<String>,
    pub(crate) populate_cache: bool,
}

/// `tart prune`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Prune {
    /// Local VMs instead of caches.
    pub(crate) vms: bool,
    /// Days.
    pub(crate) older_than: Option<u64>,
    /// GiB.
    pub(crate) space_budget: Option<u64>,
    pub(crate) gc: bool,
}

/// `tart stop`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stop {
    pub(crate) name: String,
    /// Seconds.
    pub(crate) timeout: u64,
}

/// `tart suspend`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Suspend {
    pub(crate) name: String,
}
