//! Namespaces and mounts: how a guest gets process ids, a host name, a root file system and perhaps a network of its own.

mod mounts;
mod netlink;
mod network;
mod root;
mod settings;
mod shares;

use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, lchown, symlink};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus};

use nix::errno::Errno;
use nix::libc;
use nix::mount::MsFlags;
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{getgid, getuid};

use super::commands::Environment;
use super::init::{ISOLATED, SEARCH_PATH};
use super::machine::exit;
use super::{Boot, INIT, programs};
use crate::home::file_lock::FileLock;

pub(super) use mounts::{mount_memory, with_open_devices};
pub(super) use network::probe as probe_network;
pub(super) use root::CLIPBOARD;
pub(super) use shares::mount_share;

/// The argument that tells init that it is root only in a user namespace of its own.
const ROOTLESS: &str = "rootless";

/// Enters a new PID namespace, starts init in it and ends with init's exit code.
pub(super) fn launch() -> ExitCode {
    // Wait for the previous guest of this VM to end: two guests must not use the same files.
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
    // The kernel leaves the overlays' work directories with mode 0, and only this user may remove them.
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

/// The exit code of init. The kernel ends it by a signal when a process in the namespace calls reboot(2).
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
    let is_rootless = words.iter().any(|word| word == ROOTLESS);
    if is_rootless && boot.uid != 0 {
        return Err(io::Error::other("an image whose user is not root needs root on this machine"));
    }
    if boot.uid != 0 {
        give_home(boot)?;
    }
    if boot.own_network {
        // While the machine's /proc is in sight.
        network::enter(boot.address)?;
    }
    root::enter(boot, is_rootless)?;
    let own_program = Path::new(if boot.uid == 0 { "/proc/1/exe" } else { root::OWN_PROGRAM });
    programs::install(own_program, |directory| directory.into())?;
    if let Some(shell) = &boot.shell {
        fs::remove_file("/bin/sh")?;
        symlink(shell, "/bin/sh")?;
    }
    if boot.uid != 0 {
        if boot.sudo {
            install_sudo()?;
        }
        chown(boot.home(), Some(boot.uid), Some(boot.gid()))?;
    }
    settings::write(boot)?;
    if boot.sealed {
        root::seal()?;
    }
    Ok(Environment::new(boot, Path::new("/"), own_program.into(), SEARCH_PATH.into()))
}

/// Gives the user the home directory of the image: its files are those of the user who wrote them. In the image itself, all of whose guests
/// have the same user: the guest would need a copy of each file.
fn give_home(boot: &Boot) -> io::Result<()> {
    let home = Path::new("lower").join(boot.home().strip_prefix("/").map_err(io::Error::other)?);
    let Ok(real) = fs::canonicalize(&home) else { return Ok(()) };
    // Never through an image's link, which is meant for the guest's root.
    if !real.starts_with(fs::canonicalize("lower")?) || real.metadata()?.uid() == boot.uid {
        return Ok(());
    }
    let mut left = vec![real];
    while let Some(path) = left.pop() {
        lchown(&path, Some(boot.uid), Some(boot.gid()))?;
        if path.symlink_metadata()?.is_dir() {
            left.extend(fs::read_dir(&path)?.flatten().map(|entry| entry.path()));
        }
    }
    Ok(())
}

/// Makes `sudo` a setuid copy of this binary. It is in memory that only this guest sees, so that the machine's disk never has a
/// setuid program of the simulator.
fn install_sudo() -> io::Result<()> {
    let place = Path::new("/dev/.sudo");
    fs::create_dir(place)?;
    mounts::mount_at(Some("sudo".as_ref()), place, Some("tmpfs"), MsFlags::empty(), Some("mode=755"))?;
    let copy = place.join("sudo");
    fs::copy("/proc/self/exe", &copy)?;
    fs::set_permissions(&copy, Permissions::from_mode(0o4755))?;
    fs::remove_file("/usr/bin/sudo")?;
    symlink(copy, "/usr/bin/sudo")
}
