//! `exec`: a command in the guest, through the guest agent.

use std::time::Duration;

use tokio::time::timeout;

use super::Target;
use super::finding::Finding;
use crate::guest::{Completed, Exec, Guest, GuestError};
use crate::report::chain;

/// How much of what the command writes is kept.
const MAX_OUTPUT: usize = 10 << 10;

/// Runs the command in the container's surroundings; it passes when it exits with 0.
pub(super) async fn probe(target: &Target, command: &[String], limit: Duration) -> Finding {
    let argv = if target.probe.is_empty() {
        target.enter.iter().chain(command).cloned().collect()
    } else {
        let seconds = limit.as_secs().max(1).to_string();
        target.probe.iter().chain([&seconds]).chain(command).cloned().collect()
    };
    let run = async {
        let mut guest = Guest::connect(&target.control_socket).await?;
        let Completed { end, output } = guest.run(Exec { argv, ..Exec::default() }, limit, MAX_OUTPUT).await;
        Ok((end?, output))
    };
    match timeout(limit, run).await {
        Ok(Ok((0, _))) => Finding::Passed,
        Ok(Ok((_, output))) => Finding::Failed(String::from_utf8_lossy(&output).into_owned()),
        Ok(Err(GuestError::Late(_))) | Err(_) => {
            let line = command.join(" ");
            Finding::Failed(format!("command timed out: {line:?} timed out after {limit:?}"))
        }
        // Whether the guest or its agent is to blame cannot be told from here, and either is reason enough to say that the container
        // is not well.
        Ok(Err(error @ GuestError::Unreachable(_))) => Finding::Failed(chain(&error)),
        // Some guest agents break off at a command's very end.
        Ok(Err(error)) => Finding::Errored(chain(&error)),
    }
}
