//! A simulated Mac: its launchd, and its programs, which all are this one binary under different names.

#[cfg(target_os = "linux")]
mod mac;

use std::process::ExitCode;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    mac::main()
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    eprintln!("mac-sim: only Linux has the namespaces that a simulated Mac needs");
    ExitCode::from(mac_sim::fault::REFUSED)
}
