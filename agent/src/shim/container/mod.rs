//! One container in the guest, from its set-up to its end.

mod command_request;
pub(super) mod exec_output;
pub(super) mod hooks;
mod init_containers;
pub(super) mod lifecycle;
pub(super) mod main;
pub(super) mod set_up;
pub(super) mod status_file;
pub(super) mod termination_message;

use std::cell::Cell;
use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::timeout;
use tracing::warn;

use super::Shim;
use crate::crash_point;
use crate::error_chain::chain;
use crate::guest::script::ContainerScripts;
use crate::guest::{Exec, Guest, Stdin};
use crate::logs::writer::LogWriter;
use crate::state::{
    ContainerSpec, Ending, GuestCommand, GuestIdentity, KILLED, LastCommand, NotStarted, NotStartedReason,
};
use exec_output::{ExecResult, disconnected, drain, follow, is_drained, wait_for_exit_code};
use termination_message::{Tail, TerminationMessage};

/// How long the guest may take to give the exit code of a command whose connection broke.
const EXIT_CODE_LIMIT: Duration = Duration::from_secs(10);

struct ContainerStart<'a> {
    spec: &'a ContainerSpec,
    command: &'a GuestCommand,
    address: IpAddr,
    /// For the first container in the guest.
    identity: Option<&'a GuestIdentity>,
    /// Whether its end is that of the VM.
    is_main: bool,
}

impl Shim {
    /// Runs one container to its end; [`Ending::Lost`] when the guest agent is gone. `started` is called after the postStart hook.
    async fn run_container(
        &self,
        guest: &mut Guest,
        start: ContainerStart<'_>,
        mut started: impl FnMut(Timestamp, &ContainerScripts),
    ) -> Ending {
        let command = start.command.at(&start.address.to_string());
        let scripts = match self.set_up(guest, &start, &command).await {
            Ok(scripts) => scripts,
            Err(ending) => return ending,
        };
        crash_point::point("shim.set-up");
        let stdin = if command.stdin { Stdin::Open } else { Stdin::Empty };
        let exec =
            Exec { argv: scripts.run(&command.argv), env: command.env.clone(), stdin, tty: command.tty };
        let mut tail = Tail::default();
        let started_at = Timestamp::now();
        if start.is_main {
            let _ = self.main.command_started_at.set(started_at);
        }
        self.record_command(start.spec, started_at, &scripts);
        let (attached, inputs) = self.attach.begin(&start.spec.name, &command);
        let (mut runner, mut waiter) = (guest.clone(), guest.clone());
        let exited = Cell::new(None);
        // At once: the VM, or the grace period, may end while the output is read.
        let exit_with = |code| {
            exited.set(Some(code));
            if start.is_main {
                self.note_exit(started_at, code);
            }
            ExecResult::Exit(code)
        };
        let end = {
            let follow = async {
                let mut log = LogWriter::open(&start.spec.log, Some(self.disk_space_request()));
                // A silent command sends nothing until it ends, not even that it has started.
                let received = Cell::new(0);
                let end = {
                    let follow = async {
                        match runner.exec_interactively(exec, inputs).await {
                            Ok(events) => follow(events, (&mut log, &attached), &mut tail, &received).await,
                            Err(error) => disconnected(&error),
                        }
                    };
                    let exit_code = wait_for_exit_code(&mut waiter, &scripts);
                    tokio::pin!(follow, exit_code);
                    tokio::select! {
                        end = &mut follow => match end {
                            ExecResult::Exit(code) => exit_with(code),
                            // Some guest agents close the connection as a command ends; its shell still knows the exit code.
                            broken => timeout(EXIT_CODE_LIMIT, exit_code).await.map_or(broken, exit_with),
                        },
                        code = &mut exit_code => {
                            let end = exit_with(code);
                            if !is_drained(follow.as_mut(), &received).await {
                                self.persist_exit().await;
                                drain(follow, &received).await;
                            }
                            end
                        }
                    }
                };
                log.close().await;
                end
            };
            tokio::pin!(follow);
            self.supervise(guest, &start, &scripts, follow, || started(started_at, &scripts)).await
        };
        let code = match (end, exited.get()) {
            // It has ended in time, even if processes that it left behind still write.
            (Ok(Some(ExecResult::Exit(code))), _) | (Ok(None), Some(code)) => code,
            (Ok(Some(ExecResult::Refused(why))), _) => {
                let program = command.argv.first().map_or("", String::as_str);
                let message = format!("cannot start `{program}` in the guest: {why}");
                return NotStarted::new(NotStartedReason::StartError, message).into();
            }
            (Ok(Some(ExecResult::Lost)), _) => return Ending::Lost,
            (Ok(None), None) => return Ending::Stopped { killed: true },
            (Err(hook_failure), exited) => {
                let code = exited.map_or(KILLED, exit_code);
                return Ending::Exited { code, message: Some(hook_failure) };
            }
        };
        let code = exit_code(code);
        if start.is_main {
            crash_point::point("shim.exit");
            // Before the termination message, which takes time in which the shim could die.
            self.persist_exit().await;
            crash_point::point("shim.exited");
        }
        let message = TerminationMessage(&start.spec.termination).read(guest, code, &tail).await;
        Ending::Exited { code, message }
    }

    /// Records how the agent can ask for the exit code if the shim dies, and how it runs a user's commands beside it.
    fn record_command(&self, spec: &ContainerSpec, started_at: Timestamp, scripts: &ContainerScripts) {
        let command = LastCommand {
            container: spec.name.clone(),
            started_at,
            exit_code_line: scripts.exit_code(),
            exec_line: scripts.exec(),
            kill_line: scripts.kill(),
        };
        if let Err(error) = self.vm_run.record_command(&command) {
            warn!(error = chain(&error), "cannot write how to ask for the exit code");
        }
    }
}

/// The exit code for a status. -1 is all that the guest agent gives when the command's shell was killed, too.
fn exit_code(code: i32) -> i32 {
    if code < 0 { KILLED } else { code }
}

/// Has the guest write its shares' data to the host before its VM is stopped.
pub(super) async fn sync_shares(guest: &mut Guest) {
    const LIMIT: Duration = Duration::from_secs(5);
    let exec = Exec { argv: vec!["/bin/sync".to_owned()], ..Exec::default() };
    if guest.run(exec, LIMIT, 0).await.end.is_err() {
        warn!("the guest did not sync its shares");
    }
}
