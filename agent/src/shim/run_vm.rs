//! `tart run`, and what its end means for the main container.

use std::time::Duration;

use jiff::Timestamp;
use tokio::process::Child;
use tokio::time::timeout;
use tracing::warn;

use super::Shim;
use super::container::status_file;
use super::network::host_ports::HostPorts;
use super::outcome::messages::{
    connection_lost, lost_with_vm, stopped_before_start, tart_failed, with_message_of_vm,
};
use super::outcome::vm_output::{VmOutput, is_for_want_of_space};
use super::records;
use super::stop::grace_period::GracePeriod;
use super::stop::shutdown::{force, shut_down};
use crate::crash_point;
use crate::logs::writer::LogWriter;
use crate::state::{Ending, KILLED, NotStarted, NotStartedReason, Outcome, Stage};

/// How long a VM may take to end after its command was killed. The Pod's end waits for it.
const VM_END_LIMIT: Duration = Duration::from_millis(200);
/// The same when the command's shell was killed, too, as at the end of a VM.
const VM_END_LIMIT_WITHOUT_SHELL: Duration = Duration::from_secs(2);
/// How long tart may take to end after the guest agent's connection broke.
const LOST_VM_LIMIT: Duration = Duration::from_secs(3);

/// What ended the part of a run that the guest sees.
pub(super) enum GuestEnd {
    /// The containers' end; [`Ending::Lost`] when the guest agent is gone.
    Ended(Ending),
    /// The guest is to be shut down within this time.
    StopRequested(GracePeriod),
}

impl From<NotStarted> for GuestEnd {
    fn from(not_started: NotStarted) -> Self {
        Self::Ended(not_started.into())
    }
}

/// One `tart run`.
struct RunResult {
    /// The process, which may still run.
    child: Option<Child>,
    outcome: Outcome,
    /// Whether the VM ended because the host's disk is full.
    no_space: bool,
    /// Whether anything may have run in the guest that must not run again on the same disk: an init container, a hook, the guest's own
    /// programs.
    has_started: bool,
}

impl RunResult {
    fn not_started(not_started: NotStarted) -> Self {
        let outcome = records::not_started(not_started);
        Self { child: None, outcome, no_space: false, has_started: false }
    }
}

impl Shim {
    /// Runs the VM to its end.
    pub(super) async fn run_vm(&self, ports: HostPorts) -> Outcome {
        crash_point::point("shim.configured");
        let mut result = self.run_once(&ports).await;
        // A guest that was never up has run nothing of the Pod, so that nothing runs twice.
        if result.no_space && !result.has_started && self.request_disk_space().await {
            result = self.run_once(&ports).await;
        }
        // The ports must be free for the next VM before the agent sees this one's end.
        drop(ports);
        let RunResult { child, outcome, no_space, has_started } = result;
        if let Some(mut child) = child.filter(|child| child.id().is_some()) {
            self.persist_result(&outcome).await;
            crash_point::point("shim.result");
            force(&self.spec.vm, &mut child).await;
            crash_point::point("shim.stopped");
        } else if no_space && has_started {
            let written = self.vm_run.record_result(&outcome);
            // Too late for this VM, but the next one, and the record, find space.
            self.request_disk_space().await;
            if written.is_err() {
                self.persist_result(&outcome).await;
            }
        }
        outcome
    }

    /// Has the agent free disk space for the VM; false when there is no use in another try.
    async fn request_disk_space(&self) -> bool {
        warn!(vm = %self.spec.vm, "no disk space for the VM to run; asking the agent for some");
        let (request, mut stop) = (self.disk_space_request(), self.stop.clone());
        tokio::select! {
            freed = request.fulfil() => freed,
            _ = stop.requested() => false,
        }
    }

    async fn run_once(&self, ports: &HostPorts) -> RunResult {
        self.enter(Stage::Booting);
        if let Some(doubt) = self.shares_in_doubt().await {
            return RunResult::not_started(doubt);
        }
        let mut child = match self.tart.run(&self.spec.vm, &self.spec.shares) {
            Ok(child) => child,
            Err(error) => return RunResult::not_started(tart_failed(NotStartedReason::StartError, &error)),
        };
        crash_point::point("shim.run");
        // Without a command, tart's output is the container's log.
        let log = match self.spec.main.as_ref().filter(|main| main.command.is_none()) {
            Some(main) => LogWriter::open(&main.log, Some(self.disk_space_request())),
            None => LogWriter::nowhere(),
        };
        let output = VmOutput::collect(&mut child, log);

        let mut no_space = false;
        let ending = tokio::select! {
            status = child.wait() => {
                if self.main.guest_is_up.get().is_some() && self.main.hook_failure.get().is_none() {
                    self.mark_ended_before_stop();
                }
                let vm = output.ending(status).await;
                no_space = is_for_want_of_space(&vm);
                self.ending_with_vm(vm)
            }
            end = self.run_guest(ports) => match end {
                GuestEnd::StopRequested(grace) => {
                    let killed = shut_down(&self.tart, &self.spec.vm, &mut child, grace).await;
                    self.ending_after_stop(killed)
                }
                // The connection breaks a moment before tart gives the reason.
                GuestEnd::Ended(Ending::Lost) => match timeout(LOST_VM_LIMIT, child.wait()).await {
                    Ok(status) => {
                        let vm = output.ending(status).await;
                        no_space = is_for_want_of_space(&vm);
                        lost_with_vm(vm)
                    }
                    Err(_) => connection_lost("the guest agent went away while the command ran"),
                },
                GuestEnd::Ended(ending) if self.may_be_killed_by_vm(&ending) => {
                    let shell_killed = self.main.shell_killed.get().is_some();
                    let limit = if shell_killed { VM_END_LIMIT_WITHOUT_SHELL } else { VM_END_LIMIT };
                    match timeout(limit, child.wait()).await {
                        Ok(status) => with_message_of_vm(ending, output.ending(status).await),
                        Err(_) => ending,
                    }
                }
                GuestEnd::Ended(ending) => ending,
            },
        };
        // A failed postStart hook is the reason for the end, whatever the guest's exit code.
        let ending = match self.main.hook_failure.get() {
            Some(message) => Ending::Exited { code: KILLED, message: Some(message.clone()) },
            None => ending,
        };
        let not_started = matches!(ending, Ending::NotStarted(_));
        let has_started = self.main.guest_is_up.get().is_some() || !not_started;
        let finished_at = self.main.exit.get().map_or_else(Timestamp::now, |exit| exit.finished_at);
        // A command that has ended during its postStart hook had started.
        let command_started_at = self.main.command_started_at.get().filter(|_| !not_started);
        let started_at = self.main.started_at.get().or(command_started_at).copied();
        let outcome = Outcome { ending, started_at, finished_at };
        RunResult { child: Some(child), outcome, no_space, has_started }
    }

    /// Whether the end of the VM may have killed the command: tart's message then says more. A guest that shuts down sends SIGTERM first,
    /// and tart has no message.
    fn may_be_killed_by_vm(&self, ending: &Ending) -> bool {
        matches!(ending, Ending::Exited { code: KILLED, .. }) && self.stop.latest().is_none()
    }

    /// The ending after a stop request that came before the command's start, or for a VM that only boots.
    fn ending_after_stop(&self, killed: bool) -> Ending {
        if !self.spec.only_boots() {
            return stopped_before_start().into();
        }
        let told = (!killed).then(|| status_file::read_ending(&self.spec)).flatten();
        told.unwrap_or(Ending::Stopped { killed })
    }

    /// The ending of a container whose VM has ended without a stop request: the guest may know more than tart.
    fn ending_with_vm(&self, vm: Ending) -> Ending {
        if let Some(Outcome { ending: exit, .. }) = self.main.exit.get().cloned() {
            return if self.may_be_killed_by_vm(&exit) { with_message_of_vm(exit, vm) } else { exit };
        }
        if !self.spec.only_boots() {
            return lost_with_vm(vm);
        }
        match vm {
            Ending::Exited { code: 0, .. } => status_file::read_ending(&self.spec).unwrap_or(vm),
            other => other,
        }
    }
}
