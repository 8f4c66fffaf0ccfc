//! Pulls of images from a registry into the cache.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::process;
use std::time::{Duration, SystemTime};

use md5::{Digest as _, Md5};
use tart_sim::fault::{Fault, Stage};

use super::cache::Cache;
use super::failure::Failure;
use super::manifest::hex;
use super::name::RemoteName;
use super::outage;
use super::registry::{Registry, RemoteImage};
use crate::error::{Error, Result};
use crate::home::file_lock::FileLock;
use crate::home::vm_dir::VmDir;
use crate::home::{self, Home, Temporary, copy, disk_space, prunable};
use crate::host::faults;
use crate::output::file_error;
use crate::output::stdout::{self, Progress};
use crate::{interrupt, version};

/// How often the layers are tried when the connection fails.
const ATTEMPTS: u32 = 5;

/// The free space that a pull needs beyond the size of the disk.
const RESERVE: u64 = 128 << 20;

/// Pulls an image and links its tag, unless the cache has it.
pub(crate) fn pull(home: &Home, name: &RemoteName) -> Result<()> {
    let cache = Cache::new(home);
    stdout::line("pulling manifest...");
    let remote = Registry::new(&name.host).pull_manifest(name)?;
    let digest = name.with_digest(&remote.manifest.digest);
    if cache.exists(name) && cache.exists(&digest) && (*name == digest || cache.is_linked(name, &digest)) {
        stdout::line(format!("{digest} image is already cached and linked!"));
        return Ok(());
    }

    let host_dir = cache.host_dir(name);
    fs::create_dir_all(&host_dir).map_err(Error::other)?;
    let _lock = if let Some(lock) = FileLock::attempt(&host_dir).map_err(Error::other)? {
        lock
    } else {
        stdout::line("waiting for lock...");
        FileLock::wait(&host_dir).map_err(Error::other)?
    };
    interrupt::check()?;

    if !cache.exists(&digest) {
        let tmp = Temporary::create(home.tmp().join(deterministic_name(name))).map_err(Error::other)?;
        tmp.discard_if_cancelled(download(home, name, &remote, tmp.vm()))?;
        cache.adopt(&digest, &tmp).map_err(Error::other)?;
    }
    let linked =
        if *name == digest { cache.mark_explicitly_pulled(&digest) } else { cache.link(name, &digest) };
    // The newest image is pruned last.
    linked.and_then(|()| cache.vm_dir(&digest).touch()).map_err(Error::other)
}

/// Puts a whole image into the cache without transferring anything: it was pushed from here.
pub(crate) fn populate(home: &Home, name: &RemoteName, remote: &RemoteImage) -> Result<()> {
    let cache = Cache::new(home);
    let digest = name.with_digest(&remote.manifest.digest);
    if !cache.exists(&digest) {
        let tmp = home.temporary()?;
        unpack(name, remote, tmp.vm()).and_then(|()| cache.adopt(&digest, &tmp)).map_err(Error::other)?;
    }
    cache.link(name, &digest).map_err(Error::other)
}

fn download(home: &Home, name: &RemoteName, remote: &RemoteImage, tmp: &VmDir) -> Result<()> {
    if version::at_least((2, 28, 1)) {
        // Let the image that the tag pointed to be pruned first.
        let outdated = Cache::new(home).vm_dir(name);
        let _ = fs::canonicalize(outdated.path())
            .map(|path| VmDir::new(path).set_access_date(SystemTime::UNIX_EPOCH));
    }
    prunable::reclaim_if_needed(home, remote.image.disk_bytes() + RESERVE, None)?;
    let mut attempt = 0;
    loop {
        match layers(home, name, remote, tmp, attempt) {
            Err(Attempt::Failed(Failure::Url(error))) if attempt + 1 < ATTEMPTS => {
                stdout::line(format!(
                    "Error pulling image: \"{}\", attempting to re-try...",
                    error.description()
                ));
                attempt += 1;
            }
            Err(Attempt::Failed(failure)) => return Err(failure.into()),
            Err(Attempt::Hopeless(error)) => return Err(error),
            Ok(()) => return Ok(()),
        }
    }
}

enum Attempt {
    /// The registry failed.
    Failed(Failure),
    /// This machine failed.
    Hopeless(Error),
}

impl From<Failure> for Attempt {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// Transfers the layers. The disk image grows as they arrive, so that the next attempt can go on from there.
fn layers(
    home: &Home,
    name: &RemoteName,
    remote: &RemoteImage,
    tmp: &VmDir,
    attempt: u32,
) -> Result<(), Attempt> {
    let hopeless =
        |error: io::Error| Attempt::Hopeless(Error::other(file_error::creating(&tmp.disk_path(), &error)));
    stdout::line(format!("pulling disk ({} compressed)...", compressed(remote.image.compressed_bytes())));
    outage::apply(name, Stage::Layers, attempt)?;
    let too_large = remote.image.allocated_bytes().is_some_and(|bytes| disk_space::available(home) < bytes);
    if faults::is_on_for(Fault::NoSpace, "pull") || too_large {
        return Err(Attempt::Hopeless(no_space(tmp)));
    }
    let total = remote.image.disk_bytes().max(1);
    let arrived = fs::metadata(tmp.disk_path()).map_or(0, |metadata| metadata.len().min(total));
    let mut percent = arrived * 100 / total;
    let mut progress = Progress::default();
    progress.show(percent);
    let duration = remote.image.pull_duration();
    let step = step(duration);
    while percent < 100 {
        if !faults::is_on(Fault::InstantPull) {
            interrupt::sleep(duration * step / 100).map_err(|_| Failure::Cancelled)?;
        }
        outage::apply(name, Stage::Layers, attempt)?;
        percent = (percent + u64::from(step)).min(100);
        tmp.resize_disk(total * percent / 100).map_err(hopeless)?;
        progress.show(percent);
    }
    stdout::line("pulling NVRAM...");
    unpack(name, remote, tmp).map_err(hopeless)
}

/// The volume is full. Releases before 2.24 crash.
fn no_space(tmp: &VmDir) -> Error {
    if !version::at_least((2, 24, 0)) {
        eprintln!(
            "*** Terminating app due to uncaught exception 'NSFileHandleOperationException', reason: \
             '*** -[NSConcreteFileHandle writeData:]: No space left on device'"
        );
        process::abort();
    }
    Error::other(file_error::out_of_space(&tmp.disk_path()))
}

/// Percent from one progress line to the next: small for a slow pull, 100 for an instant one.
fn step(duration: Duration) -> u32 {
    match duration.as_millis() {
        0 => 100,
        millis => u32::try_from((10_000 / millis).clamp(1, 50)).unwrap_or(1),
    }
}

/// Makes the VM directory that an image unpacks to.
fn unpack(name: &RemoteName, remote: &RemoteImage, target: &VmDir) -> io::Result<()> {
    home::remove(&target.guest_path())?;
    fs::create_dir(target.guest_path())?;
    fs::copy(remote.dir.join("image.json"), target.image_path())?;
    for (from, to) in [("rootfs", target.guest_lower_path()), ("upper", target.guest_upper_path())] {
        let from = remote.dir.join(from);
        if from.exists() {
            copy::tree(&from, &to)?;
        }
    }
    fs::write(target.config_path(), &remote.manifest.config)?;
    fs::File::create(target.nvram_path())?.set_len(remote.image.os.nvram_bytes())?;
    fs::write(target.path().join("manifest.json"), &remote.manifest.text)?;
    target.resize_disk(remote.image.disk_bytes())?;
    let mut head = remote.manifest.disk_head.clone();
    if faults::is_on_for(Fault::AlteredDisk, &name.repository()) {
        head.reverse();
    }
    OpenOptions::new().write(true).open(target.disk_path())?.write_all(&head)
}

fn deterministic_name(name: &RemoteName) -> String {
    hex(&Md5::digest(name.to_string()))
}

/// `18.1 GB`, as Foundation's formatter for byte counts has it.
fn compressed(bytes: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let bytes = bytes as f64;
    match bytes {
        b if b >= 1e9 => format!("{} GB", (b / 1e8).round() / 10.0),
        b if b >= 1e6 => format!("{} MB", (b / 1e5).round() / 10.0),
        b if b >= 1e3 => format!("{} KB", (b / 1e3).round()),
        b => format!("{b} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_for_people() {
        for (bytes, text) in [
            (18_100_000_000, "18.1 GB"),
            (2_000_000_000, "2 GB"),
            (1_500_000, "1.5 MB"),
            (131_072, "131 KB"),
            (7, "7 bytes"),
        ] {
            assert_eq!(compressed(bytes), text);
        }
    }

    #[test]
    fn slow_pulls_have_small_steps() {
        assert_eq!(step(Duration::ZERO), 100);
        assert_eq!(step(Duration::from_secs(10)), 1);
        assert_eq!(step(Duration::from_millis(500)), 20);
    }
}
