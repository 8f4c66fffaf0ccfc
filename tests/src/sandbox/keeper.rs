//! The process that cleans up after a sandbox's owner.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{Pid, getppid, setsid};

use super::{MARKER, processes};
use crate::disk;

const PREFIX: &str = "tk-";
/// A sandbox whose file of this name is not locked has lost its keeper.
const LOCK: &str = ".keeper";
/// Leaves room for the sockets of VMs: the path of a Unix socket has at most 104 bytes on macOS.
const LONGEST_ROOT: usize = 20;

/// Makes a sandbox, tells its path on stdout, and removes it when the process that started this one is gone.
pub fn run() -> Result<()> {
    let owner = getppid();
    // Ctrl-C in the owner's terminal is not for us.
    setsid().context("cannot start a session")?;
    let root = root()?;
    let (sandbox, _lock) = create(&root)?;
    // The owner may be gone already; then there is only the cleaning to do.
    let _ = writeln!(io::stdout(), "{}", sandbox.display());

    for stale in stale(&root)? {
        if let Err(error) = clean(&stale.0) {
            eprintln!("sandbox-keeper: {error:#}");
        }
    }
    wait_for_end_of(owner);
    clean(&sandbox)
}

/// The directory that holds all sandboxes: the temporary one, when its path is short enough.
fn root() -> Result<PathBuf> {
    let preferred = std::env::temp_dir();
    let root = if preferred.as_os_str().len() <= LONGEST_ROOT { preferred } else { PathBuf::from("/tmp") };
    root.canonicalize().with_context(|| format!("cannot use {} for sandboxes", root.display()))
}

/// Makes a sandbox's directory and its held lock.
fn create(root: &Path) -> Result<(PathBuf, File)> {
    let directory = tempfile::Builder::new()
        .prefix(PREFIX)
        // It will hold the keys of a cluster.
        .permissions(Permissions::from_mode(0o700))
        .tempdir_in(root)
        .with_context(|| format!("cannot make a sandbox in {}", root.display()))?
        .keep();
    // Renamed once it is held: a lock that can be seen and is free is stale.
    let new = directory.join(".keeper.new");
    let lock = File::create(&new).with_context(|| format!("cannot make {}", new.display()))?;
    lock.try_lock().with_context(|| format!("cannot lock {}", new.display()))?;
    fs::rename(&new, directory.join(LOCK)).context("cannot name a sandbox's lock")?;
    Ok((directory, lock))
}

/// The sandboxes whose keepers are dead, with their locks, which this process now holds.
fn stale(root: &Path) -> Result<Vec<(PathBuf, File)>> {
    let mut stale = Vec::new();
    for entry in fs::read_dir(root).with_context(|| format!("cannot list {}", root.display()))? {
        let Ok(entry) = entry else { continue };
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        // A sandbox that this process may not open is another user's.
        if let Ok(lock) = File::open(entry.path().join(LOCK))
            && lock.try_lock().is_ok()
        {
            stale.push((entry.path(), lock));
        }
    }
    Ok(stale)
}

/// Returns when stdin has ended, or when this process has another parent: on macOS a process that was forked at the wrong moment may
/// hold the other end of stdin open.
fn wait_for_end_of(owner: Pid) {
    let stdin = io::stdin();
    while getppid() == owner {
        let mut polled = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
        match poll(&mut polled, PollTimeout::from(1000_u16)) {
            Ok(0) | Err(Errno::EINTR) => {}
            // The owner never writes: this is the end, or an error that makes waiting pointless.
            _ => return,
        }
    }
}

/// Kills all that runs in a sandbox, unmounts all that is mounted there, and removes its directory.
fn clean(sandbox: &Path) -> Result<()> {
    processes::kill_all(MARKER, sandbox)?;
    disk::unmount_below(sandbox);
    remove(sandbox).with_context(|| format!("cannot remove sandbox {}", sandbox.display()))
}

fn remove(directory: &Path) -> io::Result<()> {
    if fs::remove_dir_all(directory).is_ok() {
        return Ok(());
    }
    // Something inside is read-only, as volumes may be.
    make_writable(directory);
    fs::remove_dir_all(directory)
}

fn make_writable(directory: &Path) {
    let _ = fs::set_permissions(directory, Permissions::from_mode(0o700));
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            make_writable(&entry.path());
        }
    }
}
