//! The faults of any command, before it does anything: latency, hanging, garbage instead of output.

use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use tart_sim::fault::{self, Fault, Latency};

use crate::host::{self, faults};
use crate::output::stdout;

/// How often a hanging command looks whether the fault is gone.
const POLL: Duration = Duration::from_millis(20);

/// Whether the command goes on afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    Proceed,
    /// The command has printed garbage and succeeds.
    Finished,
}

/// Does to a command what its faults say.
pub(crate) fn apply(command: &str) -> Effect {
    if faults::is_on(Fault::Calls) {
        host::record("calls", command);
    }
    let latencies = faults::parameter(Fault::Latency).and_then(|text| fault::latencies(&text));
    if let Some(latency) = latencies.and_then(|latencies| Latency::of_command(&latencies, command)) {
        thread::sleep(latency);
    }
    if faults::is_on_for(Fault::HoldPipe, command) {
        hold_pipe();
    }
    if faults::is_on_for(Fault::Hang, command) {
        hang(command);
    }
    if faults::is_on_for(Fault::Garbage, command) {
        stdout::write("\u{1b}[0m[\n  {\n    \"Name\" : \"\u{fffd}\u{0}");
        return Effect::Finished;
    }
    Effect::Proceed
}

/// Does nothing, not even on SIGINT, until the fault is switched off.
fn hang(command: &str) {
    let interrupt = SigSet::from_iter([Signal::SIGINT]);
    let mask = interrupt.thread_swap_mask(SigmaskHow::SIG_BLOCK);
    while faults::is_on_for(Fault::Hang, command) {
        thread::sleep(POLL);
    }
    // Setting a former mask does not fail.
    let _ = mask.and_then(|mask| mask.thread_set_mask());
}

/// Starts a process that outlives this one, with its stdout and stderr, until the fault is switched off.
fn hold_pipe() {
    let script = "while [ -e \"$0\" ]; do sleep 0.1; done";
    let _ = Command::new("sh")
        .args(["-c", script])
        .arg(faults::path(Fault::HoldPipe))
        .stdin(Stdio::null())
        .spawn();
}
