//! One container in the guest, from its set-up to its end.

use std::net::IpAddr;
use std::pin::Pin;
use std::time::Duration;

use futures::{Stream, StreamExt};
use jiff::Timestamp;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{info, warn};

use super::Shim;
use super::hooks;
use super::last_words::{LastWords, Tail};
use super::log::{Log, Source};
use crate::guest::script::{self, Ready};
use crate::guest::{Exec, ExecEvent, Guest, GuestError, Stdin};
use crate::report::chain;
use crate::state::{ContainerSpec, Ending, GuestCommand, GuestIdentity, StopRequest};

/// How long the guest may take to be prepared; shares can take a while to appear.
const SET_UP_LIMIT: Duration = Duration::from_mins(2);
const SET_UP_WORDS: usize = 16 << 10;
/// How long the guest may take to pass a signal on.
const SIGNAL_LIMIT: Duration = Duration::from_secs(5);
/// How long the output of a command that has ended may take to arrive.
const DRAIN: Duration = Duration::from_secs(1);
/// What is left to a container after its `preStop` hook, whatever that has used up.
const LEAST_AFTER_HOOK: Duration = Duration::from_secs(2);

/// A container that is to run.
pub(super) struct Task<'a> {
    /// What is to run.
    pub(super) spec: &'a ContainerSpec,
    /// Its command.
    pub(super) command: &'a GuestCommand,
    /// The guest's address.
    pub(super) address: IpAddr,
    /// What makes the guest the Pod's, for the first container.
    pub(super) identity: Option<&'a GuestIdentity>,
}

/// How a container's run came to its end.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Run {
    /// By itself, or because it was asked to.
    Over(Ending),
    /// It did not end in time after it was asked to.
    Overdue,
    /// It was asked to end before it had started.
    NotBegun,
    /// Nobody knows: the guest agent is gone.
    Lost,
}

/// The command's end, as the guest agent tells it.
enum Followed {
    Exit(i32),
    Lost,
}

impl Shim {
    /// Runs one container. `started` is called once it runs, its `postStart` hook included.
    pub(super) async fn run_container(
        &self,
        guest: &mut Guest,
        task: Task<'_>,
        mut started: impl FnMut(Timestamp, &Ready),
    ) -> Run {
        let command = task.command.at(&task.address.to_string());
        let ready = match self.set_up(guest, &task, &command).await {
            Ok(ready) => ready,
            Err(run) => return run,
        };
        let stdin = if command.stdin { Stdin::Open } else { Stdin::Empty };
        let argv = ready.run(&command.argv);
        let exec = Exec { argv, env: command.env.clone(), stdin, tty: command.tty };
        let mut tail = Tail::default();
        let begun = Timestamp::now();
        let (mut runner, mut waiter) = (guest.clone(), guest.clone());
        let end = {
            let follow = async {
                let mut log = Log::open(&task.spec.log);
                // A silent command says nothing at all until it ends, not even that it has started.
                let end = {
                    let follow = async {
                        match runner.exec(exec).await {
                            Ok(events) => follow(events, &mut log, &mut tail).await,
                            Err(error) => disconnected(&error),
                        }
                    };
                    tokio::pin!(follow);
                    tokio::select! {
                        end = &mut follow => end,
                        code = exit_of(&mut waiter, &ready) => {
                            // What it has left running may hold its output open; what it wrote itself is on its way.
                            let _ = timeout(DRAIN, follow).await;
                            Followed::Exit(code)
                        }
                    }
                };
                log.close();
                end
            };
            tokio::pin!(follow);
            self.attend(guest, &task, &ready, follow, || started(begun, &ready)).await
        };
        let code = match end {
            Attended::Exit(code) => code,
            Attended::Lost => return Run::Lost,
            Attended::Overdue => return Run::Overdue,
            Attended::HookFailed(code, message) => {
                return Run::Over(Ending::Exited { code, message: Some(message) });
            }
        };
        let words = LastWords { path: &task.spec.termination.path, or_log: task.spec.termination.or_log };
        let code = exit_code(code);
        Run::Over(Ending::Exited { code, message: words.read(guest, code, &tail).await })
    }

    async fn set_up(&self, guest: &mut Guest, task: &Task<'_>, command: &GuestCommand) -> Result<Ready, Run> {
        let address = task.address.to_string();
        let identity = task.identity.map(|identity| (identity, address.as_str()));
        let script = script::set_up(task.spec, command, identity).into_bytes();
        let argv = ["/bin/sh", "-s"].map(str::to_owned).to_vec();
        let exec = Exec { argv, stdin: Stdin::Bytes(script), ..Exec::default() };
        let mut stop = self.stop.clone();
        let said = tokio::select! {
            said = guest.run(exec, SET_UP_LIMIT, SET_UP_WORDS) => said,
            _ = stop.requested() => return Err(Run::NotBegun),
        };
        let not_started = |reason: &str, message| {
            Run::Over(Ending::NotStarted { reason: reason.to_owned(), message, fault: None })
        };
        let said = match said {
            Ok(said) => said,
            Err(GuestError::Unreachable(error)) => {
                warn!(error = chain(error.as_ref()), "lost the guest agent while the guest was prepared");
                return Err(Run::Lost);
            }
            Err(error) => {
                let message = format!("the guest cannot be prepared for the container: {}", chain(&error));
                return Err(not_started("CreateContainerError", message));
            }
        };
        let ready = script::read_set_up(&said.output, command.user)
            .map_err(|failure| not_started(&failure.reason, failure.message))?;
        for words in &ready.notices {
            self.notice("GuestSetup", words.clone());
        }
        Ok(ready)
    }

    /// Sees a container through its hooks, and ends it when that is asked for.
    async fn attend(
        &self,
        guest: &mut Guest,
        task: &Task<'_>,
        ready: &Ready,
        mut follow: Pin<&mut impl Future<Output = Followed>>,
        started: impl FnOnce(),
    ) -> Attended {
        let mut stop = self.stop.clone();
        if let Some(hook) = &task.spec.post_start {
            let enter = ready.enter();
            let run = hooks::run(hook, guest, &enter, task.address);
            let failure = tokio::select! {
                result = run => result.err(),
                end = follow.as_mut() => return end.into(),
                _ = stop.requested() => None,
            };
            if let Some(error) = failure {
                let message = format!("PostStartHookError: {}", chain(&error));
                self.notice("FailedPostStartHook", message.clone());
                let deadline = Instant::now() + self.spec.grace;
                let end = self.end_container(guest, task, ready, follow, Limit::Fixed(deadline)).await;
                return Attended::HookFailed(end.code(), message);
            }
        }
        started();
        tokio::select! {
            end = follow.as_mut() => return end.into(),
            _ = stop.requested() => {}
        }
        self.end_container(guest, task, ready, follow, Limit::Asked(stop)).await
    }

    /// Ends a container as the kubelet does: its hook, then SIGTERM, then nothing but time.
    async fn end_container(
        &self,
        guest: &mut Guest,
        task: &Task<'_>,
        ready: &Ready,
        mut follow: Pin<&mut impl Future<Output = Followed>>,
        mut limit: Limit,
    ) -> Attended {
        if let Some(hook) = &task.spec.pre_stop {
            let enter = ready.enter();
            let mut hook_guest = guest.clone();
            let run = hooks::run(hook, &mut hook_guest, &enter, task.address);
            tokio::select! {
                end = follow.as_mut() => return end.into(),
                result = run => if let Err(error) = result {
                    self.notice("FailedPreStopHook", format!("PreStopHook failed: {}", chain(&error)));
                },
                () = limit.over() => {
                    self.notice("FailedPreStopHook", "PreStopHook did not end within the grace period".to_owned());
                }
            }
            limit.leave(LEAST_AFTER_HOOK);
        }
        let terminate = async {
            let exec = Exec { argv: ready.terminate(), ..Exec::default() };
            match guest.run(exec, SIGNAL_LIMIT, SET_UP_WORDS).await {
                Ok(done) if done.code == 0 => {}
                Ok(done) => {
                    info!(said = %String::from_utf8_lossy(&done.output), "the command took no SIGTERM");
                }
                Err(error) => warn!(error = chain(&error), "cannot send SIGTERM to the command"),
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            end = follow => end.into(),
            () = terminate => Attended::Lost,
            () = limit.over() => Attended::Overdue,
        }
    }
}

/// How a container's life went on after its start.
enum Attended {
    Exit(i32),
    Lost,
    Overdue,
    HookFailed(i32, String),
}

impl Attended {
    fn code(&self) -> i32 {
        match self {
            Self::Exit(code) | Self::HookFailed(code, _) => exit_code(*code),
            Self::Lost | Self::Overdue => 137,
        }
    }
}

impl From<Followed> for Attended {
    fn from(end: Followed) -> Self {
        match end {
            Followed::Exit(code) => Self::Exit(code),
            Followed::Lost => Self::Lost,
        }
    }
}

/// Until when a container may take to end.
enum Limit {
    /// Until the agent says; it may shorten it.
    Asked(super::stop::StopSignal),
    /// Until then.
    Fixed(Instant),
}

impl Limit {
    async fn over(&mut self) {
        match self {
            Self::Fixed(deadline) => sleep_until(*deadline).await,
            Self::Asked(stop) => loop {
                let left = stop.requested().await.time_left(Timestamp::now());
                if left.is_zero() {
                    return;
                }
                // A shorter grace period counts from the moment that it is asked for.
                tokio::select! { () = sleep(left) => {}, () = stop.changed() => {} }
            },
        }
    }

    /// Leaves at least this much from now on.
    fn leave(&mut self, least: Duration) {
        let left = match self {
            Self::Asked(stop) => stop.latest().map_or(Duration::MAX, left_now),
            Self::Fixed(deadline) => deadline.saturating_duration_since(Instant::now()),
        };
        if left < least {
            *self = Self::Fixed(Instant::now() + least);
        }
    }
}

fn left_now(request: StopRequest) -> Duration {
    request.time_left(Timestamp::now())
}

/// Waits for the exit code that the command's own shell tells. A guest agent that does not answer tells nothing.
async fn exit_of(guest: &mut Guest, ready: &Ready) -> i32 {
    let exec = Exec { argv: ready.wait(), ..Exec::default() };
    let told = guest.run(exec, Duration::MAX, SET_UP_WORDS).await;
    match told.ok().and_then(|done| String::from_utf8_lossy(&done.output).trim().parse::<u8>().ok()) {
        Some(code) => code.into(),
        None => std::future::pending().await,
    }
}

/// Copies a command's output to the log until it ends.
async fn follow(
    mut events: impl Stream<Item = Result<ExecEvent, GuestError>> + Unpin,
    log: &mut Log,
    tail: &mut Tail,
) -> Followed {
    while let Some(event) = events.next().await {
        match event {
            Ok(ExecEvent::Stdout(bytes)) => {
                tail.add(&bytes);
                log.write(Source::Stdout, &bytes);
            }
            Ok(ExecEvent::Stderr(bytes)) => {
                tail.add(&bytes);
                log.write(Source::Stderr, &bytes);
            }
            Ok(ExecEvent::Exit(code)) => return Followed::Exit(code),
            Err(error) => return disconnected(&error),
        }
    }
    Followed::Lost
}

fn disconnected(error: &GuestError) -> Followed {
    warn!(error = chain(error), "lost the connection to the guest agent");
    Followed::Lost
}

/// The command's own shell says which signal it was; only when that was killed too, the guest agent's -1 is all there is.
fn exit_code(code: i32) -> i32 {
    if code < 0 { 137 } else { code }
}

/// Has what the guest has written to its shares reach the host, before the guest is switched off.
pub(super) async fn flush(guest: &mut Guest) {
    const LIMIT: Duration = Duration::from_secs(5);
    let exec = Exec { argv: vec!["/bin/sync".to_owned()], ..Exec::default() };
    if !matches!(timeout(LIMIT, guest.run(exec, LIMIT, 0)).await, Ok(Ok(_))) {
        warn!("the guest did not write back what it has in memory");
    }
}
