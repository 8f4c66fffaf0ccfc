//! What a simulated Mac is made from, and where its parts are.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Where the Mac's own programs find the simulator's files.
pub const SIMULATOR: &str = "/System/Simulator";
/// Where the machine's programs are inside the Mac.
pub const LINUX: &str = "/System/Linux";
/// `TART_SIM_HOST` inside the Mac.
pub const TART_HOST: &str = "/private/var/db/tart-sim";

/// The owner of a Mac. The first user of macOS has number 501 and is in the groups staff (20) and admin (80).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Settings {
    /// The short name of the only user.
    pub user: String,
    /// That user's password.
    pub password: String,
    /// The host name before anything changes it.
    pub host_name: String,
    /// Lines of the user's `authorized_keys`.
    pub authorized_keys: Vec<String>,
    /// A directory with `usr/sbin/sshd`, or with nothing if the machine has its own; without it the Mac has no sshd.
    pub openssh: Option<PathBuf>,
    /// The program that becomes `/opt/homebrew/bin/tart`.
    pub tart: Option<PathBuf>,
    /// The program that becomes `/sbin/pfctl`.
    pub pfctl: Option<PathBuf>,
}

/// The number of the Mac's user.
pub const UID: u32 = 501;
/// The group of that user, staff.
pub const GID: u32 = 20;
/// The group of administrators.
pub const ADMIN: u32 = 80;

/// The directory of a simulated Mac on the machine that runs it.
#[derive(Debug, Clone)]
pub struct HostDirectory(PathBuf);

impl HostDirectory {
    /// A simulated Mac in this directory.
    pub fn new(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// The Mac's own files.
    pub fn root(&self) -> PathBuf {
        self.0.join("root")
    }

    /// What becomes [`SIMULATOR`] inside the Mac.
    pub fn simulator(&self) -> PathBuf {
        self.0.join("simulator")
    }

    /// Where the namespace's root is mounted.
    pub fn mount(&self) -> PathBuf {
        self.0.join("mount")
    }

    /// The file that holds the number of the port on which sshd is reached.
    pub fn port(&self) -> PathBuf {
        self.0.join("port")
    }

    /// The socket of launchd.
    pub fn control_socket(&self) -> PathBuf {
        self.simulator().join("launchd.sock")
    }

    /// The file that has a line for each call of a simulated program.
    pub fn calls(&self) -> PathBuf {
        self.simulator().join("calls")
    }

    /// The settings, which only root may read: the password is in them.
    pub fn settings(&self) -> PathBuf {
        self.simulator().join("settings.json")
    }
}

impl Settings {
    /// Reads the settings from a file.
    pub fn read(path: &Path) -> io::Result<Self> {
        let told = |error| io::Error::other(format!("{}: {error}", path.display()));
        let text = fs::read_to_string(path)
            .map_err(|error| io::Error::other(format!("{}: {error}", path.display())))?;
        serde_json::from_str(&text).map_err(told)
    }

    /// Reads the settings from inside the Mac.
    pub fn of_this_mac() -> io::Result<Self> {
        Self::read(&Path::new(SIMULATOR).join("settings.json"))
    }
}
