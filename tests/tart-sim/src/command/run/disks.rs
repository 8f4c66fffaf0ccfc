//! `--disk` and `--root-disk-opts`.

use std::fs;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use super::shares::expand;
use crate::error::{Error, Result};
use crate::home::file_lock::FileLock;
use crate::home::{self, Home, copy};
use crate::oci::RemoteName;
use crate::output::file_error;

/// Options of a disk, as given.
#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    read_only: bool,
    sync: Option<String>,
    caching: Option<String>,
}

impl Options {
    /// Reads `ro`, `sync=` and `caching=`, and skips all other words.
    fn parse(text: &str) -> Self {
        text.split(',').fold(Self::default(), |mut options, word| {
            match word.split_once('=') {
                Some(("sync", mode)) => options.sync = Some(mode.into()),
                Some(("caching", mode)) => options.caching = Some(mode.into()),
                _ => options.read_only |= word == "ro",
            }
            options
        })
    }

    fn is_none_given(&self) -> bool {
        *self == Self::default()
    }

    /// Refuses modes that the framework does not have.
    fn check(&self) -> Result<()> {
        let unknown = |mode: &Option<String>, known: &[&str]| {
            mode.clone().filter(|mode| !known.contains(&mode.as_str()))
        };
        if let Some(mode) = unknown(&self.sync, &["", "none", "fsync", "full"]) {
            return Err(Error::runtime(format!("unsupported disk image synchronization mode: \"{mode}\"")));
        }
        if let Some(mode) = unknown(&self.caching, &["", "automatic", "cached", "uncached"]) {
            return Err(Error::runtime(format!("unsupported disk image caching mode: \"{mode}\"")));
        }
        Ok(())
    }
}

/// Checks the options of the root disk.
pub(super) fn check_root_options(options: &str) -> Result<()> {
    Options::parse(options).check()
}

/// Attaches every additional disk; they stay locked as long as the result lives.
pub(super) fn attach(arguments: &[String], home: &Home) -> Result<Vec<FileLock>> {
    let attached = arguments.iter().map(|argument| attach_one(argument, home));
    attached.filter_map(Result::transpose).collect()
}

fn attach_one(argument: &str, home: &Home) -> Result<Option<FileLock>> {
    let (path, options) = parse(argument);
    options.check()?;
    if ["nbd:", "nbds:", "nbd+unix:", "nbds+unix:"].iter().any(|scheme| path.starts_with(scheme)) {
        return Ok(None);
    }
    let file = expand(&path)?;
    if fs::metadata(&file).is_ok_and(|metadata| metadata.file_type().is_block_device()) {
        return open_block_device(&file, options.read_only).map(|()| None);
    }
    if RemoteName::parse(&path).is_ok() {
        return copy_cached(&path, home).map(Some);
    }
    let lock = FileLock::attempt(&file).map_err(|error| Error::other(file_error::reading(&file, &error)))?;
    match lock {
        _ if options.read_only => Ok(None),
        Some(lock) => Ok(Some(lock)),
        None => {
            let path = file.display();
            Err(Error::runtime(format!("disk {path} seems to be already in use, unmount it first in Finder")))
        }
    }
}

/// `path[:options]`.
fn parse(argument: &str) -> (String, Options) {
    let (path, last) = argument.rsplit_once(':').unwrap_or((argument, ""));
    let options = Options::parse(last);
    if options.is_none_given() { (argument.into(), options) } else { (path.into(), options) }
}

fn open_block_device(path: &Path, read_only: bool) -> Result<()> {
    let opened = fs::OpenOptions::new().read(true).write(!read_only).open(path);
    opened
        .map(|_| ())
        .map_err(|error| Error::runtime(format!("failed to open block device {}: {error}", path.display())))
}

/// Copies the disk of a cached image for the VM, which must not write to the image.
fn copy_cached(name: &str, home: &Home) -> Result<FileLock> {
    let disk = home.open_vm(name)?.disk_path();
    let target = home.tmp().join(format!("run-disk-{}", home::uuid()));
    copy::file(&disk, &target)
        .map_err(|error| Error::other(file_error::copying(&disk, &home.tmp(), &error)))?;
    FileLock::wait(&target).map_err(Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_follow_the_last_colon() {
        for (text, path, read_only, sync, caching) in [
            ("a.img", "a.img", false, None, None),
            ("a.img:ro", "a.img", true, None, None),
            ("a.img:ro,sync=none", "a.img", true, Some("none"), None),
            ("a.img:caching=cached", "a.img", false, None, Some("cached")),
            ("a:b.img", "a:b.img", false, None, None),
            ("nbd://localhost:10809/disk:ro", "nbd://localhost:10809/disk", true, None, None),
        ] {
            let options = Options { read_only, sync: sync.map(Into::into), caching: caching.map(Into::into) };
            assert_eq!(parse(text), (path.into(), options), "{text}");
        }
    }

    #[test]
    fn unknown_modes_are_refused() {
        assert!(check_root_options("sync=none,caching=cached").is_ok());
        assert_eq!(
            check_root_options("sync=sometimes"),
            Err(Error::runtime("unsupported disk image synchronization mode: \"sometimes\""))
        );
    }
}
