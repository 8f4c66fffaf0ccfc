//! The directories that every guest has, whatever its image brings.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use super::Boot;
use crate::home::config::Os;

/// Where a macOS guest mounts the shares that have the automount tag.
pub(super) const SHARED_FILES: &str = "Volumes/My Shared Files";

/// macOS has its writable directories in a few places; some old names link there.
const MACOS: &[&str] = &[
    "Applications",
    "Library",
    "System/Library",
    "Users/Shared",
    "Volumes",
    "cores",
    "opt/homebrew/bin",
    "private/etc",
    "private/tmp",
    "private/var/db",
    "private/var/folders",
    "private/var/log",
    "private/var/root",
    "private/var/run",
    "private/var/tmp",
];
const MACOS_LINKS: &[(&str, &str)] =
    &[("etc", "private/etc"), ("tmp", "private/tmp"), ("var", "private/var")];

const LINUX: &[&str] =
    &["etc", "home", "mnt", "opt", "root", "run", "srv", "tmp", "var/lib", "var/log", "var/run", "var/tmp"];

/// Mount points and directories of both systems.
const COMMON: &[&str] = &["dev", "proc", "usr/local/bin"];

/// Directories in which every user may create files and remove only their own.
const SHARED_BY_USERS: &[&str] = &["private/tmp", "private/var/tmp", "tmp", "var/tmp"];

/// Creates the directories and links that are missing.
pub(super) fn build(root: &Path, boot: &Boot) -> io::Result<()> {
    let (directories, links) = match boot.os {
        Os::Darwin => (MACOS, MACOS_LINKS),
        Os::Linux => (LINUX, &[][..]),
    };
    for directory in directories.iter().chain(COMMON) {
        make_directory(root, Path::new(directory))?;
    }
    make_directory(root, boot.home().strip_prefix("/").map_err(io::Error::other)?)?;
    for (name, target) in links {
        let link = root.join(name);
        if link.symlink_metadata().is_err() {
            symlink(target, link)?;
        }
    }
    for directory in SHARED_BY_USERS.iter().map(|directory| root.join(directory)) {
        if directory.symlink_metadata().is_ok_and(|metadata| metadata.is_dir()) {
            fs::set_permissions(directory, Permissions::from_mode(0o1777))?;
        }
    }
    Ok(())
}

/// Creates a directory below the root, but never through a link: an image's links are meant for the guest's root, not for
/// the host's.
pub(super) fn make_directory(root: &Path, path: &Path) -> io::Result<()> {
    let mut directory = PathBuf::from(root);
    for component in path {
        directory.push(component);
        match directory.symlink_metadata() {
            Ok(metadata) if metadata.is_dir() => {}
            Ok(_) => return Ok(()),
            Err(_) => fs::create_dir(&directory)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::boot::tests::boot;
    use super::*;

    #[test]
    fn a_macos_guest_has_its_directories_and_links() {
        let root =
            tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap();
        for _ in 0..2 {
            build(root.path(), &boot()).unwrap();
        }
        assert!(root.path().join("Users/admin").is_dir());
        assert_eq!(fs::read_link(root.path().join("tmp")).unwrap(), Path::new("private/tmp"));
        assert_eq!(fs::metadata(root.path().join("tmp")).unwrap().permissions().mode() & 0o7777, 0o1777);
    }

    #[test]
    fn nothing_is_created_through_an_images_link() {
        let root =
            tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap();
        let outside =
            tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap();
        symlink(outside.path(), root.path().join("private")).unwrap();
        build(root.path(), &boot()).unwrap();
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    }
}
