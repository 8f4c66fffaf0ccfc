//! Lifecycle hooks: what a container has done right after its start, or right before its end.

use std::net::IpAddr;
use std::time::Duration;

use tokio::time::sleep;

use super::follow::told_code;
use crate::guest::script::Ready;
use crate::guest::{Exec, Guest, GuestError};
use crate::probe::http::{HttpError, Purpose};
use crate::state::Hook;

/// A hook that runs for longer than this has been forgotten; the grace period ends it sooner.
const LIMIT: Duration = Duration::from_hours(24);
/// How long the guest may take to tell the exit code of one whose connection broke off.
const CODE_LIMIT: Duration = Duration::from_secs(5);
/// How much of its output is told when it fails.
const MAX_OUTPUT: usize = 1 << 10;

/// A hook that failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum HookError {
    #[error("command `{program}` exited with {code}: {said}")]
    Command { program: String, code: i32, said: String },
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error("HTTP hook failed with statuscode: {0}")]
    Status(u16),
    #[error("{0}")]
    Impossible(String),
    #[error("command `{0}` could not be run")]
    Guest(String, #[source] GuestError),
}

/// A turn in the life of a container that has its environment in the guest.
#[derive(Debug, Clone, Copy)]
pub(super) struct Turn<'a> {
    pub(super) ready: &'a Ready,
    pub(super) name: &'static str,
}

/// Runs a hook of a container to its end.
pub(super) async fn run(
    hook: &Hook,
    guest: &mut Guest,
    turn: Turn<'_>,
    address: IpAddr,
) -> Result<(), HookError> {
    match hook {
        Hook::Exec(argv) => run_command(argv, guest, Some(turn)).await,
        other => run_outside(other, address).await,
    }
}

/// Runs a hook that is a command in the guest, in the environment of a container when there is one.
pub(super) async fn run_command(
    argv: &[String],
    guest: &mut Guest,
    turn: Option<Turn<'_>>,
) -> Result<(), HookError> {
    let program = argv.first().cloned().unwrap_or_default();
    let before = turn.map(|turn| turn.ready.hook(turn.name)).unwrap_or_default();
    let exec = Exec { argv: before.iter().chain(argv).cloned().collect(), ..Exec::default() };
    let done = guest.run(exec, LIMIT, MAX_OUTPUT).await;
    let end = match (done.end, turn) {
        // Some guest agents break off at a command's very end; the guest knows better.
        (Err(error @ (GuestError::Refused(_) | GuestError::Nonsense(_))), Some(turn)) => {
            let exec = Exec { argv: turn.ready.hook_code(turn.name, CODE_LIMIT), ..Exec::default() };
            told_code(&guest.run(exec, CODE_LIMIT, MAX_OUTPUT).await.output).ok_or(error)
        }
        (end, _) => end,
    };
    match end {
        Ok(0) => Ok(()),
        Ok(code) => {
            let said = String::from_utf8_lossy(&done.output).trim().to_owned();
            Err(HookError::Command { program, code, said })
        }
        Err(error) => Err(HookError::Guest(program, error)),
    }
}

/// Runs a hook that needs nobody in the guest.
pub(super) async fn run_outside(hook: &Hook, address: IpAddr) -> Result<(), HookError> {
    match hook {
        Hook::Sleep(time) => {
            sleep(*time).await;
            Ok(())
        }
        Hook::Impossible(why) => Err(HookError::Impossible(why.clone())),
        Hook::HttpGet(get) => {
            let answer = get.send(address, Purpose::Lifecycle, LIMIT).await?;
            if answer.status.is_success() || answer.status.is_redirection() {
                return Ok(());
            }
            Err(HookError::Status(answer.status.as_u16()))
        }
        Hook::Exec(_) => Err(HookError::Impossible("a command cannot run outside of the guest".to_owned())),
    }
}
