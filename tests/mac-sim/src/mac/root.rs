//! The Mac's root: its own directories, and the machine's programs below `/System/Linux`.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use mac_sim::settings::{HostDirectory, LINUX, SIMULATOR, Settings};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{chdir, pivot_root, sethostname};

use super::programs;

/// The machine's directories that hold its programs and their libraries.
const MACHINE: &[&str] = &["usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc"];

/// The directories of macOS that not even root can write to.
const SEALED: &[&str] = &["bin", "sbin", "usr/bin", "usr/sbin", "System/Linux/usr", "System/Linux/etc"];

/// Where the setuid copy of this binary is.
pub(super) const SETUID: &str = "/System/Simulator/setuid";

/// Builds the root of the Mac in this directory and makes it this process's root.
pub(super) fn enter(host: &HostDirectory, settings: &Settings) -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUTS | CloneFlags::CLONE_NEWIPC)?;
    sethostname(host_name(&host.root(), settings))?;
    mount_at(None, "/".as_ref(), None, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None)?;
    let root = host.mount();
    fs::create_dir_all(&root)?;
    bind(&host.root(), &root)?;
    bind(&host.simulator(), &inside(&root, SIMULATOR))?;
    for (name, program) in [
        ("mac-sim", Some(std::env::current_exe()?)),
        ("tart", settings.tart.clone()),
        ("pfctl", settings.pfctl.clone()),
    ] {
        if let Some(program) = program {
            let place = inside(&root, SIMULATOR).join(name);
            File::create(&place)?;
            bind(&program, &place)?;
        }
    }
    if let Some(openssh) = &settings.openssh {
        let place = inside(&root, SIMULATOR).join("openssh");
        fs::create_dir_all(&place)?;
        bind(openssh, &place)?;
    }
    mount_machine(&inside(&root, LINUX))?;
    mount_devices(&root.join("dev"))?;
    let quiet = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount_at(Some("proc".as_ref()), &root.join("proc"), Some("proc"), quiet, None)?;
    install_setuid(&inside(&root, SETUID))?;
    for sealed in SEALED.iter().map(|name| root.join(name)) {
        bind(&sealed, &sealed)?;
        mount_at(None, &sealed, None, MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY, None)?;
    }
    // The old root goes on top of the new one, so that unmounting the topmost leaves the new one alone.
    chdir(&root)?;
    pivot_root(".", ".")?;
    umount2(".", MntFlags::MNT_DETACH)?;
    chdir("/")?;
    Ok(())
}

/// The host name that `scutil` has set, or that of a new Mac.
fn host_name(root: &Path, settings: &Settings) -> String {
    programs::names::read(&root.join("Library/Preferences/SystemConfiguration/preferences.plist"), "HostName")
        .unwrap_or_else(|| settings.host_name.clone())
}

fn inside(root: &Path, path: &str) -> std::path::PathBuf {
    root.join(path.trim_start_matches('/'))
}

/// The machine's programs, as they are.
fn mount_machine(place: &Path) -> io::Result<()> {
    for name in MACHINE {
        let (machine, target) = (Path::new("/").join(name), place.join(name));
        if let Ok(link) = fs::read_link(&machine) {
            if target.symlink_metadata().is_err() {
                symlink(link, target)?;
            }
        } else if machine.is_dir() {
            fs::create_dir_all(&target)?;
            bind(&machine, &target)?;
        }
    }
    Ok(())
}

/// Puts a setuid copy of this binary into memory that only this Mac sees: the machine's disk never has one.
fn install_setuid(place: &Path) -> io::Result<()> {
    fs::create_dir_all(place)?;
    mount_at(Some("setuid".as_ref()), place, Some("tmpfs"), MsFlags::empty(), Some("mode=755"))?;
    let copy = place.join("sudo");
    fs::copy("/proc/self/exe", &copy)?;
    fs::set_permissions(&copy, Permissions::from_mode(0o4755))
}

/// Puts memory that only this boot sees at a place.
pub(super) fn mount_memory(place: &Path) -> io::Result<()> {
    fs::create_dir_all(place)?;
    mount_at(Some("memory".as_ref()), place, Some("tmpfs"), MsFlags::MS_NOSUID, Some("mode=755"))
}

/// The few devices that programs need, and terminals of the Mac's own.
fn mount_devices(dev: &Path) -> io::Result<()> {
    mount_at(Some("dev".as_ref()), dev, Some("tmpfs"), MsFlags::MS_NOSUID, Some("mode=755"))?;
    // Its owner is the user at the screen.
    File::create(dev.join("console"))?;
    for name in ["full", "null", "random", "tty", "urandom", "zero"] {
        File::create(dev.join(name))?;
        bind(&Path::new("/dev").join(name), &dev.join(name))?;
    }
    // The user who is logged in at the screen owns it, and root while there is none.
    File::create(dev.join("console"))?;
    for (name, target) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "fd/0"),
        ("stdout", "fd/1"),
        ("stderr", "fd/2"),
        ("ptmx", "pts/ptmx"),
    ] {
        symlink(target, dev.join(name))?;
    }
    for name in ["pts", "shm"] {
        fs::create_dir(dev.join(name))?;
    }
    fs::set_permissions(dev.join("shm"), Permissions::from_mode(0o1777))?;
    let quiet = MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
    let options = Some("newinstance,ptmxmode=0666,mode=0620");
    mount_at(Some("devpts".as_ref()), &dev.join("pts"), Some("devpts"), quiet, options)
}

fn bind(from: &Path, to: &Path) -> io::Result<()> {
    mount_at(Some(from), to, None, MsFlags::MS_BIND, None)
}

fn mount_at(
    from: Option<&Path>,
    to: &Path,
    kind: Option<&str>,
    flags: MsFlags,
    options: Option<&str>,
) -> io::Result<()> {
    mount(from, to, kind, flags, options).map_err(|error| {
        io::Error::other(format!("mount {} ({}): {error}", to.display(), kind.unwrap_or("bind")))
    })
}
