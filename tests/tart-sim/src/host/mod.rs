//! The simulated Mac, `TART_SIM_HOST`: everything that is not one user's.

pub(crate) mod command_faults;
pub(crate) mod dhcp_leases;
pub(crate) mod faults;
pub(crate) mod running_vms;

use std::env;
use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::OnceLock;

/// The file that stands for the clipboard of the user who is logged in at the Mac's screen.
pub(crate) fn clipboard() -> PathBuf {
    dir().join("clipboard")
}

/// The directory that stands for the Mac and what it can reach.
pub(crate) fn dir() -> PathBuf {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let dir = env::var_os("TART_SIM_HOST").filter(|path| !path.is_empty()).map_or_else(
            || env::temp_dir().join(format!("tart-sim-host-{}", nix::unistd::getuid())),
            PathBuf::from,
        );
        // Absolute, because commands that use the control socket change their directory later.
        std::path::absolute(&dir).unwrap_or(dir)
    })
    .clone()
}

/// Adds a line to a record of what happened on the Mac. Lines of several commands at once do not mix.
pub(crate) fn record(file: &str, line: &str) {
    let file = File::options().create(true).append(true).open(dir().join(file));
    // A test that reads the file will miss the line.
    let _ = file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
}
