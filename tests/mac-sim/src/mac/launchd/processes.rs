//! The processes of jobs: their start, their signals and their end.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use mac_sim::control::{Domain, Refusal, Reply};
use mac_sim::fault::Fault;
use mac_sim::settings::SIMULATOR;
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::boot::{LOGINWINDOW, is_apples, own_console};
use super::job::{AfterExit, Process, State};
use super::respawn::Exit;
use super::xpcproxy::{CODESIGN, Spec};
use super::{Key, Launchd, log};
use crate::mac::sshd;

/// How long a shutdown waits for processes that ignore its request.
const GRACE: Duration = Duration::from_secs(5);

/// Ends every process but launchd.
pub(super) fn end_all() {
    let everyone = Pid::from_raw(-1);
    // There may be none.
    let _ = kill(everyone, Signal::SIGTERM);
    let end = Instant::now() + GRACE;
    while Instant::now() < end && any_child_left() {
        std::thread::sleep(Duration::from_millis(10));
    }
    let _ = kill(everyone, Signal::SIGKILL);
}

fn any_child_left() -> bool {
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) => return true,
            Ok(_) => {}
            Err(_) => return false,
        }
    }
}

impl Launchd {
    /// Whether a job's program was written after the fault was switched on that kills new ones.
    fn is_killed_as_new(&self, key: &Key) -> bool {
        let Some(since) = self.faults.since(Fault::CodesignKillNew) else { return false };
        let Some(job) = self.jobs.get(key) else { return false };
        let written = std::fs::metadata(&job.definition.program).and_then(|metadata| metadata.modified());
        self.hits(Fault::CodesignKillNew, &key.1) && written.is_ok_and(|written| written > since)
    }

    /// Starts a job's process now.
    pub(super) fn spawn(&mut self, key: &Key) {
        let is_denied = self.hits(Fault::BtmDeny, &key.1);
        let is_killed = self.hits(Fault::CodesignKill, &key.1) || self.is_killed_as_new(key);
        let Some(job) = self.jobs.get_mut(key) else { return };
        job.is_restarting = false;
        let waiting = std::mem::take(&mut job.waiting);
        if is_denied {
            log(&format!("{}: not started: denied by Background Task Management", key.1));
            job.state = State::Idle;
            for answer in waiting {
                let _ = answer.send(Ok(Reply::Done));
            }
            return;
        }
        let user = match key.0 {
            Domain::System => job.definition.user.clone(),
            // An agent is a process of its session's user, whatever its list says.
            Domain::User(_) | Domain::Gui(_) => Some(self.settings.user.clone()),
        };
        let spec = Spec::of(&job.definition, user, is_killed);
        match start(&spec) {
            Ok(process) => {
                job.runs += 1;
                for answer in waiting {
                    let _ = answer.send(Ok(Reply::Pid(process.pid)));
                }
                job.state = State::Running(process);
            }
            Err(error) => {
                log(&format!("{}: cannot start xpcproxy: {error}", key.1));
                for answer in waiting {
                    let _ = answer.send(Err(Refusal::new(5)));
                }
                job.state = State::Scheduled(Instant::now() + job.definition.throttle);
            }
        }
    }

    /// Asks a job's process to end. launchd kills it when its time is up.
    pub(super) fn terminate(&mut self, key: &Key) {
        let Some(job) = self.jobs.get_mut(key) else { return };
        if let State::Running(process) = &job.state {
            let _ = kill(Pid::from_raw(process.pid), Signal::SIGTERM);
            job.terminating(Instant::now());
        }
    }

    pub(super) fn kill_job(&mut self, key: &Key, pid: i32) {
        log(&format!("{}: did not end in time and is killed", key.1));
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        if let Some(job) = self.jobs.get_mut(key) {
            job.killed();
        }
    }

    /// Reaps the processes that have ended.
    pub(super) fn reap(&mut self) {
        loop {
            match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) => self.ended(pid.as_raw(), Exit::Code(code)),
                Ok(WaitStatus::Signaled(pid, signal, _)) => {
                    self.ended(pid.as_raw(), Exit::Signal(signal as i32));
                }
                Ok(WaitStatus::StillAlive) | Err(nix::errno::Errno::ECHILD) => return,
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(error) => return log(&format!("waitpid: {error}")),
            }
        }
    }

    fn ended(&mut self, pid: i32, exit: Exit) {
        self.connections.remove(&pid);
        let found = self.jobs.iter().find(|(_, job)| job.pid() == Some(pid)).map(|(key, _)| key.clone());
        // Others are orphans, which launchd adopts.
        let Some(key) = found else { return };
        let after = AfterExit {
            linger: self.time(Fault::SlowBootout),
            at_least: self.time(Fault::SpawnThrottle),
            keeps_alive: !self.hits(Fault::BtmExhausted, &key.1),
        };
        let Some(job) = self.jobs.get_mut(&key) else { return };
        let (State::Running(process) | State::Terminating(process, _) | State::Killed(process)) =
            &mut job.state
        else {
            return;
        };
        let since = process.since;
        // xpcproxy was the only one to hold the pipe's other end, and is gone.
        let mut told = String::new();
        if let Some(mut pipe) = process.told.take() {
            let _ = pipe.read_to_string(&mut told);
        }
        let exit = if told == CODESIGN { Exit::CodeSigning } else { exit };
        if !job.definition.abandon_process_group {
            let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
        }
        log(&format!("{}: process {pid} has ended: {exit:?} {told}", key.1));
        job.ended(exit, since, Instant::now(), after);
        if key.1 == LOGINWINDOW {
            self.close_sessions();
        }
    }

    /// Without loginwindow no user is logged in, and the agents of their sessions end.
    fn close_sessions(&mut self) {
        own_console(0);
        for uid in std::mem::take(&mut self.sessions) {
            let domain = Domain::Gui(uid);
            let keys: Vec<_> = self.jobs.keys().filter(|key| key.0 == domain).cloned().collect();
            for key in keys {
                self.unload(&key);
            }
        }
    }

    /// Serves an SSH connection, as macOS does: launchd has the socket, and each connection has an sshd of its own.
    pub(super) fn connect(&mut self, stream: TcpStream) {
        match start_sshd(stream) {
            Ok(pid) => {
                self.connections.insert(pid);
            }
            Err(error) => log(&format!("com.openssh.sshd: {error}")),
        }
    }

    /// Ends all SSH connections as a broken network does: what was started through them goes on until it notices.
    pub(super) fn cut_connections(&mut self) {
        for pid in &self.connections {
            let _ = killpg(Pid::from_raw(*pid), Signal::SIGKILL);
        }
    }

    /// Whether a fault of jobs is on. A fault that is refused is told in the log, and by every simulated program.
    pub(super) fn hits(&self, fault: Fault, label: &str) -> bool {
        // An empty file stands for all jobs but the Mac's own.
        let of_others = !is_apples(label);
        self.faults.hits_label(fault, label).unwrap_or_else(|error| {
            log(&format!("mac-sim: {error}"));
            false
        }) && of_others
    }

    fn time(&self, fault: Fault) -> Duration {
        self.faults.duration(fault).unwrap_or_default().unwrap_or_default()
    }
}

/// Starts xpcproxy, which becomes the job's program.
fn start(spec: &Spec) -> std::io::Result<Process> {
    let mut child = Command::new(Path::new(SIMULATOR).join("mac-sim"))
        .arg0("xpcproxy")
        .arg(spec.label())
        .env_clear()
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let pid = i32::try_from(child.id()).map_err(std::io::Error::other)?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(&serde_json::to_vec(spec)?)?;
    }
    Ok(Process { pid, since: Instant::now(), told: child.stdout.take() })
}

fn start_sshd(stream: TcpStream) -> std::io::Result<i32> {
    let log = std::fs::File::options().create(true).append(true).open("/private/var/log/sshd.log")?;
    let mut command = Command::new(Path::new(SIMULATOR).join("mac-sim"));
    command.arg0(sshd::WRAPPER).env_clear();
    let input = OwnedFd::from(stream);
    let output = input.try_clone()?;
    let child = command.process_group(0).stdin(input).stdout(output).stderr(log).spawn()?;
    i32::try_from(child.id()).map_err(std::io::Error::other)
}
