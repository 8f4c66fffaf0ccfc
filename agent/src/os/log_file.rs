//! The file that the agent's standard output and error go to. launchd opens it, and newsyslog renames it when it is long.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use nix::unistd::{dup2_stderr, dup2_stdout};

/// How often the agent looks whether the file has been renamed.
const INTERVAL: Duration = Duration::from_secs(5);

/// Has standard output and error go to a file, and to the new file of that name once it has been renamed. A file that cannot be opened is
/// tried again; what is printed goes to the old one meanwhile.
pub(crate) fn follow(path: PathBuf) -> io::Result<()> {
    reopen_if_renamed(&path)?;
    let look = move || {
        loop {
            thread::sleep(INTERVAL);
            let _ = reopen_if_renamed(&path);
        }
    };
    thread::Builder::new().name("log-file".to_owned()).spawn(look).map(drop)
}

fn reopen_if_renamed(path: &Path) -> io::Result<()> {
    if is_open_as(path, io::stderr()) {
        return Ok(());
    }
    let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    dup2_stdout(&file)?;
    dup2_stderr(&file)?;
    Ok(())
}

/// Whether a descriptor is the file of that name.
fn is_open_as(path: &Path, descriptor: impl AsFd) -> bool {
    let opened = descriptor.as_fd().try_clone_to_owned().map(File::from).and_then(|file| file.metadata());
    match (opened, path.metadata()) {
        (Ok(opened), Ok(named)) => (opened.dev(), opened.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_renamed_is_no_longer_the_one_of_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let file = File::create(&path).unwrap();
        assert!(is_open_as(&path, &file));
        std::fs::rename(&path, dir.path().join("log.0")).unwrap();
        assert!(!is_open_as(&path, &file));
        File::create(&path).unwrap();
        assert!(!is_open_as(&path, &file));
    }
}
