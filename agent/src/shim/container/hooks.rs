//! Lifecycle hooks.

use std::time::Duration;

use tokio::time::sleep;

use super::exec_output::read_exit_code;
use crate::error_chain::chain;
use crate::guest::script::ContainerScripts;
use crate::guest::{Exec, Guest, GuestError};
use crate::probe::http::{HttpError, Purpose};
use crate::probe::reach::Reach;
use crate::state::container_spec::HttpGet;
use crate::state::{Hook, Notice};

/// The limit of a hook; the grace period usually ends it sooner.
const LIMIT: Duration = Duration::from_hours(24);
/// How long the guest may take to give the exit code of a hook whose connection broke.
const CODE_LIMIT: Duration = Duration::from_secs(5);
/// How much of a failed hook's output the container's status shows.
const MAX_OUTPUT: usize = 1 << 10;
/// How much more a hook may write: the log of an installation, but not output without end.
const MAX_DRAINED: usize = 64 << 20;

/// A hook that failed. Its output may be secret, and is in no error message.
#[derive(Debug, thiserror::Error)]
pub(in crate::shim) enum HookError {
    #[error("command `{program}` exited with {code}")]
    Command { program: String, code: i32, output: String },
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
    /// The error with the hook's output: only for the container's status, for no Event and no log.
    pub(in crate::shim) fn with_output(&self) -> String {
        match self {
            Self::Command { output, .. } if !output.is_empty() => format!("{}: {output}", chain(self)),
            _ => chain(self),
        }
    }
}

/// A successful hook may have a notice for the user.
pub(in crate::shim) type HookResult = Result<Option<Notice>, HookError>;

/// Where in a container's lifecycle a hook runs.
#[derive(Debug, Clone, Copy)]
pub(in crate::shim) struct HookPoint<'a> {
    pub(in crate::shim) scripts: &'a ContainerScripts,
    pub(in crate::shim) name: &'static str,
}

pub(in crate::shim) async fn run(
    hook: &Hook,
    guest: &mut Guest,
    point: HookPoint<'_>,
    reach: Reach,
) -> HookResult {
    match hook {
        Hook::Exec(argv) => run_command(argv, guest, Some(point)).await,
        other => run_outside(other, reach).await,
    }
}

/// Runs a command in the guest, in the container's environment if there is one.
pub(in crate::shim) async fn run_command(
    argv: &[String],
    guest: &mut Guest,
    point: Option<HookPoint<'_>>,
) -> HookResult {
    let program = argv.first().cloned().unwrap_or_default();
    let before = point.map(|point| point.scripts.hook(point.name)).unwrap_or_default();
    let exec = Exec { argv: before.iter().chain(argv).cloned().collect(), ..Exec::default() };
    let done = guest.run_and_drain(exec, LIMIT, MAX_OUTPUT, MAX_DRAINED).await;
    let end = match (done.end, point) {
        // Some guest agents close the connection as a command ends; the hook's script has kept the exit code.
        (Err(error @ (GuestError::Refused(_) | GuestError::Nonsense(_))), Some(point)) => {
            let exec = Exec { argv: point.scripts.hook_code(point.name, CODE_LIMIT), ..Exec::default() };
            read_exit_code(&guest.run(exec, CODE_LIMIT, MAX_OUTPUT).await.output).ok_or(error)
        }
        (end, _) => end,
    };
    match end {
        Ok(0) => Ok(None),
        Ok(code) => {
            let output = String::from_utf8_lossy(&done.output).trim().to_owned();
            Err(HookError::Command { program, code, output })
        }
        Err(error) => Err(HookError::Guest(program, error)),
    }
}

/// Runs a hook that needs no guest agent.
pub(in crate::shim) async fn run_outside(hook: &Hook, reach: Reach) -> HookResult {
    match hook {
        Hook::Sleep(time) => {
            sleep(*time).await;
            Ok(None)
        }
        Hook::Impossible(why) => Err(HookError::Impossible(why.clone())),
        Hook::Newer(_) => {
            Err(HookError::Impossible("a newer release of the agent has planned it".to_owned()))
        }
        Hook::HttpGet(get) => send(get, reach).await,
        Hook::Exec(_) => Err(HookError::Impossible("a command cannot run outside of the guest".to_owned())),
    }
}

/// As the kubelet: any answer is a success, and a server that does not speak TLS gets the request without TLS.
async fn send(get: &HttpGet, reach: Reach) -> HookResult {
    let not_tls = match get.send(reach, Purpose::Lifecycle, LIMIT).await {
        Ok(_) | Err(HttpError::BrokenBody { .. }) => return Ok(None),
        Err(error @ HttpError::NotTls { .. }) => error,
        Err(error) => return Err(error.into()),
    };
    match get.without_tls().send(reach, Purpose::Lifecycle, LIMIT).await {
        Ok(_) | Err(HttpError::BrokenBody { .. }) => Ok(Some(Notice {
            reason: "LifecycleHTTPFallback".to_owned(),
            message: format!(
                "request to HTTPS lifecycle hook {} got HTTP response, retry with HTTP succeeded",
                get.authority(reach.guest)
            ),
        })),
        Err(_) => Err(not_tls.into()),
    }
}
