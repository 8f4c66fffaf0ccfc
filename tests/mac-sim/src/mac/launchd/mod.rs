//! The Mac's first process: loads jobs, starts them as real processes, and answers `launchctl`.
//!
//! One thread owns the table of jobs. Others wait for signals, for requests and for SSH connections, and hand over what they get.

mod boot;
mod definition;
mod disabled;
mod job;
mod print;
mod processes;
mod requests;
mod respawn;
mod sockets;
pub(super) mod xpcproxy;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::TcpStream;
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use mac_sim::control::{Domain, Refusal, Reply, Request};
use mac_sim::fault::{FaultDirectory, FaultError, REFUSED};
use mac_sim::settings::Settings;

use super::power::REBOOT;
use job::{Due, Job};

/// The uid of the process that asks.
pub(super) type Caller = u32;
/// Where the answer to a request goes.
pub(super) type Answer = Sender<Result<Reply, Refusal>>;

/// What happens to launchd.
pub(super) enum Event {
    /// A child has ended.
    Child,
    /// A process asks for something.
    Request(Request, Caller, Answer),
    /// An SSH client has connected.
    Connection(TcpStream),
    /// The power is gone.
    PowerCut,
}

/// How the Mac goes off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Halt {
    Reboot,
    PowerOff,
}

/// Runs the Mac until it is switched off or restarted.
pub(super) fn main() -> ExitCode {
    let halt = boot::prepare().and_then(|booted| {
        let (sender, events) = mpsc::channel();
        sockets::listen(booted.listener, &sender)?;
        let mut launchd = Launchd::new(booted.settings);
        launchd.load_at_boot();
        launchd.serve(&events)
    });
    match halt {
        Ok(Halt::Reboot) => ExitCode::from(REBOOT),
        Ok(Halt::PowerOff) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("launchd: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The name of a job.
type Key = (Domain, String);

/// The state of launchd.
struct Launchd {
    settings: Settings,
    faults: FaultDirectory,
    jobs: BTreeMap<Key, Job>,
    /// The users who are logged in at the screen.
    sessions: BTreeSet<u32>,
    /// The sshd processes, one for each connection, each the leader of a group.
    connections: BTreeSet<i32>,
    halt: Option<Halt>,
}

impl Launchd {
    fn new(settings: Settings) -> Self {
        Self {
            settings,
            faults: FaultDirectory::of_this_mac(),
            jobs: BTreeMap::new(),
            sessions: BTreeSet::new(),
            connections: BTreeSet::new(),
            halt: None,
        }
    }

    fn serve(&mut self, events: &Receiver<Event>) -> io::Result<Halt> {
        loop {
            self.act();
            if let Some(halt) = self.halt {
                return Ok(halt);
            }
            let next = self.jobs.values().filter_map(Job::deadline).min();
            let wait =
                next.map_or(Duration::from_hours(1), |at| at.saturating_duration_since(Instant::now()));
            match events.recv_timeout(wait) {
                Ok(Event::Child) => self.reap(),
                Ok(Event::Request(request, caller, answer)) => self.answer(request, caller, answer),
                Ok(Event::Connection(stream)) => self.connect(stream),
                Ok(Event::PowerCut) => return Ok(Halt::PowerOff),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(io::Error::other("no thread listens any more"));
                }
            }
        }
    }

    /// Does what is due for each job.
    fn act(&mut self) {
        let now = Instant::now();
        let due: Vec<_> = self.jobs.iter().map(|(key, job)| (key.clone(), job.due(now))).collect();
        for (key, due) in due {
            match due {
                Due::Nothing => {}
                Due::Spawn => self.spawn(&key),
                Due::Kill(pid) => self.kill_job(&key, pid),
                Due::Remove => {
                    self.jobs.remove(&key);
                }
            }
        }
    }

    /// The Mac is shut down in an orderly way: every process has a moment to end by itself.
    fn shut_down(&mut self, halt: Halt) {
        processes::end_all();
        self.halt = Some(halt);
    }
}

/// A fault that the simulator refuses: the caller prints it.
fn refuse(error: &FaultError) -> Refusal {
    Refusal::with(REFUSED, format!("mac-sim: {error}"))
}

/// Says something in launchd's log, which is the log of the simulated Mac.
fn log(line: &str) {
    eprintln!("launchd: {line}");
}

fn start_thread(work: impl FnOnce() + Send + 'static) {
    thread::spawn(work);
}
