//! The firewall of VMs: what a guest can reach through pf, the packet filter of the Mac.
//!
//! The rules are in an anchor below `com.apple/`, which the stock main ruleset evaluates. They judge packets of guests as they come in at
//! the VMs' bridges, where the addresses are still the guests' own. A launchd job, and it alone, loads them: at boot and every minute.
//! Neither the main ruleset nor `/etc/pf.conf` is loaded anew: that would drop the anchors of Internet Sharing, and VMs would lose their
//! network.

mod apply;
mod cidr;
mod config;
mod legacy;
mod loader;
mod pf_conf;
mod pfctl;
mod rules;

pub use apply::{Applied, Difference, FirewallError, FirewallFile, apply, differences, files};
pub use cidr::Cidr;
pub use config::{AllowedDestination, BadAllowedDestination, FirewallConfig, Transport};
pub use legacy::Leftover;
pub use pfctl::PfctlError;

/// The anchor that has the rules.
pub const ANCHOR: &str = launchd::VM_FIREWALL_ANCHOR;
/// The file of the rules.
pub const RULES_FILE: &str = "/etc/pf.anchors/dev.tuist.tart-kubelet";
/// The script that loads the rules.
pub const LOADER: &str = "/usr/local/libexec/tart-kubelet-firewall";
/// The label of the job that runs the script.
pub const LABEL: &str = "dev.tuist.tart-kubelet-firewall";
/// The property list of the job.
pub const PLIST: &str = "/Library/LaunchDaemons/dev.tuist.tart-kubelet-firewall.plist";
