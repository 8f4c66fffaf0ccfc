//! The ends that a VM can come to, in words.

use std::time::Duration;

use crate::error_chain::chain;
use crate::shim::network::host_ports::HostPortError;
use crate::state::{Ending, HostFault};
use crate::tart::{Fault, TartError};

pub(crate) fn lost(why: &str) -> Ending {
    Ending::Exited { code: 255, message: Some(why.to_owned()) }
}

/// The end of a command whose VM ended with it: what tart says of the VM explains it, when it says anything.
pub(crate) fn told_by_vm(vm: Ending, command: Ending) -> Ending {
    match (vm, command) {
        (Ending::Exited { message: Some(why), .. }, Ending::Exited { code, .. }) => {
            Ending::Exited { code, message: Some(why) }
        }
        (_, command) => command,
    }
}

/// The end of a command that was lost together with its VM, by the VM's account.
pub(crate) fn lost_with(vm: Ending) -> Ending {
    match vm {
        Ending::Exited { code: 0, .. } => lost("the guest shut down before its command had ended"),
        account => account,
    }
}

pub(crate) fn stopped_early() -> Ending {
    let message = "stopped before the container had started".to_owned();
    Ending::NotStarted { reason: "Stopped".to_owned(), message, fault: None }
}

pub(crate) fn no_address(limit: Duration) -> Ending {
    let message = format!(
        "the guest got no address within {} s; it may not have booted, or the host's DHCP server has none left",
        limit.as_secs()
    );
    Ending::NotStarted { reason: "NoAddress".to_owned(), message, fault: Some(HostFault::NoAddress) }
}

/// A guest agent that did not answer; `instead` is what does without one.
pub(crate) fn guest_agent_missing(limit: Duration, instead: &str) -> Ending {
    Ending::NotStarted {
        reason: "GuestAgentMissing".to_owned(),
        message: format!(
            "the guest agent did not answer within {} s; use an image with tart-guest-agent in it and a user that logs \
             in by itself, or {instead}",
            limit.as_secs()
        ),
        fault: None,
    }
}

pub(crate) fn port_taken(error: &HostPortError) -> Ending {
    Ending::NotStarted { reason: "StartError".to_owned(), message: chain(error), fault: None }
}

pub(crate) fn not_started(reason: &str, error: &TartError) -> Ending {
    let advice = error.fault().map_or("", Fault::advice);
    Ending::NotStarted {
        reason: reason.to_owned(),
        message: format!("{}{advice}", chain(error)),
        fault: None,
    }
}
