//! The endings of a container, with their messages.

use std::time::Duration;

use crate::error_chain::chain;
use crate::shim::network::host_ports::HostPortError;
use crate::state::{Ending, HostFault, NotStarted, NotStartedReason};
use crate::tart::{Fault, TartError};

pub(in crate::shim) fn connection_lost(why: &str) -> Ending {
    Ending::Exited { code: 255, message: Some(why.to_owned()) }
}

/// The ending of a command that was killed when its VM ended: tart's message, if there is one, explains it.
pub(in crate::shim) fn with_message_of_vm(command: Ending, vm: Ending) -> Ending {
    match (command, vm) {
        (Ending::Exited { code, .. }, Ending::Exited { message: Some(why), .. }) => {
            Ending::Exited { code, message: Some(why) }
        }
        (command, _) => command,
    }
}

/// The ending of a command that was lost with its VM.
pub(in crate::shim) fn lost_with_vm(vm: Ending) -> Ending {
    match vm {
        Ending::Exited { code: 0, .. } => connection_lost("the guest shut down before its command had ended"),
        vm => vm,
    }
}

pub(in crate::shim) fn stopped_before_start() -> NotStarted {
    NotStarted::new(NotStartedReason::Stopped, "stopped before the container had started".to_owned())
}

pub(in crate::shim) fn no_address(limit: Duration) -> NotStarted {
    let message = format!(
        "the guest got no address within {} s; it may not have booted, or the host's DHCP server has none left",
        limit.as_secs()
    );
    NotStarted { fault: Some(HostFault::NoAddress), ..NotStarted::new(NotStartedReason::NoAddress, message) }
}

/// The guest agent did not answer; `instead` is a Pod that needs none.
pub(in crate::shim) fn guest_agent_missing(limit: Duration, instead: &str) -> NotStarted {
    let message = format!(
        "the guest agent did not answer within {} s; use an image with tart-guest-agent in it and a user that logs in by itself, or \
         {instead}",
        limit.as_secs()
    );
    NotStarted::new(NotStartedReason::GuestAgentMissing, message)
}

pub(in crate::shim) fn host_port_taken(error: &HostPortError) -> NotStarted {
    NotStarted::new(NotStartedReason::StartError, chain(error))
}

pub(in crate::shim) fn tart_failed(reason: NotStartedReason, error: &TartError) -> NotStarted {
    let advice = error.fault().map_or("", Fault::advice);
    NotStarted::new(reason, format!("{}{advice}", chain(error)))
}
