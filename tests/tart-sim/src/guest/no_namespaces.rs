//! A guest on a machine without namespaces.

use std::env;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;

use super::commands::Environment;
use super::init::SEARCH_PATH;
use super::{AUTOMOUNT_TAG, Boot, layout, programs};
use crate::home::config::Os;

/// Sets up a guest whose files are in a directory, and whose commands see the machine's files.
pub(super) fn enter(boot: &Boot) -> io::Result<Environment> {
    let root = env::current_dir()?.join("upper/root");
    fs::create_dir_all(&root)?;
    layout::build(&root, boot)?;
    let own_program = env::current_exe()?;
    let programs_dir = env::current_dir()?.join("programs");
    programs::install(&own_program, |_| programs_dir.clone())?;
    let shared_files = root.join(layout::SHARED_FILES);
    let _ = fs::remove_dir_all(&shared_files);
    let _ = fs::remove_file(&shared_files);
    for share in boot.shares.iter().filter(|share| share.tag == AUTOMOUNT_TAG && boot.os == Os::Darwin) {
        match &share.name {
            None => symlink(&share.path, &shared_files)?,
            Some(name) => {
                fs::create_dir_all(&shared_files)?;
                symlink(&share.path, shared_files.join(name))?;
            }
        }
    }
    let mut path = programs_dir.into_os_string();
    path.push(":");
    path.push(SEARCH_PATH);
    Ok(Environment::new(boot, &root, own_program, path))
}
