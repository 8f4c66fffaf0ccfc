//! The commands of `pfctl`.

mod enable;
mod flush;
mod show;
mod table;

use std::fs::OpenOptions;
use std::io::Write;
use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use crate::cli::{self, Call, UsageError};
use crate::fault::{self, Fault};
use crate::kernel::Kernel;
use crate::load;
use crate::mac::Mac;
use crate::output::Output;

/// How often a call that hangs looks whether it still has to.
const HANG_POLL: Duration = Duration::from_millis(20);

/// Runs `pfctl` with these arguments on a simulated Mac.
pub fn run(mac: &Mac, arguments: &[String]) -> Output {
    let mut output = Output::default();
    if let Err(error) = mac.faults().check() {
        output.note(format!("pfctl-sim: {error}"));
        output.code = fault::REFUSED;
        return output;
    }
    if mac.faults().is_on(Fault::Calls) {
        let file = OpenOptions::new().append(true).create(true).open(mac.calls_path());
        if let Err(error) = file.and_then(|mut file| writeln!(file, "{}", arguments.join(" "))) {
            output.note(format!("pfctl-sim: {}: {error}", mac.calls_path().display()));
            output.code = fault::REFUSED;
            return output;
        }
    }
    while mac.faults().is_on(Fault::Hang) {
        thread::sleep(HANG_POLL);
    }
    match cli::parse(arguments) {
        Ok(call) => execute(mac, &call, &mut output),
        Err(UsageError::Usage) => {
            output.note("usage: pfctl [-AdeghmNnOqRrvz] [-a anchor] [-D macro=value] [-F modifier]");
            output.code = 1;
        }
        Err(UsageError::Unsimulated(what)) => {
            output.note(format!("pfctl-sim does not simulate {what}"));
            output.code = fault::REFUSED;
        }
    }
    output
}

/// What a call does, in the real program's order.
fn execute(mac: &Mac, call: &Call, output: &mut Output) {
    if mac.faults().is_on(Fault::NotRoot) {
        output.fail("/dev/pf: Permission denied");
        return;
    }
    if call.file.is_some() && call.anchor.is_empty() {
        output.note("pfctl: Use of -f option, could result in flushing of rules");
        output.note("present in the main ruleset added by the system at startup.");
        output.note("See /etc/pf.conf for further details.\n");
    }
    output.note("No ALTQ support in kernel\nALTQ related functions disabled");
    let done = mac.update(|kernel| at_once(call, kernel, output));
    if let Err(error) = done {
        output.fail(format!("/dev/pf: {error}"));
    }
    if output.code == 0
        && let Some(file) = &call.file
    {
        load::load(mac, file, &call.anchor, call.is_dry, output);
    }
    if output.code == 0
        && let Some(enabling) = &call.enabling
        && let Err(error) = mac.update(|kernel| enable::enable(enabling, kernel, output))
    {
        output.fail(format!("/dev/pf: {error}"));
    }
}

/// All that comes before the file is loaded.
fn at_once(call: &Call, kernel: &mut Kernel, output: &mut Output) {
    if call.is_disabling {
        enable::disable(kernel, output);
    }
    if let Some(show) = call.show {
        show::show(show, call, kernel, output);
    }
    if let Some(flush) = call.flush {
        flush::flush(flush, &call.anchor, kernel, output);
    }
    if let Some(host) = &call.killed_host {
        kill_states(host, kernel, output);
    }
    if let (Some(name), Some(command)) = (&call.table, call.table_command) {
        table::table(command, name, call, kernel, output);
    }
}

/// `-k host`.
fn kill_states(host: &str, kernel: &mut Kernel, output: &mut Output) {
    let Ok(address) = host.parse::<IpAddr>() else {
        output.fail(format!("getaddrinfo: {host}: nodename nor servname provided, or not known"));
        return;
    };
    let before = kernel.states.len();
    kernel.states.retain(|state| !state.is_of(address));
    let killed = before - kernel.states.len();
    output.note(format!("killed {killed} states from 1 sources and 0 destinations"));
}
