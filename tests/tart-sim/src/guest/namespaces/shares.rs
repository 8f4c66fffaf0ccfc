//! Directories of the host that the guest can mount.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::mount::MsFlags;

use super::mounts::{bind, make_read_only, mount_at};
use crate::guest::{AUTOMOUNT_TAG, Boot, Share, layout};
use crate::home::config::Os;

/// The directory from which the guest mounts shares.
const SHARES: &str = "dev/.virtiofs";

/// Puts every share into the directory from which the guest mounts it. Mounts those of the automount tag, as macOS does.
pub(super) fn stage(root: &Path, boot: &Boot) -> io::Result<()> {
    for tag in tags(boot) {
        let staged = staged(root, tag);
        fs::create_dir_all(&staged)?;
        let shares: Vec<_> = boot.shares.iter().filter(|share| share.tag == tag).collect();
        if let [Share { name: None, path, read_only, .. }] = shares.as_slice() {
            mount_directory(path, &staged, *read_only)?;
        } else {
            // The directory above several shares is read-only.
            mount_at(Some("virtiofs".as_ref()), &staged, Some("tmpfs"), MsFlags::empty(), Some("mode=755"))?;
            for share in shares {
                let directory = staged.join(share.name.as_deref().unwrap_or_default());
                fs::create_dir(&directory)?;
                mount_directory(&share.path, &directory, share.read_only)?;
            }
            make_read_only(&staged)?;
        }
    }
    let automount = staged(root, AUTOMOUNT_TAG);
    if boot.os == Os::Darwin && automount.is_dir() {
        layout::make_directory(root, layout::SHARED_FILES.as_ref())?;
        bind(&automount, &root.join(layout::SHARED_FILES))?;
    }
    Ok(())
}

/// Mounts the shares of a tag, as the guest's `mount_virtiofs` does.
pub(in crate::guest) fn mount_share(tag: &str, directory: &Path) -> Result<(), String> {
    let staged = staged(Path::new("/"), tag);
    if !staged.is_dir() {
        return Err(format!("fs_tag {tag} not found"));
    }
    bind(&staged, directory).map_err(|error| format!("{}: {error}", directory.display()))
}

/// The tags of all shares, each once.
fn tags(boot: &Boot) -> Vec<&str> {
    let mut tags: Vec<_> = boot.shares.iter().map(|share| share.tag.as_str()).collect();
    tags.sort_unstable();
    tags.dedup();
    tags
}

fn staged(root: &Path, tag: &str) -> PathBuf {
    root.join(SHARES).join(tag.replace('/', ":"))
}

fn mount_directory(from: &Path, to: &Path, read_only: bool) -> io::Result<()> {
    bind(from, to)?;
    if read_only { make_read_only(to) } else { Ok(()) }
}
