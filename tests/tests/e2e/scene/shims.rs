//! The shims of the scene's agent, as processes.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sysinfo::{ProcessRefreshKind, ProcessesToUpdate, System, UpdateKind};

use super::Scene;

impl Scene {
    /// The process of the shim that runs a Pod's first VM.
    pub(crate) fn shim_pid(&self, uid: &str) -> Result<Pid> {
        let pid = std::fs::read_to_string(self.first_run_dir(uid).join("shim.pid"))?;
        Ok(Pid::from_raw(pid.trim().parse()?))
    }

    /// Sends a signal to the shim of a Pod's first VM.
    pub(crate) fn signal_shim(&self, uid: &str, signal: Signal) -> Result<()> {
        kill(self.shim_pid(uid)?, signal).context("cannot reach the shim")
    }

    /// Kills the shims of this scene's agent, and nothing else.
    pub(crate) fn kill_shims(&self) -> Result<()> {
        self.signal_shims(Signal::SIGKILL)
    }

    /// Sends a signal to the shims of this scene's agent, and to nothing else.
    pub(crate) fn signal_shims(&self, signal: Signal) -> Result<()> {
        let mut system = System::new().context("cannot look at processes")?;
        let arguments = ProcessRefreshKind::nothing().with_cmd(UpdateKind::Always);
        system.refresh_processes_specifics(ProcessesToUpdate::All, true, arguments);
        let mut found = 0;
        for process in system.processes().values() {
            if self.is_shim(process) && process.thread_kind().is_none() {
                let pid = Pid::from_raw(process.pid().as_u32().try_into()?);
                kill(pid, signal).with_context(|| format!("cannot send {signal} to {pid}"))?;
                found += 1;
            }
        }
        ensure!(found > 0, "there is no shim to send {signal} to");
        Ok(())
    }

    /// Whether a process is a shim of this scene's agent.
    pub(crate) fn is_shim(&self, process: &sysinfo::Process) -> bool {
        let argument = |index: usize| process.cmd().get(index).map(Path::new);
        argument(1) == Some("shim".as_ref())
            && argument(2).is_some_and(|dir| dir.starts_with(self.agent.state_dir()))
    }
}
