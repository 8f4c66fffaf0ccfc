//! One call of `tart`: marked for the next agent, and its failures told apart.

use std::ffi::OsStr;
use std::time::Duration;

use command::{CommandError, run_with_pid_and_lines};
use tokio::process::Command;

use super::call_record::CallRecord;
use super::error::TartError;
use super::stale_calls;

/// Runs `command` to its end and returns its standard output.
pub(super) async fn call(command: Command, deadline: Duration) -> Result<String, TartError> {
    call_with_lines(command, deadline, |_| ()).await
}

/// The same, and passes each line of its standard output to `on_line` as it comes.
pub(super) async fn call_with_lines(
    mut command: Command,
    deadline: Duration,
    on_line: impl FnMut(&str),
) -> Result<String, TartError> {
    let line = command_line(&command);
    let marks = stale_calls::mark(&mut command, deadline);
    // Removed when the call ends, or is dropped.
    let mut record = None;
    let on_start = |pid| record = marks.as_ref().and_then(|marks| CallRecord::write(pid, marks));
    match run_with_pid_and_lines(command, deadline, on_start, on_line).await {
        Ok(output) if output.status.success() => Ok(output.stdout),
        Ok(output) => Err(TartError::failed(line, output.status, &output.stderr)),
        Err(CommandError::Run { program, source }) => Err(TartError::Spawn { program, source }),
        Err(CommandError::DeadlineExceeded { .. }) => {
            Err(TartError::DeadlineExceeded { command: line, deadline })
        }
        Err(CommandError::Failed { status, message, .. }) => Err(TartError::failed(line, status, &message)),
    }
}

/// The command as a user would type it. Secrets are in the environment, never here.
fn command_line(command: &Command) -> String {
    let args = command.as_std().get_args().map(OsStr::to_string_lossy);
    std::iter::once("tart".into()).chain(args).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[tokio::test]
    async fn the_environment_of_a_call_has_its_deadline() {
        let deadline = Duration::from_hours(1);
        let printed = call(shell("echo $TART_KUBELET_DEADLINE"), deadline).await.unwrap();
        let left = printed.trim().parse::<i64>().unwrap() - jiff::Timestamp::now().as_second();
        assert!(left > 0 && left <= 3600, "{left}");
    }

    #[tokio::test]
    async fn a_call_is_on_record_while_it_runs() {
        let dir = crate::testing::dir();
        // The record is written once the program has its process id.
        let script = "record=$TART_KUBELET_TART_HOME/tart-kubelet.calls/$$; until [ -s \"$record\" ]; do :; done; cat \"$record\"";
        let mut command = shell(script);
        command.env(stale_calls::HOME, dir.path());
        let printed = call(command, Duration::from_mins(1)).await.unwrap();
        assert!(printed.contains("deadline") && printed.contains("caller"), "{printed}");
        assert_eq!(std::fs::read_dir(dir.path().join("tart-kubelet.calls")).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn every_failure_is_an_error_of_tart() {
        let error = call(shell("sleep 1000"), Duration::from_millis(50)).await.unwrap_err();
        assert!(matches!(error, TartError::DeadlineExceeded { .. }), "{error}");
        let error = call(shell("echo Error: no >&2; exit 2"), Duration::from_mins(1)).await.unwrap_err();
        assert!(error.to_string().ends_with("failed (exit code 2): no"), "{error}");
        let error = call(Command::new("/nowhere/tart"), Duration::from_secs(1)).await.unwrap_err();
        assert!(error.to_string().contains("/nowhere/tart"), "{error}");
    }
}
