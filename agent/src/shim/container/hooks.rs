//! Lifecycle hooks: what a container has done right after its start, or right before its end.

use std::net::IpAddr;
use std::time::Duration;

use tokio::time::sleep;

use super::exec_output::told_code;
use crate::error_chain::chain;
use crate::guest::script::Ready;
use crate::guest::{Exec, Guest, GuestError};
use crate::probe::http::{HttpError, Purpose};
use crate::state::container_spec::HttpGet;
use crate::state::{Hook, Notice};

/// A hook that runs for longer than this has been forgotten; the grace period ends it sooner.
const LIMIT: Duration = Duration::from_hours(24);
/// How long the guest may take to tell the exit code of one whose connection broke off.
const CODE_LIMIT: Duration = Duration::from_secs(5);
/// How much of its output the container's status shows when it fails.
const MAX_OUTPUT: usize = 1 << 10;

/// A hook that failed. What it has said may be secret, and is in none of these words.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HookError {
    #[error("command `{program}` exited with {code}")]
    Command { program: String, code: i32, said: String },
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error("{0}")]
    Impossible(String),
    #[error("command `{0}` could not be run")]
    Guest(String, #[source] GuestError),
    #[error("the guest agent does not answer")]
    NoAgent,
}

impl HookError {
    /// All that is known of it, for nothing but the container's status: no Event, and no log.
    pub(crate) fn in_full(&self) -> String {
        match self {
            Self::Command { said, .. } if !said.is_empty() => format!("{}: {said}", chain(self)),
            _ => chain(self),
        }
    }
}

/// A hook that has done its work, and what a person should be told of it all the same.
pub(crate) type Done = Result<Option<Notice>, HookError>;

/// A turn in the life of a container that has its environment in the guest.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HookPoint<'a> {
    pub(crate) ready: &'a Ready,
    pub(crate) name: &'static str,
}

/// Runs a hook of a container to its end.
pub(crate) async fn run(hook: &Hook, guest: &mut Guest, turn: HookPoint<'_>, address: IpAddr) -> Done {
    match hook {
        Hook::Exec(argv) => run_command(argv, guest, Some(turn)).await,
        other => run_outside(other, address).await,
    }
}

/// Runs a hook that is a command in the guest, in the environment of a container when there is one.
pub(crate) async fn run_command(argv: &[String], guest: &mut Guest, turn: Option<HookPoint<'_>>) -> Done {
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
        Ok(0) => Ok(None),
        Ok(code) => {
            let said = String::from_utf8_lossy(&done.output).trim().to_owned();
            Err(HookError::Command { program, code, said })
        }
        Err(error) => Err(HookError::Guest(program, error)),
    }
}

/// Runs a hook that needs nobody in the guest.
pub(crate) async fn run_outside(hook: &Hook, address: IpAddr) -> Done {
    match hook {
        Hook::Sleep(time) => {
            sleep(*time).await;
            Ok(None)
        }
        Hook::Impossible(why) => Err(HookError::Impossible(why.clone())),
        Hook::HttpGet(get) => ask(get, address).await,
        Hook::Exec(_) => Err(HookError::Impossible("a command cannot run outside of the guest".to_owned())),
    }
}

/// As for the kubelet, any answer will do, and a server that is to speak TLS and does not is asked without.
async fn ask(get: &HttpGet, address: IpAddr) -> Done {
    let refusal = match get.send(address, Purpose::Lifecycle, LIMIT).await {
        Ok(_) | Err(HttpError::BrokenBody { .. }) => return Ok(None),
        Err(error @ HttpError::NotTls { .. }) => error,
        Err(error) => return Err(error.into()),
    };
    match get.without_tls().send(address, Purpose::Lifecycle, LIMIT).await {
        Ok(_) | Err(HttpError::BrokenBody { .. }) => Ok(Some(Notice {
            reason: "LifecycleHTTPFallback".to_owned(),
            message: format!(
                "request to HTTPS lifecycle hook {} got HTTP response, retry with HTTP succeeded",
                get.authority(address)
            ),
        })),
        Err(_) => Err(refusal.into()),
    }
}
