//! A directory by its descriptor.
//!
//! A guest that can write to a share can swap any name in it for a link, at any moment. So nothing here goes by a path: every
//! step is one name below an open directory, and a link is never followed.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Permissions};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use nix::dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat, readlinkat, renameat};
use nix::sys::stat::{FchmodatFlags, FileStat, Mode, SFlag, fchmodat, fstat, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, symlinkat, unlinkat};

const OPEN_DIR: OFlag =
    OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// An open directory.
#[derive(Debug)]
pub(crate) struct Dir(OwnedFd);

/// What is known of an entry of a directory, without opening it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    /// What it is.
    pub(crate) kind: EntryKind,
    /// The file system that it is on.
    pub(crate) device: u64,
    /// Its number there.
    pub(crate) inode: u64,
    /// Its permission bits.
    pub(crate) mode: u32,
    /// What it takes on disk, in bytes.
    pub(crate) used: u64,
    /// How many names it has.
    pub(crate) names: u64,
}

/// What an entry of a directory can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EntryKind {
    File,
    Directory,
    Link,
    /// A pipe, a socket or a device.
    Other,
}

impl Dir {
    /// Opens a directory by its path; only for one that no guest can put elsewhere.
    pub(crate) fn trusted(path: &Path) -> io::Result<Self> {
        Ok(Self(open(path, OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?))
    }

    /// Opens a directory in this one.
    pub(crate) fn open(&self, name: &OsStr) -> io::Result<Self> {
        Ok(Self(openat(&self.0, one(name)?, OPEN_DIR, Mode::empty())?))
    }

    /// Opens a directory in this one; `None` when there is nothing of that name.
    pub(crate) fn find(&self, name: &OsStr) -> io::Result<Option<Self>> {
        absent_is_none(self.open(name))
    }

    /// Makes a new directory in this one.
    pub(crate) fn create(&self, name: &OsStr, mode: u32) -> io::Result<Self> {
        mkdirat(&self.0, one(name)?, Mode::S_IRWXU)?;
        let made = self.open(name)?;
        // The mode that is asked for at creation is subject to the umask.
        made.set_mode(mode)?;
        Ok(made)
    }

    /// Opens a directory in this one, and makes it when there is nothing of that name.
    pub(crate) fn open_or_create(&self, name: &OsStr, mode: u32) -> io::Result<Self> {
        match self.find(name)? {
            Some(found) => Ok(found),
            None => match self.create(name, mode) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => self.open(name),
                made => made,
            },
        }
    }

    /// What there is of that name.
    pub(crate) fn look(&self, name: &OsStr) -> io::Result<Option<Entry>> {
        let seen = fstatat(&self.0, one(name)?, AtFlags::AT_SYMLINK_NOFOLLOW).map_err(io::Error::from);
        absent_is_none(seen.map(|stat| Entry::of(&stat)))
    }

    /// What this directory itself is.
    pub(crate) fn this(&self) -> io::Result<Entry> {
        Ok(Entry::of(&fstat(&self.0)?))
    }

    /// The names of the entries.
    pub(crate) fn names(&self) -> io::Result<Names> {
        // A descriptor of its own: two readers of one would share their position.
        Ok(Names(dir::Dir::openat(&self.0, ".", OPEN_DIR, Mode::empty())?.into_iter()))
    }

    /// Writes a new file.
    pub(crate) fn write(&self, name: &OsStr, bytes: &[u8], mode: u32) -> io::Result<()> {
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mut file = File::from(openat(&self.0, one(name)?, flags, Mode::S_IRUSR | Mode::S_IWUSR)?);
        file.write_all(bytes)?;
        file.set_permissions(Permissions::from_mode(mode))
    }

    /// What is in a file, but no more than `at_most` bytes of it; `None` when it is not a plain file.
    pub(crate) fn read(&self, name: &OsStr, at_most: u64) -> io::Result<Option<Vec<u8>>> {
        // Without O_NONBLOCK a pipe would hold us until somebody writes to it.
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let is_file = self.look(name)?.is_some_and(|entry| entry.kind == EntryKind::File);
        if !is_file {
            return Ok(None);
        }
        let file = File::from(openat(&self.0, one(name)?, flags, Mode::empty())?);
        // What was a file a moment ago may be something else now.
        if !file.metadata()?.is_file() {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        file.take(at_most).read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    }

    /// Where a link leads; `None` when there is no link of that name.
    pub(crate) fn read_link(&self, name: &OsStr) -> io::Result<Option<OsString>> {
        match readlinkat(&self.0, one(name)?) {
            Ok(target) => Ok(Some(target)),
            Err(Errno::EINVAL | Errno::ENOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes a new link.
    pub(crate) fn link(&self, target: &OsStr, name: &OsStr) -> io::Result<()> {
        Ok(symlinkat(target, &self.0, one(name)?)?)
    }

    /// Gives an entry a new name, there or in another directory.
    pub(crate) fn rename(&self, name: &OsStr, to: &Self, new: &OsStr) -> io::Result<()> {
        Ok(renameat(&self.0, one(name)?, &to.0, one(new)?)?)
    }

    /// Removes an entry that is no directory.
    pub(crate) fn remove_file(&self, name: &OsStr) -> io::Result<()> {
        Ok(unlinkat(&self.0, one(name)?, UnlinkatFlags::NoRemoveDir)?)
    }

    /// Removes an empty directory.
    pub(crate) fn remove_dir(&self, name: &OsStr) -> io::Result<()> {
        Ok(unlinkat(&self.0, one(name)?, UnlinkatFlags::RemoveDir)?)
    }

    /// Lets this user do anything with an entry.
    pub(crate) fn unlock(&self, name: &OsStr) -> io::Result<()> {
        Ok(fchmodat(&self.0, one(name)?, Mode::S_IRWXU, FchmodatFlags::NoFollowSymlink)?)
    }

    /// Sets the permission bits of this directory itself.
    fn set_mode(&self, mode: u32) -> io::Result<()> {
        File::from(self.0.try_clone()?).set_permissions(Permissions::from_mode(mode))
    }
}

impl Entry {
    // The types of these fields differ between systems.
    #[allow(clippy::useless_conversion, clippy::unnecessary_cast, clippy::cast_sign_loss)]
    fn of(stat: &FileStat) -> Self {
        let kind = match SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT {
            SFlag::S_IFREG => EntryKind::File,
            SFlag::S_IFDIR => EntryKind::Directory,
            SFlag::S_IFLNK => EntryKind::Link,
            _ => EntryKind::Other,
        };
        Self {
            kind,
            device: stat.st_dev as u64,
            inode: stat.st_ino,
            mode: u32::from(stat.st_mode) & 0o7777,
            used: u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512),
            names: u64::from(stat.st_nlink),
        }
    }
}

/// Reads the names in a directory, without `.` and `..`.
pub(crate) struct Names(dir::OwningIter);

impl std::fmt::Debug for Names {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Names").finish_non_exhaustive()
    }
}

impl Iterator for Names {
    type Item = io::Result<OsString>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.0.next()? {
                Err(error) => return Some(Err(error.into())),
                Ok(entry) => match entry.file_name().to_bytes() {
                    b"." | b".." => {}
                    name => return Some(Ok(OsStr::from_bytes(name).to_owned())),
                },
            }
        }
    }
}

/// A name that is one entry of a directory, and not the way to another one.
fn one(name: &OsStr) -> io::Result<&OsStr> {
    #[cfg(test)]
    super::hostile::moment();
    match name.as_bytes() {
        b"" | b"." | b".." => Err(io::ErrorKind::InvalidInput.into()),
        bytes if bytes.contains(&b'/') => Err(io::ErrorKind::InvalidInput.into()),
        _ => Ok(name),
    }
}

fn absent_is_none<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use nix::unistd::mkfifo;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn place() -> (tempfile::TempDir, Dir) {
        let temp = testing::dir();
        let dir = Dir::trusted(temp.path()).unwrap();
        (temp, dir)
    }

    fn n(name: &str) -> &OsStr {
        OsStr::new(name)
    }

    #[test]
    fn a_name_is_never_a_path() {
        let (temp, dir) = place();
        fs::create_dir(temp.path().join("a")).unwrap();
        for bad in ["", ".", "..", "a/b", "/", "../x", "a/"] {
            assert!(dir.open(n(bad)).is_err(), "{bad}");
            assert!(dir.write(n(bad), b"", 0o600).is_err(), "{bad}");
            assert!(dir.look(n(bad)).is_err(), "{bad}");
            assert!(dir.remove_dir(n(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn links_are_not_followed() {
        let (temp, dir) = place();
        let (outside, _) = place();
        fs::write(outside.path().join("file"), "secret").unwrap();
        symlink(outside.path(), temp.path().join("dir")).unwrap();
        symlink(outside.path().join("file"), temp.path().join("file")).unwrap();
        symlink(outside.path().join("new"), temp.path().join("new")).unwrap();
        assert!(dir.open(n("dir")).is_err());
        assert!(dir.open_or_create(n("dir"), 0o755).is_err());
        assert_eq!(dir.read(n("file"), 100).unwrap(), None);
        assert!(dir.write(n("new"), b"x", 0o600).is_err());
        assert_eq!(dir.look(n("file")).unwrap().unwrap().kind, EntryKind::Link);
        // Unlocking must not change what a link leads to.
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        fs::set_permissions(outside.path(), Permissions::from_mode(0o511)).unwrap();
        let _ = dir.unlock(n("dir"));
        assert_eq!(mode(outside.path()), 0o511);
        assert!(!outside.path().join("new").exists());
    }

    #[test]
    fn a_pipe_does_not_hold_the_reader() {
        let (temp, dir) = place();
        mkfifo(&temp.path().join("pipe"), Mode::S_IRWXU).unwrap();
        assert_eq!(dir.read(n("pipe"), 100).unwrap(), None);
        assert_eq!(dir.look(n("pipe")).unwrap().unwrap().kind, EntryKind::Other);
    }

    #[test]
    fn modes_are_exact() {
        let (_temp, dir) = place();
        dir.create(n("d"), 0o777).unwrap();
        dir.write(n("f"), b"x", 0o666).unwrap();
        assert_eq!(dir.look(n("d")).unwrap().unwrap().mode, 0o777);
        assert_eq!(dir.look(n("f")).unwrap().unwrap().mode, 0o666);
    }
}
