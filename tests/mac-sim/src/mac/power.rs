//! The Mac's hardware: it has power as long as its stdin is open, and boots until it is switched off.

use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use mac_sim::settings::{HostDirectory, Settings};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::geteuid;

use super::layout;

/// launchd's exit code when the Mac is to boot again.
pub(super) const REBOOT: u8 = 3;

/// The names under which this binary boots the Mac, and is its first process.
pub(super) const BOOTER: &str = "mac-sim-boot";
pub(super) const LAUNCHD: &str = "launchd";

/// Runs the Mac in a directory until it is switched off, or until stdin ends.
pub(super) fn run(host: &Path) -> ExitCode {
    match try_run(&HostDirectory::new(host), host) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mac-sim: {error}");
            ExitCode::FAILURE
        }
    }
}

fn try_run(host: &HostDirectory, path: &Path) -> io::Result<()> {
    if !geteuid().is_root() {
        return Err(io::Error::other("a simulated Mac needs root: it has users and mounts of its own"));
    }
    let settings = Settings::read(&host.settings())?;
    // The hardware holds the port, so that it stays the same however often the Mac boots.
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    layout::build(host, &settings)?;
    let hidden = path.join(".port");
    fs::write(&hidden, listener.local_addr()?.port().to_string())?;
    fs::rename(&hidden, host.port())?;
    loop {
        // stdout is the only descriptor that a child can be given without unsafe code besides stdin, which is the power.
        let status = Command::new("/proc/self/exe")
            .arg0(BOOTER)
            .current_dir(path)
            .stdout(Stdio::from(OwnedFd::from(listener.try_clone()?)))
            .status()?;
        if status.code() != Some(REBOOT.into()) {
            eprintln!("mac-sim: the Mac is off ({status})");
            return Ok(());
        }
        eprintln!("mac-sim: the Mac reboots");
    }
}

/// Enters a new PID namespace and starts launchd in it: no process can have a second one.
pub(super) fn boot() -> ExitCode {
    if let Err(error) = unshare(CloneFlags::CLONE_NEWPID) {
        eprintln!("mac-sim: no PID namespace: {error}");
        return ExitCode::FAILURE;
    }
    let status = Command::new("/proc/self/exe").arg0(LAUNCHD).status();
    match status {
        Ok(status) => ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)),
        Err(error) => {
            eprintln!("mac-sim: no launchd: {error}");
            ExitCode::FAILURE
        }
    }
}
