//! Namespaces and mounts: how a guest gets process ids, a host name and a root file system of its own.

mod mounts;
mod root;
mod settings;
mod shares;

use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus};

use nix::errno::Errno;
use nix::libc;
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{getgid, getuid};

use super::commands::Environment;
use super::init::{ISOLATED, SEARCH_PATH};
use super::machine::exit;
use super::{Boot, INIT, programs};
use crate::file_lock::FileLock;

pub(super) use shares::mount_share;

/// The argument that tells init that it is root only in a user namespace of its own.
const ROOTLESS: &str = "rootless";

/// Enters a new PID namespace, starts init in it and passes its end on.
pub(super) fn launch() -> ExitCode {
    // The guest before this one may still be dying, and two must not share their files.
    let _alone = FileLock::wait(".".as_ref());
    let mode = match enter_namespaces() {
        Ok(true) => &[ISOLATED, ROOTLESS][..],
        Ok(false) => &[ISOLATED],
        Err(error) => {
            eprintln!("no namespaces: {error}");
            return ExitCode::from(exit::NOT_ISOLATED);
        }
    };
    let status = Command::new("/proc/self/exe").arg0(INIT).args(mode).status();
    // The kernel leaves it behind, unreadable even to its owner, and nobody else could remove it.
    remove_work_directories();
    match status {
        Ok(status) => ExitCode::from(exit_code(status)),
        Err(error) => {
            eprintln!("no init: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether a user namespace was needed.
fn enter_namespaces() -> io::Result<bool> {
    match unshare(CloneFlags::CLONE_NEWPID) {
        Ok(()) => return Ok(false),
        Err(Errno::EPERM) => {}
        Err(error) => return Err(error.into()),
    }
    let (user, group) = (getuid(), getgid());
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWPID)?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("0 {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("0 {group} 1"))?;
    Ok(true)
}

/// The kernel ends a namespace's init by a signal when somebody in there calls reboot(2).
fn exit_code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(1),
        (None, Some(libc::SIGINT)) => exit::POWERED_OFF,
        (None, Some(libc::SIGHUP)) => exit::REBOOT,
        _ => 1,
    }
}

fn remove_work_directories() {
    let Ok(entries) = fs::read_dir("work") else { return };
    for entry in entries.flatten() {
        let inner = entry.path().join("work");
        let _ = fs::set_permissions(&inner, Permissions::from_mode(0o700));
    }
    let _ = fs::remove_dir_all("work");
}

/// Gives init, which was started with these arguments, the guest's root directory.
pub(super) fn enter(boot: &Boot, words: &[OsString]) -> io::Result<Environment> {
    root::enter(boot, words.iter().any(|word| word == ROOTLESS))?;
    let own_program = Path::new("/proc/1/exe");
    programs::install(own_program, |directory| directory.into())?;
    settings::write(boot)?;
    if boot.sealed {
        root::seal()?;
    }
    Ok(Environment::new(boot, Path::new("/"), own_program.into(), SEARCH_PATH.into()))
}
