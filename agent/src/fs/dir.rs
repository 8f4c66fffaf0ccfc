//! A directory by its descriptor.
//!
//! A guest that can write to a share can replace any name in it by a link, at any moment. So nothing here uses a path: each step is one name
//! below an open directory, and no link is followed.

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

use super::absent_is_none;

const OPEN_DIR: OFlag =
    OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// An open directory.
#[derive(Debug)]
pub(crate) struct Dir(OwnedFd);

/// The metadata of an entry of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) kind: EntryKind,
    pub(crate) device: u64,
    pub(crate) inode: u64,
    /// Its permission bits.
    pub(crate) mode: u32,
    /// Its size on disk, in bytes.
    pub(crate) used: u64,
    /// The number of its hard links.
    pub(crate) names: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EntryKind {
    File,
    Directory,
    Link,
    /// A pipe, a socket or a device.
    Other,
}

impl Dir {
    /// Opens a directory by its path; only for one that no guest can replace.
    pub(crate) fn trusted(path: &Path) -> io::Result<Self> {
        Ok(Self(open(path, OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?))
    }

    pub(crate) fn open(&self, name: &OsStr) -> io::Result<Self> {
        Ok(Self(openat(&self.0, one(name)?, OPEN_DIR, Mode::empty())?))
    }

    /// Opens a directory in this one; `None` when there is no entry of that name.
    pub(crate) fn find(&self, name: &OsStr) -> io::Result<Option<Self>> {
        absent_is_none(self.open(name))
    }

    pub(crate) fn create(&self, name: &OsStr, mode: u32) -> io::Result<Self> {
        mkdirat(&self.0, one(name)?, Mode::S_IRWXU)?;
        let created = self.open(name)?;
        // The umask restricts the mode of `mkdirat`.
        created.set_mode(mode)?;
        Ok(created)
    }

    /// Opens a directory in this one, and creates it when there is no entry of that name.
    pub(crate) fn open_or_create(&self, name: &OsStr, mode: u32) -> io::Result<Self> {
        match self.find(name)? {
            Some(found) => Ok(found),
            None => match self.create(name, mode) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => self.open(name),
                created => created,
            },
        }
    }

    /// The metadata of an entry; `None` when there is none of that name.
    pub(crate) fn entry(&self, name: &OsStr) -> io::Result<Option<Entry>> {
        let stat = fstatat(&self.0, one(name)?, AtFlags::AT_SYMLINK_NOFOLLOW).map_err(io::Error::from);
        absent_is_none(stat.map(|stat| Entry::of(&stat)))
    }

    /// The metadata of this directory itself.
    pub(crate) fn this(&self) -> io::Result<Entry> {
        Ok(Entry::of(&fstat(&self.0)?))
    }

    /// The names of the entries.
    pub(crate) fn names(&self) -> io::Result<Names> {
        // A new descriptor, because two readers of one share their position.
        Ok(Names(dir::Dir::openat(&self.0, ".", OPEN_DIR, Mode::empty())?.into_iter()))
    }

    /// Writes a new file.
    pub(crate) fn write(&self, name: &OsStr, bytes: &[u8], mode: u32) -> io::Result<()> {
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mut file = File::from(openat(&self.0, one(name)?, flags, Mode::S_IRUSR | Mode::S_IWUSR)?);
        file.write_all(bytes)?;
        file.set_permissions(Permissions::from_mode(mode))
    }

    /// The first `at_most` bytes of a file; `None` when it is not a plain file.
    pub(crate) fn read(&self, name: &OsStr, at_most: u64) -> io::Result<Option<Vec<u8>>> {
        // Without O_NONBLOCK, opening a pipe would block until a writer comes.
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let is_file = self.entry(name)?.is_some_and(|entry| entry.kind == EntryKind::File);
        if !is_file {
            return Ok(None);
        }
        let file = File::from(openat(&self.0, one(name)?, flags, Mode::empty())?);
        // The guest may have replaced the file meanwhile.
        if !file.metadata()?.is_file() {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        file.take(at_most).read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    }

    /// The target of a link; `None` when there is no link of that name.
    pub(crate) fn read_link(&self, name: &OsStr) -> io::Result<Option<OsString>> {
        match readlinkat(&self.0, one(name)?) {
            Ok(target) => Ok(Some(target)),
            Err(Errno::EINVAL | Errno::ENOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Creates a symbolic link.
    pub(crate) fn link(&self, target: &OsStr, name: &OsStr) -> io::Result<()> {
        Ok(symlinkat(target, &self.0, one(name)?)?)
    }

    /// Renames an entry, in this directory or into another one.
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

    /// Sets the permission bits of an entry to 0700.
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

/// The names in a directory, without `.` and `..`.
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

/// The name, if it is a single entry of a directory and no path.
fn one(name: &OsStr) -> io::Result<&OsStr> {
    #[cfg(test)]
    super::hostile::attack();
    match name.as_bytes() {
        b"" | b"." | b".." => Err(io::ErrorKind::InvalidInput.into()),
        bytes if bytes.contains(&b'/') => Err(io::ErrorKind::InvalidInput.into()),
        _ => Ok(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use nix::unistd::mkfifo;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn temp_dir() -> (tempfile::TempDir, Dir) {
        let temp = testing::dir();
        let dir = Dir::trusted(temp.path()).unwrap();
        (temp, dir)
    }

    fn n(name: &str) -> &OsStr {
        OsStr::new(name)
    }

    #[test]
    fn a_name_is_never_a_path() {
        let (temp, dir) = temp_dir();
        fs::create_dir(temp.path().join("a")).unwrap();
        for bad in ["", ".", "..", "a/b", "/", "../x", "a/"] {
            assert!(dir.open(n(bad)).is_err(), "{bad}");
            assert!(dir.write(n(bad), b"", 0o600).is_err(), "{bad}");
            assert!(dir.entry(n(bad)).is_err(), "{bad}");
            assert!(dir.remove_dir(n(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn links_are_not_followed() {
        let (temp, dir) = temp_dir();
        let (outside, _) = temp_dir();
        fs::write(outside.path().join("file"), "secret").unwrap();
        symlink(outside.path(), temp.path().join("dir")).unwrap();
        symlink(outside.path().join("file"), temp.path().join("file")).unwrap();
        symlink(outside.path().join("new"), temp.path().join("new")).unwrap();
        assert!(dir.open(n("dir")).is_err());
        assert!(dir.open_or_create(n("dir"), 0o755).is_err());
        assert_eq!(dir.read(n("file"), 100).unwrap(), None);
        assert!(dir.write(n("new"), b"x", 0o600).is_err());
        assert_eq!(dir.entry(n("file")).unwrap().unwrap().kind, EntryKind::Link);
        // `unlock` must not change the target of a link.
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        fs::set_permissions(outside.path(), Permissions::from_mode(0o511)).unwrap();
        let _ = dir.unlock(n("dir"));
        assert_eq!(mode(outside.path()), 0o511);
        assert!(!outside.path().join("new").exists());
    }

    #[test]
    fn a_pipe_does_not_block_the_reader() {
        let (temp, dir) = temp_dir();
        mkfifo(&temp.path().join("pipe"), Mode::S_IRWXU).unwrap();
        assert_eq!(dir.read(n("pipe"), 100).unwrap(), None);
        assert_eq!(dir.entry(n("pipe")).unwrap().unwrap().kind, EntryKind::Other);
    }

    #[test]
    fn modes_are_exact() {
        let (_temp, dir) = temp_dir();
        dir.create(n("d"), 0o777).unwrap();
        dir.write(n("f"), b"x", 0o666).unwrap();
        assert_eq!(dir.entry(n("d")).unwrap().unwrap().mode, 0o777);
        assert_eq!(dir.entry(n("f")).unwrap().unwrap().mode, 0o666);
    }
}
