//! Cheap copies: holes stay holes, and files share blocks where the file system can.

use std::fs::{self, File, FileTimes};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, lchown, symlink};
use std::path::Path;

/// Copies one file.
#[cfg(target_os = "macos")]
pub(crate) fn file(from: &Path, to: &Path) -> io::Result<()> {
    // Clones the file on APFS.
    fs::copy(from, to).map(drop)
}

/// Copies one file.
#[cfg(not(target_os = "macos"))]
pub(crate) fn file(from: &Path, to: &Path) -> io::Result<()> {
    use io::{Read as _, Seek as _, SeekFrom};

    use nix::unistd::{Whence, lseek};

    let (mut source, mut target) = (File::open(from)?, File::create(to)?);
    let length = source.metadata()?.len();
    target.set_len(length)?;
    target.set_permissions(source.metadata()?.permissions())?;
    let mut offset = 0;
    loop {
        offset = match lseek(&source, offset, Whence::SeekData) {
            Ok(start) => start,
            // Nothing but a hole up to the end.
            Err(nix::Error::ENXIO) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let end = lseek(&source, offset, Whence::SeekHole)?;
        let start = SeekFrom::Start(offset.unsigned_abs());
        source.seek(start)?;
        target.seek(start)?;
        io::copy(&mut (&source).take((end - offset).unsigned_abs()), &mut target)?;
        offset = end;
    }
}

/// Copies a directory tree with everything that an overlay keeps in it: modes, owners, times, extended
/// attributes, symbolic links and the device nodes that mark deleted files.
pub(crate) fn tree(from: &Path, to: &Path) -> io::Result<()> {
    walk(from, to, &|from, to| {
        file(from, to)?;
        attributes(from, to)
    })
}

/// Makes a second tree whose files are hard links: only for files that never change.
pub(crate) fn link_tree(from: &Path, to: &Path) -> io::Result<()> {
    walk(from, to, &|from, to| match fs::hard_link(from, to) {
        // Too many links, or another file system.
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            file(from, to)?;
            attributes(from, to)
        }
        other => other,
    })
}

fn walk(from: &Path, to: &Path, regular_file: &dyn Fn(&Path, &Path) -> io::Result<()>) -> io::Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (from, to, kind) = (entry.path(), to.join(entry.file_name()), entry.file_type()?);
        if kind.is_dir() {
            walk(&from, &to, regular_file)?;
        } else if kind.is_file() {
            regular_file(&from, &to)?;
        } else if kind.is_symlink() {
            symlink(fs::read_link(&from)?, &to)?;
            owner(&from.symlink_metadata()?, &to)?;
        } else if kind.is_char_device() {
            device(&from.symlink_metadata()?, &to)?;
        }
        // Sockets and pipes mean nothing without the processes at their ends.
    }
    attributes(from, to)
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::unnecessary_cast,
    reason = "macOS has fewer bits of both, Linux not"
)]
fn device(metadata: &fs::Metadata, to: &Path) -> io::Result<()> {
    use nix::sys::stat::{Mode, SFlag, mknod};

    let mode = Mode::from_bits_truncate(metadata.mode() as nix::libc::mode_t);
    mknod(to, SFlag::S_IFCHR, mode, metadata.rdev() as nix::libc::dev_t)?;
    Ok(())
}

fn attributes(from: &Path, to: &Path) -> io::Result<()> {
    let metadata = from.metadata()?;
    owner(&metadata, to)?;
    // The other attributes belong to the machine.
    let overlay = |name: &std::ffi::OsString| {
        let name = name.as_encoded_bytes();
        name.starts_with(b"user.") || name.starts_with(b"trusted.overlay.")
    };
    for name in xattr::list(from)?.filter(overlay) {
        if let Some(value) = xattr::get(from, &name)? {
            xattr::set(to, &name, &value)?;
        }
    }
    fs::set_permissions(to, metadata.permissions())?;
    let times = FileTimes::new().set_accessed(metadata.accessed()?).set_modified(metadata.modified()?);
    File::open(to)?.set_times(times)
}

fn owner(metadata: &fs::Metadata, to: &Path) -> io::Result<()> {
    match lchown(to, Some(metadata.uid()), Some(metadata.gid())) {
        // Only root may change a file's owner. Without root, all files have the same owner.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Seek as _, SeekFrom, Write as _};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn holes_stay_holes_and_data_arrives() {
        let dir =
            tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        let mut file_with_hole = File::create(&from).unwrap();
        file_with_hole.seek(SeekFrom::Start(1 << 30)).unwrap();
        file_with_hole.write_all(b"in the middle").unwrap();
        file_with_hole.set_len(50_000_000_000).unwrap();
        drop(file_with_hole);
        file(&from, &to).unwrap();
        let metadata = to.metadata().unwrap();
        assert_eq!(metadata.len(), 50_000_000_000);
        assert!(metadata.blocks() * 512 < 1 << 20, "{} blocks", metadata.blocks());
        let mut content = vec![0; 13];
        std::os::unix::fs::FileExt::read_exact_at(&File::open(&to).unwrap(), &mut content, 1 << 30).unwrap();
        assert_eq!(content, b"in the middle");
    }

    #[test]
    fn a_tree_keeps_links_modes_and_times_and_is_independent() {
        let dir =
            tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::create_dir_all(from.join("bin")).unwrap();
        fs::write(from.join("bin/tool"), "one").unwrap();
        fs::set_permissions(from.join("bin/tool"), fs::Permissions::from_mode(0o751)).unwrap();
        symlink("bin/tool", from.join("link")).unwrap();
        tree(&from, &to).unwrap();
        assert_eq!(fs::read_link(to.join("link")).unwrap(), Path::new("bin/tool"));
        let (old, new) = (from.join("bin/tool").metadata().unwrap(), to.join("bin/tool").metadata().unwrap());
        assert_eq!((old.mode(), old.mtime(), old.mtime_nsec()), (new.mode(), new.mtime(), new.mtime_nsec()));
        fs::write(to.join("bin/tool"), "two").unwrap();
        assert_eq!(fs::read_to_string(from.join("bin/tool")).unwrap(), "one");
    }

    #[test]
    fn a_linked_tree_shares_its_files() {
        let dir =
            tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::create_dir(&from).unwrap();
        fs::write(from.join("file"), "content").unwrap();
        link_tree(&from, &to).unwrap();
        assert_eq!(from.join("file").metadata().unwrap().ino(), to.join("file").metadata().unwrap().ino());
    }
}
