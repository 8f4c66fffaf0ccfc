//! One call of `tart` that is bounded in time, in memory and in what it can leave behind.

use std::ffi::OsStr;
use std::io;
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::error::TartError;
use super::stale_calls;

/// Output beyond this is dropped; no answer of tart comes near it.
const MAX_OUTPUT: usize = 4 << 20;

/// No line that anybody waits for comes near it.
const MAX_LINE: usize = 256;

/// How long a pipe may stay open after tart itself has ended: a grandchild can hold it for ever.
const PIPE_PATIENCE: Duration = Duration::from_secs(2);

/// What a successful call printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TartOutput {
    /// Standard output.
    pub(crate) stdout: String,
}

/// Runs `command` to its end, or kills its whole process group when `limit` is over.
pub(super) async fn call(command: Command, limit: Duration) -> Result<TartOutput, TartError> {
    call_heard(command, limit, |_| ()).await
}

/// The same, and tells each line of its standard output as it comes.
pub(super) async fn call_heard(
    mut command: Command,
    limit: Duration,
    hear: impl FnMut(&str),
) -> Result<TartOutput, TartError> {
    let line = shown(&command);
    stale_calls::mark(&mut command, limit);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let program = command.as_std().get_program().to_owned();
    let mut child = command.spawn().map_err(|source| TartError::spawn(program.as_ref(), source))?;
    let mut group = Group::of(&child);
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let (mut out, mut err) = (child.stdout.take(), child.stderr.take());

    let ended = {
        let mut lines = Lines::new(hear);
        let read = async {
            let out = drain(&mut out, &mut stdout, |chunk| lines.take(chunk));
            tokio::join!(out, drain(&mut err, &mut stderr, |_| ()))
        };
        tokio::pin!(read);
        let run = async {
            tokio::select! {
                // The pipes usually close first, a moment before the process can be waited for.
                _ = &mut read => child.wait().await,
                status = child.wait() => {
                    let _ = timeout(PIPE_PATIENCE, &mut read).await;
                    status
                }
            }
        };
        timeout(limit, run).await
    };
    let Ok(status) = ended else {
        group.kill();
        let _ = timeout(PIPE_PATIENCE, child.wait()).await;
        return Err(TartError::Hung { command: line, after: limit });
    };
    let status = status.map_err(|source| TartError::spawn(program.as_ref(), source))?;
    group.forget();
    if status.success() {
        Ok(TartOutput { stdout: String::from_utf8_lossy(&stdout).into_owned() })
    } else {
        Err(TartError::failed(line, status, &String::from_utf8_lossy(&stderr)))
    }
}

/// Reads to the end, keeping no more than [`MAX_OUTPUT`]; the rest is read and dropped so that the writer never blocks.
async fn drain(
    pipe: &mut Option<impl AsyncRead + Unpin>,
    into: &mut Vec<u8>,
    mut hear: impl FnMut(&[u8]),
) -> io::Result<()> {
    let Some(pipe) = pipe else { return Ok(()) };
    let mut chunk = vec![0; 16 << 10];
    loop {
        let read = pipe.read(&mut chunk).await?;
        if read == 0 {
            return Ok(());
        }
        hear(&chunk[..read]);
        let room = MAX_OUTPUT.saturating_sub(into.len());
        into.extend_from_slice(&chunk[..read.min(room)]);
    }
}

/// Cuts output into lines. What is too long to be a line of tart's is cut short.
struct Lines<F> {
    line: Vec<u8>,
    hear: F,
}

impl<F: FnMut(&str)> Lines<F> {
    fn new(hear: F) -> Self {
        Self { line: Vec::new(), hear }
    }

    fn take(&mut self, chunk: &[u8]) {
        for &byte in chunk {
            if matches!(byte, b'\n' | b'\r') {
                (self.hear)(&String::from_utf8_lossy(&self.line));
                self.line.clear();
            } else if self.line.len() < MAX_LINE {
                self.line.push(byte);
            }
        }
    }
}

/// The process group of a call: killed when the call is given up, also by dropping its future.
struct Group(Option<Pid>);

impl Group {
    fn of(child: &Child) -> Self {
        Self(child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw))
    }

    fn kill(&mut self) {
        if let Some(group) = self.0.take() {
            // It fails only when nobody of the group is left, which is what we want.
            let _ = killpg(group, Signal::SIGKILL);
        }
    }

    fn forget(&mut self) {
        self.0 = None;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The command as a person would type it. Secrets are passed by environment, never here.
fn shown(command: &Command) -> String {
    let args = command.as_std().get_args().map(OsStr::to_string_lossy);
    std::iter::once("tart".into()).chain(args).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::null()).process_group(0);
        command
    }

    #[tokio::test]
    async fn output_is_bounded_and_never_blocks_the_writer() {
        let output = call(shell("head -c 20000000 /dev/zero"), Duration::from_mins(1)).await.unwrap();
        assert_eq!(output.stdout.len(), MAX_OUTPUT);
    }

    #[tokio::test]
    async fn a_call_says_when_it_is_to_be_over() {
        let limit = Duration::from_hours(1);
        let said = call(shell("echo $TART_KUBELET_DEADLINE"), limit).await.unwrap().stdout;
        let left = said.trim().parse::<i64>().unwrap() - jiff::Timestamp::now().as_second();
        assert!(left > 0 && left <= 3600, "{left}");
    }

    #[tokio::test]
    async fn lines_are_told_as_they_come_and_cut_short() {
        let mut heard = Vec::new();
        let script = "printf 'a\\nb'; printf 'c\\n\\n'; head -c 1000 /dev/zero; printf '\\nrest'";
        let output =
            call_heard(shell(script), Duration::from_mins(1), |line| heard.push(line.to_owned())).await;
        assert_eq!(output.unwrap().stdout.len(), 3 + 3 + 1000 + 5);
        assert_eq!(heard, ["a", "bc", "", &"\0".repeat(MAX_LINE)]);
    }

    #[tokio::test]
    async fn a_hanging_call_is_killed_with_its_children() {
        let dir =
            tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap();
        let pids = dir.path().join("pids");
        let script = format!("sleep 1000 & echo $! $$ > {}; wait", pids.display());
        let error = call(shell(&script), Duration::from_millis(300)).await.unwrap_err();
        assert!(matches!(error, TartError::Hung { .. }), "{error}");
        let pids = std::fs::read_to_string(&pids).unwrap();
        let all_gone = || pids.split_whitespace().all(|pid| !is_running(pid));
        let end = std::time::Instant::now() + Duration::from_mins(1);
        while !all_gone() {
            assert!(std::time::Instant::now() < end, "one of {pids} still runs");
            tokio::task::yield_now().await;
        }
    }

    /// Whether a process runs; a zombie that nobody has waited for yet does not.
    fn is_running(pid: &str) -> bool {
        let output = std::process::Command::new("ps").args(["-o", "stat=", "-p", pid]).output().unwrap();
        let state = String::from_utf8_lossy(&output.stdout);
        !state.trim().is_empty() && !state.trim_start().starts_with('Z')
    }

    #[tokio::test]
    async fn a_grandchild_that_holds_the_pipe_does_not_hold_the_call() {
        let script = "sleep 1000 & echo $!";
        let output = call(shell(script), Duration::from_mins(1)).await.unwrap();
        let sleeper = Pid::from_raw(output.stdout.trim().parse().unwrap());
        nix::sys::signal::kill(sleeper, Signal::SIGKILL).unwrap();
    }

    #[tokio::test]
    async fn a_missing_program_is_named() {
        let mut command = Command::new("/nowhere/tart");
        command.arg("list");
        let error = call(command, Duration::from_secs(1)).await.unwrap_err();
        assert!(error.to_string().contains("/nowhere/tart"), "{error}");
    }
}
