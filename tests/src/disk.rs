//! A small disk of its own for a directory, to be filled.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::skip;

/// A file system may give back so much of what it held for files that were on their way to the disk.
const GIVEN_BACK: u64 = 1 << 20;

/// A volume mounted over a directory; gone when it is dropped, or with the sandbox that it is in.
#[derive(Debug)]
pub struct SmallDisk {
    path: PathBuf,
}

/// Mounts a file system in a file, as small as asked for: what a disk does when it fills up, this one does too.
fn loop_mounted(path: &Path, bytes: u64) -> Result<bool> {
    let image = path.with_extension("disk");
    let file = File::create(&image).with_context(|| format!("cannot make {}", image.display()))?;
    file.set_len(bytes).context("cannot make a file as large as the disk")?;
    let made = succeeds(
        Command::new("mke2fs").args(["-q", "-F", "-t", "ext4", "-m", "0", "-O", "^has_journal"]).arg(&image),
    );
    let mounted = made && succeeds(Command::new("mount").args(["-o", "loop"]).args([&image, path]));
    if mounted {
        // The agent would take an unknown directory for one of its own.
        fs::remove_dir(path.join("lost+found")).context("cannot empty the new disk")?;
    }
    // The mount keeps it for as long as it is needed.
    fs::remove_file(&image).context("cannot remove the disk's file")?;
    Ok(mounted)
}

fn in_memory(path: &Path, bytes: u64) -> bool {
    succeeds(Command::new("mount").args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "tmpfs"]).arg(path))
}

fn succeeds(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|end| end.success())
}

impl SmallDisk {
    /// Mounts a volume of about so many bytes; `None`, with a word about it, where this user or system cannot.
    pub fn mount(path: &Path, bytes: u64) -> Result<Option<Self>> {
        if !loop_mounted(path, bytes)? {
            if !in_memory(path, bytes) {
                skip::say("this user or system cannot mount a volume; run it as root on Linux")?;
                return Ok(None);
            }
            skip::tell("its disk is in memory: this system has no loop devices, or no mke2fs")?;
        }
        let disk = Self { path: path.to_owned() };
        // A mount that only seems to work would have the test fill the machine's own disk.
        let stat = nix::sys::statvfs::statvfs(path)?;
        #[allow(clippy::useless_conversion)]
        let total = u64::from(stat.blocks()) * u64::from(stat.fragment_size());
        anyhow::ensure!(total <= bytes + (1 << 20), "{} is a volume of {total} bytes", path.display());
        Ok(Some(disk))
    }

    /// Takes so many bytes of it, and gives back what was taken before.
    pub fn fill(&self, bytes: u64) -> Result<()> {
        let path = self.path.join("ballast");
        let mut file = File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
        let block = vec![1; 1 << 20];
        for _ in 0..bytes >> 20 {
            file.write_all(&block).context("there is no room for ballast")?;
        }
        Ok(())
    }

    /// Takes all that is left of it but so many bytes.
    pub fn fill_but(&self, bytes: u64) -> Result<()> {
        let path = self.path.join("ballast");
        let mut file = File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
        // The agent may free space as soon as it lacks some. The ballast does not take that.
        let limit = self.free()?.saturating_sub(bytes) + GIVEN_BACK;
        while self.free()? > bytes && self.top_up(&mut file, bytes, limit)? {}
        Ok(())
    }

    /// Adds to the ballast until only so many bytes are left, or it has its largest size. False if it has not grown.
    fn top_up(&self, ballast: &mut File, bytes: u64, limit: u64) -> Result<bool> {
        let mut block = vec![1; 1 << 12];
        let mut has_written = false;
        while free(&self.path)? > bytes && ballast.metadata()?.len() < limit && !block.is_empty() {
            match ballast.write(&block) {
                // A file system may have blocks that are smaller, and one of them may be left.
                Err(error) if error.kind() == io::ErrorKind::StorageFull => block.truncate(block.len() / 2),
                written => has_written |= written.context("cannot write ballast")? > 0,
            }
        }
        Ok(has_written)
    }

    /// Takes all that is left of it.
    pub fn fill_up(&self) -> Result<()> {
        self.fill_but(0)
    }

    /// How much of it is free, once what was written is where it stays: until then a file system holds some back, and gives it away later.
    pub fn free(&self) -> Result<u64> {
        anyhow::ensure!(succeeds(Command::new("sync").arg("-f").arg(&self.path)), "cannot sync the disk");
        free(&self.path)
    }
}

fn free(path: &Path) -> Result<u64> {
    let stat = nix::sys::statvfs::statvfs(path)?;
    #[allow(clippy::useless_conversion)]
    Ok(u64::from(stat.blocks_available()) * u64::from(stat.fragment_size()))
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        unmount(&self.path);
    }
}

/// A file that not even root can delete; an ordinary one when it is dropped.
#[derive(Debug)]
pub struct Undeletable {
    path: PathBuf,
}

impl Undeletable {
    /// Makes the file; `None`, with a word about it, where this user or file system cannot.
    pub fn new(path: PathBuf) -> Result<Option<Self>> {
        File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
        if !succeeds(Command::new("chattr").arg("+i").arg(&path)) {
            skip::say("this user or file system cannot make a file immutable; run it as root on Linux")?;
            return Ok(None);
        }
        Ok(Some(Self { path }))
    }
}

impl Drop for Undeletable {
    fn drop(&mut self) {
        succeeds(Command::new("chattr").arg("-i").arg(&self.path));
    }
}

/// Unmounts all that is mounted below a directory.
pub(crate) fn unmount_below(directory: &Path) {
    // Only Linux has such a list, and only there is anything mounted.
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let paths = mounts.lines().filter_map(|line| line.split(' ').nth(1)).map(Path::new);
    for path in paths.filter(|path| path.starts_with(directory)) {
        unmount(path);
    }
}

fn unmount(path: &Path) {
    // Processes with open files there keep them; no other process sees the volume any more.
    let _ = Command::new("umount").arg("-l").arg(path).stdin(Stdio::null()).stderr(Stdio::null()).status();
}
