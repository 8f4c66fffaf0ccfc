//! `exec`: a command in the guest, through the guest agent.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::Target;
use super::result::ProbeResult;
use crate::error_chain::chain;
use crate::guest::{Completed, Exec, Guest, GuestError};

/// How much of what the command writes is kept.
const MAX_OUTPUT: usize = 10 << 10;

/// Runs the command in the container's surroundings; it passes when it exits with 0.
pub(super) async fn probe(target: &Target, command: &[String], limit: Duration) -> ProbeResult {
    let argv = if target.probe.is_empty() {
        target.enter.iter().chain(command).cloned().collect()
    } else {
        let seconds = limit.as_secs().max(1).to_string();
        target.probe.iter().chain([&seconds]).chain(command).cloned().collect()
    };
    let begun = Instant::now();
    let run = async {
        let mut guest = Guest::connect(&target.control_socket).await?;
        let Completed { end, output } = guest.run(Exec { argv, ..Exec::default() }, limit, MAX_OUTPUT).await;
        Ok((end?, output))
    };
    let end = timeout(limit, run).await.unwrap_or(Err(GuestError::Late(limit)));
    finding(end, begun.elapsed(), command, limit)
}

/// What the end of a command means that was seen after so long.
fn finding(
    end: Result<(i32, Vec<u8>), GuestError>,
    took: Duration,
    command: &[String],
    limit: Duration,
) -> ProbeResult {
    match end {
        Ok((0, _)) => ProbeResult::Passed,
        Ok((_, output)) if took < limit => ProbeResult::Failed(String::from_utf8_lossy(&output).into_owned()),
        // The guest keeps the same limit, and its word of that may be here before our own clock is heard.
        Ok(_) | Err(GuestError::Late(_)) => {
            let line = command.join(" ");
            ProbeResult::Failed(format!("command timed out: {line:?} timed out after {limit:?}"))
        }
        // Whether the guest or its agent is to blame cannot be told from here, and either is reason enough to say that the container
        // is not well.
        Err(error @ GuestError::Unreachable(_)) => ProbeResult::Failed(chain(&error)),
        // Some guest agents break off at a command's very end.
        Err(error) => ProbeResult::Errored(chain(&error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_killed_for_being_late_has_timed_out_whoever_says_so_first() {
        let limit = Duration::from_secs(1);
        let command = ["sleep".to_owned(), "9".to_owned()];
        let after = |millis, end| finding(end, Duration::from_millis(millis), &command, limit);
        let late = ProbeResult::Failed("command timed out: \"sleep 9\" timed out after 1s".into());
        assert_eq!(after(1000, Err(GuestError::Late(limit))), late);
        assert_eq!(after(1000, Ok((137, Vec::new()))), late);
        assert_eq!(after(2000, Ok((1, b"no".to_vec()))), late);
        // In time, and as somebody else's kill.
        assert_eq!(after(999, Ok((137, b"no".to_vec()))), ProbeResult::Failed("no".into()));
        // It has done what it was to do, and may have done so long before we came to look.
        assert_eq!(after(2000, Ok((0, Vec::new()))), ProbeResult::Passed);
    }
}
