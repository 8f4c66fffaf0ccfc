//! The simulated Mac: the hardware outside, launchd and all programs inside.

mod launchctl;
mod launchd;
mod layout;
mod power;
mod programs;
mod root;
mod signature;
mod sshd;

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

use mac_sim::fault::REFUSED;

/// Runs what this process was started as.
pub(super) fn main() -> ExitCode {
    let mut words = env::args_os();
    let program = words.next().unwrap_or_default();
    let name = Path::new(&program).file_name().and_then(OsStr::to_str).unwrap_or_default().to_owned();
    let words: Vec<OsString> = words.collect();
    match name.as_str() {
        power::BOOTER => power::boot(),
        power::LAUNCHD => launchd::main(),
        "xpcproxy" => launchd::xpcproxy::main(),
        "mac-sim" => match words.as_slice() {
            [command, host] if command == "power" => power::run(Path::new(host)),
            _ => {
                eprintln!("mac-sim: usage: mac-sim power DIRECTORY");
                ExitCode::from(REFUSED)
            }
        },
        _ => programs::run(&name, &words),
    }
}
