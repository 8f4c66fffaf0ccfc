//! The processes of a guest: init starts them, and reaps all of them, also those whose parents have ended.

use std::collections::HashMap;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

/// The exit code of a process that a signal ended.
const KILLED: i32 = -1;

/// All process groups that init started and that still have members.
#[derive(Debug, Clone)]
pub(super) struct Processes {
    running: Arc<Mutex<Groups>>,
    /// Whether this guest has a PID namespace, in which init is the last parent of every process.
    isolated: bool,
}

/// By the leader's process id: where its exit code goes, or nothing once the leader has ended.
#[derive(Debug, Default)]
struct Groups(HashMap<i32, Option<oneshot::Sender<i32>>>);

impl Groups {
    /// The leaders that have not ended.
    fn leaders(&self) -> Vec<Option<Pid>> {
        self.0
            .iter()
            .filter(|(_, exit_code)| exit_code.is_some())
            .map(|(&id, _)| Some(Pid::from_raw(id)))
            .collect()
    }

    /// A process has ended, maybe a group's leader.
    fn end(&mut self, id: Pid, code: i32) {
        if let Some(group) = self.0.get_mut(&id.as_raw())
            && let Some(exit_code) = group.take()
        {
            // The receiver of a detached command's exit code is gone.
            let _ = exit_code.send(code);
        }
        if killpg(id, None).is_err() {
            self.0.remove(&id.as_raw());
        }
    }
}

/// How a process becomes the leader of its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Init makes it the leader.
    Plain,
    /// The process makes itself the leader of a session, which the leader of a group cannot do.
    Session,
}

/// A process that was just started, leader of its own group.
#[derive(Debug)]
pub(super) struct Started {
    pub(super) leader: Pid,
    pub(super) stdin: Option<ChildStdin>,
    pub(super) stdout: Option<ChildStdout>,
    pub(super) stderr: Option<ChildStderr>,
    /// Its exit code, once it has ended.
    pub(super) exit_code: oneshot::Receiver<i32>,
}

impl Processes {
    /// No processes yet.
    pub(super) fn new(isolated: bool) -> Self {
        Self { running: Arc::default(), isolated }
    }

    /// Starts a process that becomes the leader of its own group.
    pub(super) fn start(&self, command: &mut Command, kind: Kind) -> io::Result<Started> {
        if kind == Kind::Plain {
            command.process_group(0);
        }
        // Held until the process is in the map, so that the reaper finds it there.
        let mut running = self.running();
        let child = command.spawn()?;
        let id = i32::try_from(child.id()).map_err(io::Error::other)?;
        let (ended, exit_code) = oneshot::channel();
        running.0.insert(id, Some(ended));
        Ok(Started {
            leader: Pid::from_raw(id),
            stdin: child.stdin,
            stdout: child.stdout,
            stderr: child.stderr,
            exit_code,
        })
    }

    /// Kills a process that was started here, if the user with that number and group may, and none of the processes that it has
    /// started: Go's `exec.CommandContext` kills no more. Without a user, init kills the process itself.
    pub(super) fn kill(&self, leader: Pid, user: Option<(u32, u32)>) {
        let Some((uid, gid)) = user else {
            // The leader may have ended.
            let _ = kill(leader, Signal::SIGKILL);
            return;
        };
        // The kernel decides which processes the user may signal.
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "kill -KILL $0"]).arg(leader.to_string()).uid(uid).gid(gid);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // Fails in a guest without a shell.
        let _ = self.start(&mut command, Kind::Plain);
    }

    /// Reaps processes for ever.
    pub(super) async fn reap(&self) -> io::Result<()> {
        let mut children = signal(SignalKind::child())?;
        loop {
            self.reap_ended();
            children.recv().await;
        }
    }

    /// Sends a signal to every process of this guest.
    pub(super) fn signal_all(&self, signal: Signal) {
        if self.isolated {
            // Every process of the namespace but init. There may be none.
            let _ = kill(Pid::from_raw(-1), signal);
        } else {
            for &group in self.running().0.keys() {
                let _ = killpg(Pid::from_raw(group), signal);
            }
        }
    }

    /// Waits until no process is left.
    pub(super) async fn all_ended(&self) -> io::Result<()> {
        let mut children = signal(SignalKind::child())?;
        while self.reap_ended() {
            children.recv().await;
        }
        Ok(())
    }

    /// Reaps the processes that have ended. True if any process is left.
    fn reap_ended(&self) -> bool {
        let mut groups = self.running();
        // Without a PID namespace, reap only the leaders: other code in this process may wait for children of its own.
        let children = if self.isolated { vec![None] } else { groups.leaders() };
        let mut any_left = false;
        for child in children {
            any_left |= loop {
                match waitpid(child, Some(WaitPidFlag::WNOHANG)) {
                    Ok(WaitStatus::Exited(id, code)) => groups.end(id, code),
                    Ok(WaitStatus::Signaled(id, ..)) => groups.end(id, KILLED),
                    Ok(WaitStatus::StillAlive) => break true,
                    Ok(_) | Err(Errno::EINTR) => {}
                    Err(_) => break false,
                }
            };
        }
        any_left
    }

    fn running(&self) -> MutexGuard<'_, Groups> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
