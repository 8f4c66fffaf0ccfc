//! One call of a program: it has a deadline, a bounded part of its output is kept, and its whole process group is killed when the
//! deadline passes or the caller drops the call.

mod error;
mod output;
mod process_group;

pub use error::CommandError;

use std::ffi::OsStr;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;

use output::{Lines, drain};
use process_group::ProcessGroup;

/// How long a pipe may stay open after the program itself has ended: a grandchild can hold it for ever.
const PIPE_TIMEOUT: Duration = Duration::from_secs(2);

/// How a program ended, and what it printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// How it ended.
    pub status: ExitStatus,
    /// The first 4 MiB of its standard output.
    pub stdout: String,
    /// The first 4 MiB of its standard error.
    pub stderr: String,
}

/// Runs a program to its end and returns its standard output. An exit status other than 0 is an error.
pub async fn stdout<A: AsRef<OsStr>>(
    program: &Path,
    arguments: &[A],
    deadline: Duration,
) -> Result<String, CommandError> {
    let mut command = Command::new(program);
    command.args(arguments);
    let output = run(command, deadline).await?;
    if output.status.success() { Ok(output.stdout) } else { Err(CommandError::failed(program, &output)) }
}

/// Runs a command to its end. It reads nothing, and has a process group of its own.
pub async fn run(command: Command, deadline: Duration) -> Result<Output, CommandError> {
    run_with_lines(command, deadline, |_| ()).await
}

/// The same, and passes each line of its standard output to `on_line` as it comes. A line ends with `\n` or `\r`, and is cut after
/// 256 bytes.
pub async fn run_with_lines(
    command: Command,
    deadline: Duration,
    on_line: impl FnMut(&str),
) -> Result<Output, CommandError> {
    run_with_pid_and_lines(command, deadline, |_| (), on_line).await
}

/// The same, and passes the ID of its process to `on_start` as soon as it runs.
pub async fn run_with_pid_and_lines(
    mut command: Command,
    deadline: Duration,
    on_start: impl FnOnce(u32),
    on_line: impl FnMut(&str),
) -> Result<Output, CommandError> {
    let program = command.as_std().get_program().to_owned();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().map_err(|source| CommandError::run(&program, source))?;
    let mut group = ProcessGroup::of(&child);
    if let Some(pid) = child.id() {
        on_start(pid);
    }
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let (mut out, mut err) = (child.stdout.take(), child.stderr.take());
    let ended = {
        let mut lines = Lines::new(on_line);
        let read = async {
            let out = drain(&mut out, &mut stdout, |chunk| lines.push(chunk));
            tokio::join!(out, drain(&mut err, &mut stderr, |_| ()))
        };
        tokio::pin!(read);
        let run = async {
            tokio::select! {
                // The pipes usually close first, a moment before the process can be waited for.
                _ = &mut read => child.wait().await,
                status = child.wait() => {
                    let _ = timeout(PIPE_TIMEOUT, &mut read).await;
                    status
                }
            }
        };
        timeout(deadline, run).await
    };
    let Ok(status) = ended else {
        group.kill();
        let _ = timeout(PIPE_TIMEOUT, child.wait()).await;
        return Err(CommandError::DeadlineExceeded { program: program.into(), deadline });
    };
    let status = status.map_err(|source| CommandError::run(&program, source))?;
    // What a program leaves behind when it ends by itself may live on.
    group.release();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(Output { status, stdout: text(&stdout), stderr: text(&stderr) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;

    const LONG: Duration = Duration::from_mins(1);

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[tokio::test]
    async fn success_failure_and_deadline_are_told_apart() {
        let sh = async |script: &str, deadline| stdout(Path::new("/bin/sh"), &["-c", script], deadline).await;
        assert_eq!(sh("echo yes", LONG).await.unwrap(), "yes\n");
        let error = sh("echo no >&2; exit 3", LONG).await.unwrap_err().to_string();
        assert!(error.contains("exit status: 3") && error.ends_with(": no"), "{error}");
        let late = sh("sleep 1000 & wait", Duration::from_millis(50)).await.unwrap_err();
        assert!(matches!(late, CommandError::DeadlineExceeded { .. }), "{late}");
        let missing = stdout::<&str>(Path::new("/nowhere/x"), &[], LONG).await.unwrap_err().to_string();
        assert!(missing.contains("/nowhere/x"), "{missing}");
    }

    #[tokio::test]
    async fn output_is_bounded_and_never_blocks_the_program() {
        let output = run(shell("head -c 20000000 /dev/zero"), LONG).await.unwrap();
        assert_eq!(output.stdout.len(), output::MAX_OUTPUT);
    }

    #[tokio::test]
    async fn lines_are_passed_on_as_they_come_and_cut_short() {
        let mut lines = Vec::new();
        let script = "printf 'a\\nb'; printf 'c\\n\\n'; head -c 1000 /dev/zero; printf '\\nrest'";
        let output = run_with_lines(shell(script), LONG, |line| lines.push(line.to_owned())).await;
        assert_eq!(output.unwrap().stdout.len(), 3 + 3 + 1000 + 5);
        assert_eq!(lines, ["a", "bc", "", &"\0".repeat(output::MAX_LINE)]);
    }

    #[tokio::test]
    async fn a_command_that_misses_its_deadline_is_killed_with_its_children() {
        // A slow machine needs longer to start the shell.
        let mut deadline = Duration::from_millis(300);
        let pids = loop {
            let mut pids = String::new();
            let script = shell("sleep 1000 & echo $! $$; wait");
            let error = run_with_lines(script, deadline, |line| pids = line.to_owned()).await;
            assert!(matches!(error, Err(CommandError::DeadlineExceeded { .. })), "{error:?}");
            if pids.split_whitespace().count() == 2 {
                break pids;
            }
            deadline *= 2;
            assert!(deadline < LONG, "the shell printed {pids:?}");
        };
        all_end(&pids).await;
    }

    #[tokio::test]
    async fn a_command_that_is_dropped_is_killed_with_its_children() {
        let (sent, mut pids) = tokio::sync::mpsc::unbounded_channel();
        let script = shell("sleep 1000 & echo $! $$; wait");
        let call = run_with_lines(script, LONG, move |line| drop(sent.send(line.to_owned())));
        let pids = tokio::select! {
            ended = call => panic!("nothing ends it: {ended:?}"),
            Some(pids) = pids.recv() => pids,
        };
        all_end(&pids).await;
    }

    /// Waits until none of these processes runs.
    async fn all_end(pids: &str) {
        let end = std::time::Instant::now() + LONG;
        while pids.split_whitespace().any(is_running) {
            assert!(std::time::Instant::now() < end, "one of {pids} still runs");
            tokio::task::yield_now().await;
        }
    }

    /// Whether a process runs; a zombie does not.
    fn is_running(pid: &str) -> bool {
        let output = std::process::Command::new("ps").args(["-o", "stat=", "-p", pid]).output().unwrap();
        let state = String::from_utf8_lossy(&output.stdout);
        !state.trim().is_empty() && !state.trim_start().starts_with('Z')
    }

    #[tokio::test]
    async fn a_grandchild_that_holds_the_pipe_does_not_hold_the_call() {
        let output = run(shell("sleep 1000 & echo $!"), LONG).await.unwrap();
        let sleeper = Pid::from_raw(output.stdout.trim().parse().unwrap());
        kill(sleeper, Signal::SIGKILL).unwrap();
    }
}
