//! Processes in a sandbox: long-running ones with a log, and short ones with a deadline.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use tokio::io::AsyncWriteExt;

use crate::wait::eventually;

/// How much of a log an error shows.
const SHOWN_LINES: usize = 20;

/// A running program whose output goes to a log file; dropping it kills it.
#[derive(Debug)]
pub struct Process {
    name: String,
    pid: Pid,
    // Not tokio's: it must outlive the runtime of the test that started it.
    child: Mutex<Child>,
    log: PathBuf,
}

impl Process {
    /// Starts a command in a process group of its own, so that Ctrl-C in a terminal is left to the one who started it.
    pub fn start(name: &str, command: &mut Command, log: &Path) -> Result<Self> {
        let file = File::options()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("cannot write {}", log.display()))?;
        let errors = file.try_clone().context("cannot share a log")?;
        let child = command
            .process_group(0)
            .stdout(file)
            .stderr(errors)
            .spawn()
            .with_context(|| format!("cannot start {name} ({})", command.get_program().display()))?;
        let pid = Pid::from_raw(child.id().try_into().context("a process id does not fit")?);
        Ok(Self { name: name.to_owned(), pid, child: Mutex::new(child), log: log.to_owned() })
    }

    /// The process id.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// How the process ended, if it did.
    pub fn exit_status(&self) -> Result<Option<ExitStatus>> {
        self.child().try_wait().with_context(|| format!("cannot ask for the end of {}", self.name))
    }

    /// Sends a signal; an error when the process has ended.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        // Locked, so that no other thread reaps the process and the signal hits another one.
        let mut child = self.child();
        let ended = child.try_wait().with_context(|| format!("cannot ask for the end of {}", self.name))?;
        ensure!(ended.is_none(), "{} has ended: {}", self.name, ended.unwrap_or_default());
        kill(self.pid, signal).with_context(|| format!("cannot send {signal} to {}", self.name))
    }

    /// Kills the process at once and reaps it.
    pub fn kill9(&self) -> Result<ExitStatus> {
        let mut child = self.child();
        // An error says that it has ended already.
        let _ = child.kill();
        child.wait().with_context(|| format!("cannot reap {}", self.name))
    }

    /// Waits until the process has ended by itself.
    pub async fn wait_for_exit(&self, deadline: Duration) -> Result<ExitStatus> {
        eventually(&format!("the end of {}", self.name), deadline, async || {
            self.exit_status()?.context("it is still running")
        })
        .await
        .with_context(|| self.last_lines())
    }

    /// An error with the end of the log, when the process has ended.
    pub fn ensure_running(&self) -> Result<()> {
        match self.exit_status()? {
            None => Ok(()),
            Some(status) => bail!("{} died: {status}\n{}", self.name, self.last_lines()),
        }
    }

    /// The log file.
    pub fn log_path(&self) -> &Path {
        &self.log
    }

    /// What the process has written so far, to stdout and stderr.
    pub fn log(&self) -> Result<String> {
        let log = std::fs::read(&self.log).with_context(|| format!("cannot read {}", self.log.display()))?;
        Ok(String::from_utf8_lossy(&log).into_owned())
    }

    /// The end of the log, for an error message.
    pub fn last_lines(&self) -> String {
        let log = self.log().unwrap_or_else(|error| format!("{error:#}"));
        let lines: Vec<_> = log.lines().collect();
        let shown = lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n");
        format!("last lines of {}:\n{shown}", self.log.display())
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The keeper kills it if this fails.
        let _ = self.kill9();
    }
}

/// Runs a command to its end and returns its stdout; the error has its stderr.
pub async fn run(command: Command, input: &str, deadline: Duration) -> Result<String> {
    let shown = shown(&command);
    let mut command = tokio::process::Command::from(command);
    let mut child = command
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("cannot start {shown}"))?;
    let group = child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
    let stdin = child.stdin.take();
    let talk = async {
        if let Some(mut stdin) = stdin {
            // A program that does not read its input reports that by its exit code.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
        child.wait_with_output().await
    };
    let Ok(output) = tokio::time::timeout(deadline, talk).await else {
        if let Some(group) = group {
            let _ = killpg(group, Signal::SIGKILL);
        }
        bail!("{shown} did not end within {deadline:?}");
    };
    let output = output.with_context(|| format!("cannot hear from {shown}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{shown} failed: {}\n{}", output.status, errors.trim_end());
    String::from_utf8(output.stdout).with_context(|| format!("{shown} wrote something that is not UTF-8"))
}

/// A command line for an error message.
fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or_else(|| command.get_program());
    let words: Vec<_> =
        std::iter::once(program).chain(command.get_args()).map(OsStr::to_string_lossy).collect();
    words.join(" ")
}
