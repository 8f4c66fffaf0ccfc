//! One container in the guest, from its set-up to its end.

pub(crate) mod exec_output;
pub(crate) mod guest_status;
pub(crate) mod hooks;
pub(crate) mod init;
pub(crate) mod late_command;
pub(crate) mod termination_message;

use std::cell::Cell;
use std::net::IpAddr;
use std::pin::Pin;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::{Instant, timeout};
use tracing::warn;

use super::Shim;
use super::stop::grace_period::GracePeriod;
use super::stop::sigterm::terminate;
use crate::crash_point;
use crate::error_chain::chain;
use crate::guest::script::{self, Ready};
use crate::guest::{Exec, Guest, GuestError, Stdin};
use crate::logs::writer::LogWriter;
use crate::state::{
    ContainerSpec, Ending, GuestCommand, GuestIdentity, GuestUser, Hook, LastCommand, Notice, Outcome,
};
use exec_output::{ExecResult, disconnected, drain, exit_of, follow, is_drained};
use hooks::HookPoint;
use termination_message::{Tail, TerminationMessage};

/// How long the guest may take to be prepared; shares can take a while to appear.
const SET_UP_LIMIT: Duration = Duration::from_mins(2);
pub(super) const SET_UP_WORDS: usize = 16 << 10;
/// How often it is tried when the guest agent breaks off.
const SET_UP_TRIES: u32 = 3;
/// How long the guest may take to tell the exit code of a command whose connection broke off.
const EXIT_LIMIT: Duration = Duration::from_secs(10);
/// What is left to a container after its `preStop` hook, whatever that has used up.
pub(super) const LEAST_AFTER_HOOK: Duration = Duration::from_secs(2);

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
    /// Whether its end is that of the VM.
    pub(super) is_main: bool,
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
        crash_point::point("shim.set-up");
        let stdin = if command.stdin { Stdin::Open } else { Stdin::Empty };
        let argv = ready.run(&command.argv);
        let exec = Exec { argv, env: command.env.clone(), stdin, tty: command.tty };
        let mut tail = Tail::default();
        let begun = Timestamp::now();
        if task.is_main {
            let _ = self.begun_at.set(begun);
        }
        self.note_command(task.spec, begun, &ready);
        let (mut runner, mut waiter) = (guest.clone(), guest.clone());
        let exited = Cell::new(None);
        // At once: what is still to be done takes time in which the VM could end, or the container's time.
        let exit_with = |code| {
            exited.set(Some(code));
            if task.is_main {
                if code < 0 {
                    let _ = self.cut_off.set(());
                }
                self.note_exit(begun, code);
            }
            ExecResult::Exit(code)
        };
        let end = {
            let follow = async {
                let mut log = LogWriter::open(&task.spec.log, Some(self.room()));
                // A silent command says nothing at all until it ends, not even that it has started.
                let written = Cell::new(0);
                let end = {
                    let follow = async {
                        match runner.exec(exec).await {
                            Ok(events) => follow(events, &mut log, &mut tail, &written).await,
                            Err(error) => disconnected(&error),
                        }
                    };
                    let exit = exit_of(&mut waiter, &ready);
                    tokio::pin!(follow, exit);
                    tokio::select! {
                        end = &mut follow => match end {
                            ExecResult::Exit(code) => exit_with(code),
                            // Some guest agents break off at a command's very end; the guest knows better.
                            broken => timeout(EXIT_LIMIT, exit).await.map_or(broken, exit_with),
                        },
                        code = &mut exit => {
                            let end = exit_with(code);
                            if !is_drained(follow.as_mut(), &written).await {
                                self.persist_exit().await;
                                drain(follow, &written).await;
                            }
                            end
                        }
                    }
                };
                log.close().await;
                end
            };
            tokio::pin!(follow);
            self.attend(guest, &task, &ready, follow, || started(begun, &ready)).await
        };
        let code = match (end, exited.get()) {
            // It has ended in time, whatever it has left behind.
            (Attended::Exit(code), _) | (Attended::Overdue, Some(code)) => code,
            (Attended::Refused(why), _) => {
                let program = command.argv.first().map_or("", String::as_str);
                let message = format!("cannot start `{program}` in the guest: {why}");
                return Run::Over(Ending::NotStarted {
                    reason: "StartError".to_owned(),
                    message,
                    fault: None,
                });
            }
            (Attended::Lost, _) => return Run::Lost,
            (Attended::Overdue, None) => return Run::Overdue,
            (Attended::HookFailed(code, message), exited) => {
                let code = exited.map_or(code, exit_code);
                return Run::Over(Ending::Exited { code, message: Some(message) });
            }
        };
        let words =
            TerminationMessage { path: &task.spec.termination.path, or_log: task.spec.termination.or_log };
        let code = exit_code(code);
        if task.is_main {
            crash_point::point("shim.exit");
            // Reading its last words takes time in which we could die.
            self.persist_exit().await;
            crash_point::point("shim.exited");
        }
        Run::Over(Ending::Exited { code, message: words.read(guest, code, &tail).await })
    }

    /// Notes how the main container has ended, and when.
    fn note_exit(&self, begun: Timestamp, code: i32) {
        let ending = Ending::Exited { code: exit_code(code), message: None };
        let now = Timestamp::now();
        let outcome = Outcome { ending, started_at: Some(begun), finished_at: now };
        if self.exit.set(outcome).is_ok() {
            self.note_own_end();
        }
    }

    /// Writes that down, if it is known.
    async fn persist_exit(&self) {
        let Some(outcome) = self.exit.get() else { return };
        self.persist("how the container ended", || self.attempt.result(outcome)).await;
    }

    /// Leaves word of where the exit code can be found if we do not live to see it.
    fn note_command(&self, spec: &ContainerSpec, begun: Timestamp, ready: &Ready) {
        let command = LastCommand { container: spec.name.clone(), begun, exit: ready.exit() };
        if let Err(error) = self.attempt.record_command(&command) {
            warn!(error = chain(&error), "where the exit code can be found cannot be written down");
        }
    }

    async fn set_up(&self, guest: &mut Guest, task: &Task<'_>, command: &GuestCommand) -> Result<Ready, Run> {
        let address = task.address.to_string();
        let identity = task.identity.map(|identity| (identity, address.as_str()));
        let mounts = task.spec.mounts.iter().map(|mount| mount.at(&address)).collect();
        let container = ContainerSpec { mounts, ..task.spec.clone() };
        self.make_ready(guest, script::set_up(&container, command, identity), &command.user).await
    }

    /// Has a script make the guest ready for the commands of this user.
    pub(super) async fn make_ready(
        &self,
        guest: &mut Guest,
        script: String,
        user: &GuestUser,
    ) -> Result<Ready, Run> {
        let script = script.into_bytes();
        let argv = ["/bin/sh", "-s"].map(str::to_owned).to_vec();
        let exec = Exec { argv, stdin: Stdin::Bytes(script), ..Exec::default() };
        let mut stop = self.stop.clone();
        let mut tries = 1;
        let said = loop {
            let said = tokio::select! {
                said = guest.run(exec.clone(), SET_UP_LIMIT, SET_UP_WORDS) => said,
                _ = stop.requested() => return Err(Run::NotBegun),
            };
            // A guest agent that breaks off may lose all that was said. It can be done twice, as after a container that has failed.
            let is_known = script::read_set_up(&said.output, user).is_some();
            if is_known || tries == SET_UP_TRIES || !matches!(said.end, Err(GuestError::Refused(_))) {
                break said;
            }
            tries += 1;
        };
        let not_started = |reason: &str, message| {
            Run::Over(Ending::NotStarted { reason: reason.to_owned(), message, fault: None })
        };
        let ready = match (script::read_set_up(&said.output, user), said.end) {
            // What the script has said of its end counts, whatever the guest agent says of the script.
            (Some(ready), _) => ready.map_err(|failure| not_started(&failure.reason, failure.message))?,
            (None, Ok(_)) => {
                let failure = script::no_end(&said.output);
                return Err(not_started(&failure.reason, failure.message));
            }
            (None, Err(GuestError::Unreachable(error))) => {
                warn!(error = chain(error.as_ref()), "lost the guest agent while the guest was prepared");
                return Err(Run::Lost);
            }
            (None, Err(error)) => {
                let message = format!("the guest cannot be prepared for the container: {}", chain(&error));
                return Err(not_started("CreateContainerError", message));
            }
        };
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
        mut follow: Pin<&mut impl Future<Output = ExecResult>>,
        started: impl FnOnce(),
    ) -> Attended {
        let mut stop = self.stop.clone();
        if let Some(hook) = &task.spec.post_start {
            crash_point::point("shim.post-start.before");
            let turn = HookPoint { ready, name: "post-start" };
            let run = hooks::run(hook, guest, turn, task.address);
            let done = tokio::select! {
                done = run => done,
                end = follow.as_mut() => return end.into(),
                _ = stop.requested() => Ok(None),
            };
            crash_point::point("shim.post-start.after");
            if let Err(message) = self.started_by(done) {
                let limit =
                    GracePeriod { own: Some(Instant::now() + self.spec.grace), ..GracePeriod::asked(stop) };
                let end = self.end_container(guest, task, ready, follow, limit).await;
                return Attended::HookFailed(end.code(), message);
            }
        }
        started();
        tokio::select! {
            end = follow.as_mut() => return end.into(),
            _ = stop.requested() => {}
        }
        self.end_container(guest, task, ready, follow, GracePeriod::asked(stop)).await
    }

    /// Tells of a `postStart` hook; when it has failed, what the container's status says of that.
    pub(super) fn started_by(&self, done: hooks::Done) -> Result<(), String> {
        match done {
            Ok(told) => {
                if let Some(Notice { reason, message }) = told {
                    self.notice(&reason, message);
                }
                Ok(())
            }
            Err(error) => {
                warn!(error = chain(&error), "the postStart hook has failed");
                // The kubelet's words: what the hook has said may be secret.
                self.notice("FailedPostStartHook", "PostStartHook failed".to_owned());
                Err(format!("PostStartHookError: {}", error.in_full()))
            }
        }
    }

    /// Tells of a `preStop` hook, or of one that has run out of time.
    pub(super) fn stopped_by(&self, done: Option<hooks::Done>) {
        match done {
            Some(Ok(None)) => {}
            Some(Ok(Some(Notice { reason, message }))) => self.notice(&reason, message),
            Some(Err(error)) => {
                warn!(error = chain(&error), "the preStop hook has failed");
                self.notice("FailedPreStopHook", "PreStopHook failed".to_owned());
            }
            None => {
                let words = "PreStopHook did not end within the grace period";
                self.notice("FailedPreStopHook", words.to_owned());
            }
        }
    }

    /// A `preStop` hook that there is time for; of one that has missed its time is told.
    pub(super) fn in_time<'a>(&self, hook: Option<&'a Hook>, limit: &GracePeriod) -> Option<&'a Hook> {
        let hook = hook?;
        if !limit.is_over() {
            return Some(hook);
        }
        if limit.is_graceful() {
            self.stopped_by(None);
        }
        None
    }

    /// Ends a container as the kubelet does: its hook, then SIGTERM, then nothing but time.
    async fn end_container(
        &self,
        guest: &mut Guest,
        task: &Task<'_>,
        ready: &Ready,
        mut follow: Pin<&mut impl Future<Output = ExecResult>>,
        mut limit: GracePeriod,
    ) -> Attended {
        if let Some(hook) = self.in_time(task.spec.pre_stop.as_ref(), &limit) {
            let mut hook_guest = guest.clone();
            crash_point::point("shim.pre-stop.before");
            let turn = HookPoint { ready, name: "pre-stop" };
            let run = hooks::run(hook, &mut hook_guest, turn, task.address);
            tokio::select! {
                end = follow.as_mut() => return end.into(),
                done = run => self.stopped_by(Some(done)),
                () = limit.over() => self.stopped_by(None),
            }
            crash_point::point("shim.pre-stop.after");
            limit.grant(LEAST_AFTER_HOOK);
        }
        let terminate = async {
            terminate(guest, ready).await;
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
    Refused(String),
    Lost,
    Overdue,
    HookFailed(i32, String),
}

impl Attended {
    fn code(&self) -> i32 {
        match self {
            Self::Exit(code) | Self::HookFailed(code, _) => exit_code(*code),
            Self::Refused(_) | Self::Lost | Self::Overdue => 137,
        }
    }
}

impl From<ExecResult> for Attended {
    fn from(end: ExecResult) -> Self {
        match end {
            ExecResult::Exit(code) => Self::Exit(code),
            ExecResult::Refused(why) => Self::Refused(why),
            ExecResult::Lost => Self::Lost,
        }
    }
}

/// The command's own shell says which signal it was; only when that was killed too, the guest agent's -1 is all there is.
fn exit_code(code: i32) -> i32 {
    if code < 0 { 137 } else { code }
}

/// Has what the guest has written to its shares reach the host, before the guest is switched off.
pub(super) async fn flush(guest: &mut Guest) {
    const LIMIT: Duration = Duration::from_secs(5);
    let exec = Exec { argv: vec!["/bin/sync".to_owned()], ..Exec::default() };
    if guest.run(exec, LIMIT, 0).await.end.is_err() {
        warn!("the guest did not write back what it has in memory");
    }
}
