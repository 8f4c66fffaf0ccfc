//! `exec`: a command in the guest, through the guest agent.

use std::time::Duration;

use futures::StreamExt as _;
use tokio::time::timeout;

use super::Target;
use super::finding::Finding;
use crate::guest::{ExecEvent, Guest, GuestError};
use crate::report::chain;
use crate::state::GuestCommand;

/// How much of what the command writes is kept.
const MAX_OUTPUT: usize = 10 << 10;

/// Runs the command in the container's surroundings; it passes when it exits with 0.
pub(super) async fn probe(target: &Target, command: &[String], limit: Duration) -> Finding {
    let argv = target.enter.iter().chain(command).cloned().collect();
    match timeout(limit, run(target, GuestCommand { argv, env: Vec::new(), working_dir: None })).await {
        Ok(Ok((0, _))) => Finding::Passed,
        Ok(Ok((_, output))) => Finding::Failed(output),
        // Whether the guest, its agent or the container's program is to blame cannot be told from here, and each of them is
        // reason enough to say that the container is not well.
        Ok(Err(error)) => Finding::Failed(chain(&error)),
        Err(_) => {
            let line = command.join(" ");
            Finding::Failed(format!("command timed out: {line:?} timed out after {limit:?}"))
        }
    }
}

/// The command's exit code and the beginning of its output. The guest kills a command that nobody waits for any more.
async fn run(target: &Target, command: GuestCommand) -> Result<(i32, String), GuestError> {
    let mut guest = Guest::connect(&target.control_socket).await?;
    let mut events = guest.exec(&command).await?;
    let mut output = Vec::new();
    while let Some(event) = events.next().await {
        match event? {
            ExecEvent::Stdout(bytes) | ExecEvent::Stderr(bytes) => {
                let room = MAX_OUTPUT.saturating_sub(output.len());
                output.extend_from_slice(&bytes[..bytes.len().min(room)]);
            }
            ExecEvent::Exit(code) => return Ok((code, String::from_utf8_lossy(&output).into_owned())),
        }
    }
    Err(GuestError::Nonsense("a command that ends without an exit code".to_owned()))
}
