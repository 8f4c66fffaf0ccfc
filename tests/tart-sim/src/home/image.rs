//! `image.json`: what a simulated image is like, and how the guest in it behaves.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fastrand::Rng;
use nix::unistd::geteuid;
use serde::Deserialize;

use crate::home::config::{Config, Os};

/// The number of the first user of a Mac.
const FIRST_USER: u32 = 501;

/// The keys of `image.json`; all of them are optional.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(crate) struct Image {
    /// The guest's operating system.
    pub(crate) os: Os,
    /// CPUs of a VM cloned from this image.
    pub(crate) cpu: u32,
    /// The least `set --cpu` accepts.
    pub(crate) cpu_min: u32,
    /// Memory of a VM cloned from this image.
    #[serde(rename = "memoryMiB")]
    pub(crate) memory_mib: u64,
    /// The least `set --memory` accepts.
    #[serde(rename = "memoryMinMiB")]
    pub(crate) memory_min_mib: u64,
    /// Logical size of the disk.
    #[serde(rename = "diskGB")]
    pub(crate) disk_gb: f64,
    /// What the image takes on disk, for `Size` and for pruning; what its files really take, if not given.
    #[serde(rename = "allocatedGB")]
    pub(crate) allocated_gb: Option<f64>,
    /// What a pull transfers.
    #[serde(rename = "compressedGB")]
    pub(crate) compressed_gb: f64,
    /// How long a pull of the layers takes.
    pub(crate) pull_seconds: f64,
    /// The command that the guest runs at boot.
    pub(crate) boot: Vec<String>,
    /// Seconds from the start until the guest is up and has its address.
    pub(crate) boot_delay: f64,
    /// Seconds from then until the guest agent answers.
    pub(crate) agent_delay: f64,
    /// Whether there is a guest agent at all.
    pub(crate) agent: bool,
    /// The guest agent's version: one older than 0.10 ignores what that one brought.
    pub(crate) agent_version: String,
    /// Whether the guest agent says first of all that a command has started.
    pub(crate) agent_says_started: bool,
    /// Whether the guest agent breaks off at the end of a command instead of telling its exit code.
    pub(crate) agent_forgets_exit: bool,
    /// Seconds that a shutdown from within takes at least.
    pub(crate) shutdown_delay: f64,
    /// Whether the guest's system files are read-only, as macOS has them.
    pub(crate) sealed: bool,
    /// The user that commands run as.
    pub(crate) user: String,
    /// That user's number; 0 is one who is refused nothing. See [`Image::user_number`] for the default.
    pub(crate) uid: Option<u32>,
    /// Whether that user can use `sudo` without a password.
    pub(crate) sudo: bool,
    /// The program that is the guest's `/bin/sh`; the machine's own, if not given.
    pub(crate) shell: Option<PathBuf>,
}

impl Default for Image {
    fn default() -> Self {
        Self {
            os: Os::Darwin,
            cpu: 4,
            cpu_min: 4,
            memory_mib: 8192,
            memory_min_mib: 4096,
            disk_gb: 50.0,
            allocated_gb: None,
            compressed_gb: 18.1,
            pull_seconds: 0.0,
            boot: Vec::new(),
            boot_delay: 0.0,
            agent_delay: 0.0,
            agent: true,
            agent_version: "0.11.0".into(),
            agent_says_started: false,
            agent_forgets_exit: false,
            shutdown_delay: 0.1,
            sealed: true,
            user: "admin".into(),
            uid: None,
            sudo: true,
            shell: None,
        }
    }
}

impl Image {
    /// Reads an `image.json`; a key that does not exist is an error, so that a typing mistake does not pass unseen.
    pub(crate) fn read(path: &Path) -> io::Result<Self> {
        serde_json::from_slice(&fs::read(path)?).map_err(io::Error::from)
    }

    /// The configuration of a VM made from this image: the same for every pull, MAC address included.
    pub(crate) fn config(&self, rng: &mut Rng) -> Config {
        Config {
            cpu_count_min: self.cpu_min,
            cpu_count: self.cpu,
            memory_size_min: self.memory_min_mib << 20,
            memory_size: self.memory_mib << 20,
            ..Config::new(self.os, rng)
        }
    }

    /// Logical size of the disk in bytes.
    pub(crate) fn disk_bytes(&self) -> u64 {
        gigabytes(self.disk_gb)
    }

    /// What the image takes on disk in bytes, if it says so.
    pub(crate) fn allocated_bytes(&self) -> Option<u64> {
        self.allocated_gb.map(gigabytes)
    }

    /// What a pull transfers in bytes.
    pub(crate) fn compressed_bytes(&self) -> u64 {
        gigabytes(self.compressed_gb)
    }

    /// The number of the user that commands run as: that of the first user of a Mac, as in the real images. Only root can start
    /// processes of another user, so that without root, or in a namespace without that user, the user is root in a namespace of its own.
    pub(crate) fn user_number(&self) -> u32 {
        let is_possible = || geteuid().is_root() && is_mapped(FIRST_USER);
        self.uid.unwrap_or_else(|| if is_possible() { FIRST_USER } else { 0 })
    }

    /// Whether the guest agent is older than 0.10, which knows neither `env` nor `workdir` nor `detach`.
    pub(crate) fn has_old_agent(&self) -> bool {
        self.agent_is_before(10)
    }

    /// Whether the guest agent knows `ResolveIP`, as all do since 0.5.
    pub(crate) fn agent_resolves_ip(&self) -> bool {
        !self.agent_is_before(5)
    }

    fn agent_is_before(&self, minor: u32) -> bool {
        let mut numbers = self.agent_version.split('.').map(|number| number.parse::<u32>().unwrap_or(0));
        (numbers.next(), numbers.next()) < (Some(0), Some(minor))
    }

    /// How long a pull of the layers takes.
    pub(crate) fn pull_duration(&self) -> Duration {
        Duration::try_from_secs_f64(self.pull_seconds).unwrap_or_default()
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "sizes are far below 2^53 bytes")]
fn gigabytes(gb: f64) -> u64 {
    (gb * 1e9) as u64
}

/// Whether this process's user namespace has a user with this number.
fn is_mapped(uid: u32) -> bool {
    let Ok(map) = std::fs::read_to_string("/proc/self/uid_map") else { return true };
    map.lines().any(|line| {
        let numbers: Vec<u64> = line.split_whitespace().filter_map(|number| number.parse().ok()).collect();
        matches!(numbers[..], [first, _, count] if (first..first + count).contains(&uid.into()))
    })
}
