//! One job: what launchd knows of it, and how it goes from one state to the next.

use std::path::PathBuf;
use std::process::ChildStdout;
use std::time::{Duration, Instant};

use super::Answer;
use super::definition::Definition;
use super::respawn::{self, Exit};

/// What a job is doing.
#[derive(Debug)]
pub(super) enum State {
    /// It has no process.
    Idle,
    /// It will be started then.
    Scheduled(Instant),
    /// Its process runs.
    Running(Process),
    /// Its process was told to end, and is killed at the given time.
    Terminating(Process, Option<Instant>),
    /// Its process was killed and has not gone yet.
    Killed(Process),
    /// Its process is gone, and the job leaves the table then.
    Lingering(Instant),
}

/// A job's process.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) pid: i32,
    pub(super) since: Instant,
    /// What xpcproxy says before the job's program takes its place.
    pub(super) told: Option<ChildStdout>,
}

/// Which property lists a job came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    LaunchDaemon,
    LaunchAgent,
}

/// A loaded job.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) definition: Definition,
    pub(super) path: PathBuf,
    pub(super) kind: Kind,
    pub(super) state: State,
    /// Booted out: it leaves the table when its process is gone.
    pub(super) is_leaving: bool,
    /// To be started again as soon as its process is gone (`kickstart -k`).
    pub(super) is_restarting: bool,
    pub(super) runs: u32,
    pub(super) last_exit: Option<Exit>,
    pub(super) successive_crashes: u32,
    /// Who waits for its next process.
    pub(super) waiting: Vec<Answer>,
}

/// What launchd does next for a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    Nothing,
    Spawn,
    Kill(i32),
    Remove,
}

/// What launchd must know besides the job when its process has ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct AfterExit {
    /// How long the label stays although nothing runs any more.
    pub(super) linger: Duration,
    /// The least time until the next start, whatever the job says.
    pub(super) at_least: Duration,
    /// Whether `KeepAlive` is honoured.
    pub(super) keeps_alive: bool,
}

impl Job {
    /// A job that was just loaded.
    pub(super) fn new(definition: Definition, path: PathBuf, kind: Kind) -> Self {
        Self {
            definition,
            path,
            kind,
            state: State::Idle,
            is_leaving: false,
            is_restarting: false,
            runs: 0,
            last_exit: None,
            successive_crashes: 0,
            waiting: Vec::new(),
        }
    }

    /// The process, if it has one.
    pub(super) fn pid(&self) -> Option<i32> {
        match &self.state {
            State::Running(process) | State::Terminating(process, _) | State::Killed(process) => {
                Some(process.pid)
            }
            State::Idle | State::Scheduled(_) | State::Lingering(_) => None,
        }
    }

    /// The time at which something is due, if it is not due to a process.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match &self.state {
            State::Scheduled(at) | State::Lingering(at) | State::Terminating(_, Some(at)) => Some(*at),
            _ => None,
        }
    }

    /// What is due now.
    pub(super) fn due(&self, now: Instant) -> Due {
        match &self.state {
            State::Scheduled(at) if *at <= now => Due::Spawn,
            State::Lingering(at) if *at <= now => Due::Remove,
            State::Terminating(process, Some(at)) if *at <= now => Due::Kill(process.pid),
            _ => Due::Nothing,
        }
    }

    /// Its process was told to end.
    pub(super) fn terminating(&mut self, now: Instant) {
        let state = std::mem::replace(&mut self.state, State::Idle);
        self.state = match state {
            State::Running(process) => {
                State::Terminating(process, self.definition.exit_timeout.map(|limit| now + limit))
            }
            other => other,
        };
    }

    /// Its process was killed.
    pub(super) fn killed(&mut self) {
        let state = std::mem::replace(&mut self.state, State::Idle);
        self.state = match state {
            State::Running(process) | State::Terminating(process, _) => State::Killed(process),
            other => other,
        };
    }

    /// Its process has ended.
    pub(super) fn ended(&mut self, exit: Exit, since: Instant, now: Instant, after: AfterExit) {
        self.last_exit = Some(exit);
        let asked = matches!(self.state, State::Terminating(..) | State::Killed(_));
        self.successive_crashes =
            if asked || exit == Exit::Code(0) { 0 } else { self.successive_crashes + 1 };
        if self.is_leaving {
            self.state = State::Lingering(now + after.linger);
            return;
        }
        if self.is_restarting {
            self.state = State::Scheduled(now);
            return;
        }
        let next = respawn::delay(self.definition.keep_alive, exit, now - since, self.definition.throttle);
        let next = next.filter(|_| after.keeps_alive).or(self.definition.start_interval);
        self.state = match next {
            Some(delay) => State::Scheduled(now + delay.max(after.at_least)),
            None => State::Idle,
        };
    }
}
