//! A directory and a set of processes that are gone when their owner is, however it ended.
//!
//! Every sandbox has a [`keeper`]: a small process in a session of its own that waits for the end of the process that owns the
//! sandbox, kills whatever still runs in it, and removes the directory. Destructors are not enough: they do not run
//! after Ctrl-C, `kill -9` or for statics, and a control plane left behind is four processes and half a gigabyte.

pub mod keeper;
pub mod processes;

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};

use crate::programs;

/// The environment variable that marks a process as part of the sandbox that it names; descendants inherit it.
pub const MARKER: &str = "TART_KUBELET_SANDBOX";

/// A handle on one sandbox; the last one to be dropped takes the sandbox with it.
#[derive(Debug, Clone)]
pub struct Sandbox(Arc<Kept>);

#[derive(Debug)]
struct Kept {
    path: PathBuf,
    keeper: Child,
    /// The keeper acts when this pipe closes.
    lifeline: Option<ChildStdin>,
    directories: AtomicU32,
}

impl Sandbox {
    /// Makes an empty sandbox with a keeper of its own.
    pub fn new() -> Result<Self> {
        let mut keeper = Command::new(programs::find("sandbox-keeper")?)
            .env_remove(MARKER)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start sandbox-keeper")?;
        let lifeline = keeper.stdin.take();
        let mut path = String::new();
        if let Some(stdout) = keeper.stdout.take() {
            BufReader::new(stdout).read_line(&mut path).context("cannot hear from sandbox-keeper")?;
        }
        ensure!(path.ends_with('\n'), "sandbox-keeper ended before it made a sandbox");
        let path = PathBuf::from(path.trim_end());
        Ok(Self(Arc::new(Kept { path, keeper, lifeline, directories: AtomicU32::new(0) })))
    }

    /// The sandbox that the tests of one process share.
    pub fn shared() -> Result<Self> {
        static SHARED: Mutex<Option<Sandbox>> = Mutex::new(None);
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sandbox) = &*shared {
            return Ok(sandbox.clone());
        }
        Ok(shared.insert(Self::new()?).clone())
    }

    /// The sandbox's directory.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Makes a new directory `<name>-<number>` in the sandbox.
    pub fn directory(&self, name: &str) -> Result<PathBuf> {
        let number = self.0.directories.fetch_add(1, Ordering::Relaxed) + 1;
        let path = self.0.path.join(format!("{name}-{number}"));
        std::fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(path)
    }

    /// A command whose process, and all that it starts, belongs to the sandbox.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env(MARKER, &self.0.path).current_dir(&self.0.path).stdin(Stdio::null());
        command
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        drop(self.lifeline.take());
        // The keeper bounds its own work, and says on stderr what it could not do.
        let _ = self.keeper.wait();
    }
}
