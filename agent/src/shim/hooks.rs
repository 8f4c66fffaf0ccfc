//! Lifecycle hooks: what a container has done right after its start, or right before its end.

use std::net::IpAddr;
use std::time::Duration;

use tokio::time::sleep;

use crate::guest::{Exec, Guest, GuestError};
use crate::probe::http::{HttpError, Purpose};
use crate::state::Hook;

/// A hook that runs for longer than this has been forgotten; the grace period ends it sooner.
const LIMIT: Duration = Duration::from_hours(24);
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

/// Runs a hook to its end. `enter` goes before a command that is to run in the container's environment.
pub(super) async fn run(
    hook: &Hook,
    guest: &mut Guest,
    enter: &[String],
    address: IpAddr,
) -> Result<(), HookError> {
    match hook {
        Hook::Exec(argv) => run_command(argv, guest, enter).await,
        other => run_outside(other, address).await,
    }
}

/// Runs a hook that is a command in the guest.
pub(super) async fn run_command(
    argv: &[String],
    guest: &mut Guest,
    enter: &[String],
) -> Result<(), HookError> {
    let program = argv.first().cloned().unwrap_or_default();
    let exec = Exec { argv: enter.iter().chain(argv).cloned().collect(), ..Exec::default() };
    let done = guest.run(exec, LIMIT, MAX_OUTPUT).await;
    match done.end {
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
