//! The simulated guest: a process tree with a root file system of its own that answers as a macOS guest does.
//!
//! `tart run` starts this same binary again under other names (see [`entry`]): a launcher that enters a new PID
//! namespace, and in it the guest's init, which builds the root file system, runs the image's boot command and serves
//! the guest agent. A pipe from `tart run` is the guest's power: when it closes, init ends and the kernel ends the rest.

mod agent;
mod boot;
mod commands;
mod init;
mod layout;
mod machine;
#[cfg(target_os = "linux")]
mod namespaces;
mod no_namespaces;
mod processes;
mod programs;

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

pub(crate) use boot::{Boot, Share};
pub(crate) use init::AGENT_SOCKET;
pub(crate) use machine::{Halt, Machine, can_have_own_network};

/// The tag that a macOS guest mounts by itself.
pub(crate) const AUTOMOUNT_TAG: &str = "com.apple.virtio-fs.automount";

/// The environment variable that names the root of the machine's files, for a machine whose own programs are no guest's.
const MACHINE: &str = "TART_SIM_MACHINE";

/// The name under which this binary prepares the namespaces of a guest.
const LAUNCHER: &str = "tart-guest-launcher";

/// The name under which this binary is a guest's first process.
const INIT: &str = "tart-guest-init";

/// The name under which this binary gives a command a session, and a terminal if it has one.
const SESSION: &str = "tart-guest-session";

/// The name under which this binary tries whether a guest can have a network of its own.
const NETWORK_PROBE: &str = "tart-guest-network-probe";

/// Runs the part of a guest that this process was started as. `None` if it was started as tart.
pub(crate) fn entry() -> Option<ExitCode> {
    let mut words = env::args_os();
    let program = words.next()?;
    let program = Path::new(&program).file_name().and_then(OsStr::to_str)?.to_owned();
    let words: Vec<OsString> = words.collect();
    match program.as_str() {
        #[cfg(target_os = "linux")]
        LAUNCHER => Some(namespaces::launch()),
        #[cfg(target_os = "linux")]
        NETWORK_PROBE => Some(namespaces::probe_network()),
        INIT => Some(init::main(&words)),
        SESSION => Some(commands::start_session(&words)),
        other => programs::find(other).map(|program| program(&words)),
    }
}
