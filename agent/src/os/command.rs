//! One short call of a small program of the host: bounded in time, killed with its children when it is late.
//!
//! `tart` is not small; it has a module of its own.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::process::Command;
use tokio::time::timeout;

/// A call that gave no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProgramError {
    /// The program could not be started.
    #[error("cannot run {}", .0.display())]
    Spawn(PathBuf, #[source] io::Error),
    /// It did not end in time, and was killed.
    #[error("{} did not answer within {} s", .0.display(), .1.as_secs())]
    Late(PathBuf, Duration),
    /// It failed.
    #[error("{} failed ({status}): {said}", program.display())]
    Failed {
        /// The program.
        program: PathBuf,
        /// How it ended.
        status: ExitStatus,
        /// The last line of what it said.
        said: String,
    },
}

/// Runs a program to its end and returns what it printed.
pub(crate) async fn run<A: AsRef<OsStr>>(
    program: &Path,
    arguments: &[A],
    limit: Duration,
) -> Result<String, ProgramError> {
    let unable = |error| ProgramError::Spawn(program.to_owned(), error);
    let child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(unable)?;
    let group = child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
    let Ok(output) = timeout(limit, child.wait_with_output()).await else {
        if let Some(group) = group {
            // An error says that nobody of it is left.
            let _ = killpg(group, Signal::SIGKILL);
        }
        return Err(ProgramError::Late(program.to_owned(), limit));
    };
    let output = output.map_err(unable)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let last = errors.lines().rev().map(str::trim).find(|line| !line.is_empty());
    let said = last.unwrap_or("it said nothing").chars().take(300).collect();
    Err(ProgramError::Failed { program: program.to_owned(), status: output.status, said })
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn shell(script: &str, limit: Duration) -> Result<String, ProgramError> {
        run(Path::new("/bin/sh"), &["-c", script], limit).await
    }

    #[tokio::test]
    async fn an_answer_a_failure_and_silence_are_told_apart() {
        let long = Duration::from_mins(1);
        assert_eq!(shell("echo yes", long).await.unwrap(), "yes\n");
        let error = shell("echo no >&2; exit 3", long).await.unwrap_err().to_string();
        assert!(error.contains("exit status: 3") && error.ends_with(": no"), "{error}");
        let late = shell("sleep 1000 & wait", Duration::from_millis(50)).await.unwrap_err();
        assert!(matches!(late, ProgramError::Late(..)), "{late}");
        let missing = run::<&str>(Path::new("/nowhere/x"), &[], long).await.unwrap_err().to_string();
        assert!(missing.contains("/nowhere/x"), "{missing}");
    }
}
