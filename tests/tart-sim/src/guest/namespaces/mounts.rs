//! Mounts of a guest.

use std::fs::File;
use std::io;
use std::path::Path;

use nix::fcntl::{Flock, FlockArg};
use nix::mount::{MsFlags, mount};
use nix::sys::statvfs::{FsFlags, statvfs};

/// Mounts a directory, with all that is mounted in it, or a file in a second place.
pub(super) fn bind(from: &Path, to: &Path) -> io::Result<()> {
    mount_at(Some(from), to, None, MsFlags::MS_BIND | MsFlags::MS_REC, None)
}

/// Makes one mount read-only, not what is mounted in it.
pub(super) fn make_read_only(path: &Path) -> io::Result<()> {
    change(path, MsFlags::MS_RDONLY)
}

/// Makes `/dev` writable while `act` runs.
pub(in crate::guest) fn with_open_devices<T>(act: impl Fn() -> io::Result<T>) -> io::Result<T> {
    let devices = Path::new("/dev");
    // One process at a time: the first to end would make `/dev` read-only for the others.
    let directory = File::open(devices)?;
    let _turn = Flock::lock(directory, FlockArg::LockExclusive).map_err(|(_, error)| error)?;
    change(devices, MsFlags::empty())?;
    let done = act();
    make_read_only(devices)?;
    done
}

/// Makes one mount read-only, or writable.
fn change(path: &Path, access: MsFlags) -> io::Result<()> {
    // A user namespace may add restrictions but not lift those that the mount came with.
    let present = statvfs(path)?.flags();
    let kept = [
        (FsFlags::ST_NOSUID, MsFlags::MS_NOSUID),
        (FsFlags::ST_NODEV, MsFlags::MS_NODEV),
        (FsFlags::ST_NOEXEC, MsFlags::MS_NOEXEC),
        (FsFlags::ST_NOATIME, MsFlags::MS_NOATIME),
        (FsFlags::ST_NODIRATIME, MsFlags::MS_NODIRATIME),
        (FsFlags::ST_RELATIME, MsFlags::MS_RELATIME),
    ]
    .into_iter()
    .filter(|(flag, _)| present.contains(*flag))
    .map(|(_, flag)| flag)
    .collect::<MsFlags>();
    mount_at(None, path, None, MsFlags::MS_REMOUNT | MsFlags::MS_BIND | access | kept, None)
}

/// Mounts a file system, or changes a mount when it has no type.
pub(super) fn mount_at(
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

/// Mounts a file system in memory, as the guest's `mount_tmpfs` does. Its root has the directory's mode and owner.
pub(in crate::guest) fn mount_memory(directory: &Path, size: Option<u64>) -> Result<(), String> {
    let options = size.map(|bytes| format!("size={bytes}"));
    mount(Some("tmpfs"), directory, Some("tmpfs"), MsFlags::MS_NOSUID, options.as_deref())
        .map_err(|error| error.desc().to_owned())
}
