//! The locks of a VM run, and the shim's process.

use std::fs::File;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::VmRun;
use crate::fs::file::{self, FileError};
use crate::fs::lock::{self, Lock};
use crate::state::disk_reserve;

/// Which process works on a VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(test, derive(Default))]
pub(crate) enum Holder {
    Shim,
    /// A `tart` that its shim had started; the shim is gone.
    Tart,
    /// No process: nothing of the VM runs.
    #[cfg_attr(test, default)]
    None,
}

impl VmRun {
    pub(crate) fn holder(&self) -> Result<Holder, FileError> {
        Ok(if self.is_held("shim.lock")? {
            Holder::Shim
        } else if self.has_tart()? {
            Holder::Tart
        } else {
            Holder::None
        })
    }

    /// Makes this process the shim with the lock that the agent has left as `file`; `None` when the run has had a shim.
    pub(crate) fn inherit_shim_lock(&self, file: File) -> Result<Option<Lock>, FileError> {
        let path = self.path.join("shim.lock");
        let lock = Lock::inherit(file, &path).map_err(|source| FileError::new("inherit", &path, source))?;
        Ok(lock.filter(|_| !self.has_begun().unwrap_or(true)))
    }

    /// Keeps every shim away for as long as the lock is held; `None` when a shim lives.
    pub(crate) fn take_shim_lock(&self) -> Result<Option<Lock>, FileError> {
        self.take("shim.lock")
    }

    /// Takes the lock that every `tart` of this run inherits; `None` when an old one still holds it.
    pub(crate) fn take_tart_lock(&self) -> Result<Option<Lock>, FileError> {
        self.take("tart.lock")
    }

    /// Whether a `tart` of this run, or what it has started, still lives. The process that has taken the lock counts, too.
    pub(crate) fn has_tart(&self) -> Result<bool, FileError> {
        self.is_held("tart.lock")
    }

    pub(crate) fn record_shim_pid(&self, pid: u32) -> Result<(), FileError> {
        let path = self.path.join("shim.pid");
        disk_reserve::repeatedly(&path, || file::write(&path, &pid))
    }

    /// Removes what an earlier shim of the run has recorded: its process ID may be another process's by now.
    pub(crate) fn forget_shim_pid(&self) -> Result<(), FileError> {
        file::remove(&self.path.join("shim.pid"))
    }

    /// The process ID that the shim had. The shim may be gone, and the ID another process's.
    pub(crate) fn shim_pid(&self) -> Result<Option<Pid>, FileError> {
        Ok(self.read::<i32>("shim.pid")?.filter(|&pid| pid > 1).map(Pid::from_raw))
    }

    /// Kills the shim if it holds its lock; false when its process ID is unknown.
    pub(crate) fn kill_shim(&self) -> Result<bool, FileError> {
        let Some(pid) = self.shim_pid()? else { return Ok(false) };
        if self.is_held("shim.lock")? {
            // It fails only when the shim is already gone.
            let _ = kill(pid, Signal::SIGKILL);
        }
        Ok(true)
    }

    fn is_held(&self, name: &str) -> Result<bool, FileError> {
        let path = self.path.join(name);
        lock::is_held(&path).map_err(|source| FileError::new("probe", &path, source))
    }

    fn take(&self, name: &str) -> Result<Option<Lock>, FileError> {
        let path = self.path.join(name);
        Lock::take(&path).map_err(|source| FileError::new("lock", &path, source))
    }
}
