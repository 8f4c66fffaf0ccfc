//! What happens before launchd's loop: the root, what a boot clears, and the jobs that are loaded.

use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::fd::AsFd as _;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::SystemTime;

use mac_sim::control::Domain;
use mac_sim::fault::Fault;
use mac_sim::settings::{HostDirectory, Settings, TART_HOST, UID};
use nix::unistd::dup2_stdout;

use super::job::{Job, Kind};
use super::{Launchd, definition::Definition, disabled, log};
use crate::mac::{programs, root, sshd};

/// What the loop needs.
pub(super) struct Booted {
    pub(super) settings: Settings,
    pub(super) listener: TcpListener,
}

/// The Mac's own jobs.
pub(super) const LOGINWINDOW: &str = "com.apple.loginwindow";
const SSHD: &str = "com.openssh.sshd";

/// Whether a job belongs to macOS, which protects it.
pub(super) fn is_apples(label: &str) -> bool {
    [LOGINWINDOW, SSHD].contains(&label)
}

/// The device whose owner is the user at the screen.
const CONSOLE: &str = "/dev/console";

/// Enters the Mac's root, and clears what a boot clears. The current directory is that of the simulated Mac.
pub(super) fn prepare() -> io::Result<Booted> {
    let host = HostDirectory::new(&std::env::current_dir()?);
    let settings = Settings::read(&host.settings())?;
    let listener = TcpListener::from(io::stdout().as_fd().try_clone_to_owned()?);
    dup2_stdout(io::stderr())?;
    let _ = fs::remove_file(host.control_socket());
    root::enter(&host, &settings)?;
    for directory in ["/private/tmp", "/private/var/run", "/run"] {
        clear(directory.as_ref())?;
    }
    load_packet_filter();
    let started = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    programs::host_facts::write_boot(started, &uuid())?;
    Ok(Booted { settings, listener })
}

/// Loads the stock rules of the packet filter. Its state is the kernel's, in memory: a boot forgets it, and a full disk does not touch it.
fn load_packet_filter() {
    if let Err(error) = root::mount_memory(&Path::new(TART_HOST).join("pf")) {
        log(&format!("pf: {error}"));
    }
    let program = Path::new("/sbin/pfctl");
    if !program.exists() {
        return;
    }
    let mut command = Command::new(program);
    command
        .args(["-q", "-f", "/etc/pf.conf"])
        .env_clear()
        .env("TART_SIM_HOST", TART_HOST)
        .stdin(Stdio::null());
    match command.status() {
        Ok(status) if status.success() => {}
        Ok(status) => log(&format!("pfctl: {status}")),
        Err(error) => log(&format!("pfctl: {error}")),
    }
}

/// A new session of the kernel has a new name.
fn uuid() -> String {
    let number = fastrand::u128(..);
    let hex = format!("{number:032X}");
    format!("{}-{}-4{}-A{}-{}", &hex[..8], &hex[8..12], &hex[13..16], &hex[17..20], &hex[20..])
}

fn clear(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// The property lists of a directory, in the order of their names.
fn lists(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut lists: Vec<_> =
        entries.filter(|path| path.extension().is_some_and(|end| end == "plist")).collect();
    lists.sort();
    lists
}

impl Launchd {
    /// Loads the Mac's own jobs, then those in `/Library/LaunchDaemons`. A list that cannot be loaded is skipped without a word.
    pub(super) fn load_at_boot(&mut self) {
        for (file, list) in
            [(LOGINWINDOW, programs::loginwindow::PROPERTY_LIST), ("ssh", sshd::PROPERTY_LIST)]
        {
            match Definition::parse(list.as_bytes()) {
                Ok(definition) => {
                    let path = PathBuf::from(format!("/System/Library/LaunchDaemons/{file}.plist"));
                    self.load(Domain::System, Job::new(definition, path, Kind::LaunchDaemon));
                }
                Err(error) => log(&format!("{file}: {error}")),
            }
        }
        for path in lists("/Library/LaunchDaemons".as_ref()) {
            self.load_quietly(Domain::System, &path);
        }
    }

    /// Opens the session of a user at the screen, and loads the user's agents.
    pub(super) fn open_session(&mut self, uid: u32) {
        self.sessions.insert(uid);
        own_console(uid);
        let own = (uid == UID).then(|| format!("/Users/{}/Library/LaunchAgents", self.settings.user));
        for directory in ["/Library/LaunchAgents".to_owned()].into_iter().chain(own) {
            for path in lists(directory.as_ref()) {
                self.load_quietly(Domain::Gui(uid), &path);
            }
        }
    }

    fn load_quietly(&mut self, domain: Domain, path: &Path) {
        let loaded = Self::definition(domain, path).and_then(|definition| {
            let label = definition.label.clone();
            if disabled::is_disabled(domain, &label, definition.disabled) {
                return Ok(());
            }
            if self.faults.hits_label(Fault::BtmDeny, &label).map_err(|error| super::refuse(&error))? {
                log(&format!("{label}: denied by Background Task Management"));
                return Ok(());
            }
            self.load(domain, Job::new(definition, path.to_owned(), kind(domain)));
            Ok(())
        });
        if let Err(refusal) = loaded {
            log(&format!("{} is not loaded: {refusal}", path.display()));
        }
    }
}

/// Makes a user the one at the screen.
pub(super) fn own_console(uid: u32) {
    if let Err(error) = chown(CONSOLE, Some(uid), None) {
        log(&format!("{CONSOLE}: {error}"));
    }
}

/// The kind of the jobs of a domain.
pub(super) fn kind(domain: Domain) -> Kind {
    match domain {
        Domain::System => Kind::LaunchDaemon,
        Domain::User(_) | Domain::Gui(_) => Kind::LaunchAgent,
    }
}
