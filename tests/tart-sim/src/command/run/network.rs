//! `--net-*`: how a VM is connected.

use tart_sim::Fault;

use crate::cli;
use crate::error::{Error, Result};
use crate::host::faults;
use crate::host::running_vms::Network;
use crate::output::stdout;

/// The interfaces that a VM can be bridged to: identifier and name.
const INTERFACES: [(&str, &str); 2] = [("en0", "Ethernet"), ("en1", "Wi-Fi")];

/// A VM's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Attachment {
    pub(super) network: Network,
    /// Whether a Softnet process carries the packets, also for `--net-host`.
    pub(super) softnet: bool,
}

/// Chooses the connection, and refuses one that this Mac does not have.
pub(super) fn attach(args: &cli::Run) -> Result<Attachment> {
    let softnet = args.net_softnet || args.net_host;
    if softnet && faults::is_on(Fault::SoftnetMissing) {
        return Err(Error::runtime("Softnet failed: softnet not found in PATH"));
    }
    if args.net_softnet_control_fd.is_some_and(|fd| fd <= 2) {
        return Err(Error::other(
            "InitializationFailed(why: \"Softnet control file descriptor must be greater than 2\")",
        ));
    }
    if args.net_bridged.iter().any(|name| name == "list") {
        for interface in interfaces() {
            stdout::line(interface);
        }
        std::process::exit(0);
    }
    let is_known = |name: &String| INTERFACES.iter().any(|(id, title)| name == id || name == title);
    if !args.net_bridged.iter().all(is_known) {
        return Err(Error::usage(format!(
            "no bridge interfaces matched \"{:?}\", available interfaces: {:?}",
            args.net_bridged,
            interfaces()
        )));
    }
    let network = match (softnet, args.net_bridged.as_slice()) {
        (true, _) => Network::Softnet,
        (false, []) => Network::Shared,
        (false, _) => Network::Bridged,
    };
    Ok(Attachment { network, softnet })
}

fn interfaces() -> Vec<String> {
    INTERFACES.iter().map(|(id, title)| format!("{id} (or \"{title}\")")).collect()
}
