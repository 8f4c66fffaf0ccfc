//! `exec`: a command in the guest, through the guest agent.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::Target;
use super::result::ProbeResult;
use crate::error_chain::chain;
use crate::guest::{Completed, Exec, GuestError};

/// How much of what the command writes is kept.
const MAX_OUTPUT: usize = 10 << 10;

/// Runs the command as the container's own user, directory and environment. Exit code 0 passes.
pub(super) async fn probe(target: &Target, command: &[String], limit: Duration) -> ProbeResult {
    let argv = if target.probe.is_empty() {
        target.enter.iter().chain(command).cloned().collect()
    } else {
        let seconds = limit.as_secs().max(1).to_string();
        target.probe.iter().chain([&seconds]).chain(command).cloned().collect()
    };
    let begun = Instant::now();
    let run = async {
        let Completed { end, output } =
            target.guest.clone().run(Exec { argv, ..Exec::default() }, limit, MAX_OUTPUT).await;
        Ok((end?, output))
    };
    let end = timeout(limit, run).await.unwrap_or(Err(GuestError::Late(limit)));
    finding(end, begun.elapsed(), command, limit)
}

/// The result of a command that ended after `took`.
fn finding(
    end: Result<(i32, Vec<u8>), GuestError>,
    took: Duration,
    command: &[String],
    limit: Duration,
) -> ProbeResult {
    match end {
        Ok((0, _)) => ProbeResult::Passed,
        Ok((_, output)) if took < limit => ProbeResult::Failed(String::from_utf8_lossy(&output).into_owned()),
        // The guest enforces the same limit and may report it first.
        Ok(_) | Err(GuestError::Late(_)) => {
            let line = command.join(" ");
            ProbeResult::Failed(format!("command timed out: {line:?} timed out after {limit:?}"))
        }
        // The agent cannot tell whether the guest or its guest agent failed. Either way the probe fails, as that of a guest that writes
        // without end does.
        Err(error @ (GuestError::Unreachable(_) | GuestError::Flood(_))) => {
            ProbeResult::Failed(chain(&error))
        }
        // Some guest agents close the stream before they send the exit code.
        Err(error) => ProbeResult::Errored(chain(&error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_killed_for_its_time_limit_has_timed_out() {
        let limit = Duration::from_secs(1);
        let command = ["sleep".to_owned(), "9".to_owned()];
        let after = |millis, end| finding(end, Duration::from_millis(millis), &command, limit);
        let late = ProbeResult::Failed("command timed out: \"sleep 9\" timed out after 1s".into());
        assert_eq!(after(1000, Err(GuestError::Late(limit))), late);
        assert_eq!(after(1000, Ok((137, Vec::new()))), late);
        assert_eq!(after(2000, Ok((1, b"no".to_vec()))), late);
        // In time: another process sent the signal.
        assert_eq!(after(999, Ok((137, b"no".to_vec()))), ProbeResult::Failed("no".into()));
        // Exit code 0 passes, whenever the agent sees it.
        assert_eq!(after(2000, Ok((0, Vec::new()))), ProbeResult::Passed);
    }
}
