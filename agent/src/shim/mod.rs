//! The process that owns one VM: it makes the VM, runs it with the container's command in it, and writes down how
//! it ended. It lives in its own session and needs no API server, so the agent can die and come back meanwhile.

mod boot_only;
mod container;
mod create_vm;
pub(crate) mod network;
pub(crate) mod outcome;
mod progress;
mod shares;
pub(crate) mod stop;
pub(crate) mod supervise;

pub(crate) use supervise::launch::{LaunchError, launch};
pub(crate) use supervise::recover_exit::{ask_guest, known_end};
pub(crate) use supervise::stray_processes::{StrayProcessError, free, gone, kill_leftovers};

use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use jiff::Timestamp;
use nix::unistd::setsid;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::crash_point;
use crate::error_chain::chain;
use crate::fs::file::FileError;
use crate::guest::Guest;
use crate::guest::script::Ready;
use crate::logs::writer::LogWriter;
use crate::state::disk_space_request::DiskSpaceRequest;
use crate::state::{Ending, Notice, Outcome, ShimSpec, Stage, VmRun};
use crate::tart::Tart;
use container::init::InitResult;
use container::{Run, Task};
use network::host_ports::HostPorts;
use outcome::messages::{
    guest_agent_missing, lost, lost_with, no_address, not_started, port_taken, stopped_early, told_by_vm,
};
use outcome::run_result::{Container, End, GuestEnd, RunResult};
use outcome::vm_output::{VmOutput, is_for_want_of_space};
use progress::Steps;
use stop::grace_period::GracePeriod;
use stop::request::StopSignal;
use stop::shutdown::shut_down;

/// How often something that could not be written down is tried again.
const PERSIST_INTERVAL: Duration = Duration::from_secs(1);
/// How long a VM may take to follow a command that was killed. Whoever waits for the Pod's end waits for this, too.
const DYING: Duration = Duration::from_millis(200);
/// The same for one that was killed together with the shell that watches it, which is what happens when a VM goes.
const DYING_ALTOGETHER: Duration = Duration::from_secs(2);
/// The exit code of a command that was killed.
const KILLED: i32 = 137;
/// How long tart may take to say why a VM is gone whose guest agent has gone.
const LAST_WORDS: Duration = Duration::from_secs(3);

/// A shim that could not do its work at all.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ShimError {
    /// Its directory is not usable.
    #[error(transparent)]
    State(#[from] FileError),
    /// The lock of the VM cannot be shared with tart.
    #[error("cannot share the VM's lock with tart")]
    Share(#[source] io::Error),
}

/// Serves the VM whose directory is `dir`, from clone to outcome. The VM's lock comes as standard input.
pub(crate) async fn run(dir: &Path, stdin: File) -> Result<(), ShimError> {
    // Out of the agent's session: nothing that is sent to its group may reach us. It fails when we lead a group
    // already, that is when a person started us, and then there is nothing to leave.
    let _ = setsid();
    let (attempt, spec) = VmRun::open(dir)?;
    let Some(_shim_lock) = attempt.inherit_shim_lock(stdin)? else {
        info!(vm = %spec.vm, "this VM is not ours to run");
        return Ok(());
    };
    let stop = StopSignal::watch(&attempt);
    let (begun_at, exit, cut_off) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
    let (tart, steps) = (Tart::new(&spec.tart), Steps::new(&attempt));
    let shim = Shim { tart, attempt, spec, stop, begun_at, exit, cut_off, steps };
    shim.persist("who runs the VM", || shim.attempt.sign(std::process::id())).await;
    let Some(tart_lock) = shim.attempt.take_tart_lock()? else {
        let message = "another tart is still at work on the VM".to_owned();
        shim.finish(Ending::NotStarted { reason: "StartError".to_owned(), message, fault: None }, None).await;
        return Ok(());
    };
    tart_lock.share_with_children().map_err(ShimError::Share)?;
    crash_point::point("shim.started");
    Box::pin(shim.serve()).await;
    Ok(())
}

struct Shim {
    tart: Tart,
    attempt: VmRun,
    spec: ShimSpec,
    stop: StopSignal,
    /// When the main container's command was started in the guest.
    begun_at: OnceLock<Timestamp>,
    /// How it ended, from the moment that its exit code is known: whatever becomes of the VM after that, it counts.
    exit: OnceLock<Outcome>,
    /// Set when its own shell could not tell: somebody has killed that, too.
    cut_off: OnceLock<()>,
    /// Where it is written down how far the VM has come.
    steps: Steps,
}

impl Shim {
    async fn serve(self) {
        self.persist("that the VM is begun", || self.attempt.begin()).await;
        crash_point::point("shim.begun");
        let ports = match HostPorts::bind(&self.spec.host_ports).await {
            Ok(ports) => ports,
            Err(error) => return self.finish(port_taken(&error), None).await,
        };
        let prepared = {
            let mut stop = self.stop.clone();
            tokio::select! {
                prepared = self.prepare() => prepared,
                // Dropping the call kills the tart that is at work.
                _ = stop.requested() => Err(stopped_early()),
            }
        };
        match prepared {
            Ok(()) => Box::pin(self.run_vm(ports)).await,
            Err(ending) => self.finish(ending, None).await,
        }
    }

    fn room(&self) -> DiskSpaceRequest {
        DiskSpaceRequest::new(self.attempt.clone(), self.tart.clone())
    }

    async fn run_vm(mut self, ports: HostPorts) {
        crash_point::point("shim.configured");
        let mut ran = self.run_once(&ports).await;
        // A VM whose guest was never up has run nothing of the Pod, so nothing is done twice.
        if ran.no_space && !ran.has_started && self.has_room_made().await {
            ran = self.run_once(&ports).await;
        }
        // Free for the next VM when somebody hears of the end of this one.
        drop(ports);
        let wants_room = ran.no_space && ran.has_started;
        let RunResult { child, outcome, .. } = ran;
        if let Some(mut child) = child.filter(|child| child.id().is_some()) {
            self.persist("how the container ended", || self.attempt.result(&outcome)).await;
            crash_point::point("shim.result");
            stop::shutdown::force(&self.spec.vm, &mut child).await;
            crash_point::point("shim.stopped");
        } else if wants_room {
            let written = self.attempt.result(&outcome);
            // It is too late for this one, but the next finds some, and so does what could not be written down.
            self.has_room_made().await;
            if written.is_err() {
                self.persist("how the container ended", || self.attempt.result(&outcome)).await;
            }
        }
        self.end(&outcome).await;
    }

    /// Has room made for a VM that has found none; false when there is no use in another try.
    async fn has_room_made(&self) -> bool {
        warn!(vm = %self.spec.vm, "no space for the VM to run; asking the agent for some");
        let (room, mut stop) = (self.room(), self.stop.clone());
        tokio::select! {
            made = room.make() => made,
            _ = stop.requested() => false,
        }
    }

    async fn run_once(&mut self, ports: &HostPorts) -> RunResult {
        self.enter(Stage::Booting);
        if let Some(doubt) = self.shares_in_doubt().await {
            return RunResult::not_started(doubt);
        }
        let mut child = match self.tart.run(&self.spec.vm, &self.spec.shares) {
            Ok(child) => child,
            Err(error) => return RunResult::not_started(not_started("StartError", &error)),
        };
        crash_point::point("shim.run");
        // Without a command, what tart says of the VM is all the output there is.
        let boots = self.spec.main.command.is_none();
        let log = if boots {
            LogWriter::open(&self.spec.main.log, Some(self.room()))
        } else {
            LogWriter::nowhere()
        };
        let output = VmOutput::collect(&mut child, log);

        let mut container = Container::default();
        let end = tokio::select! {
            status = child.wait() => End::Vm(status),
            end = self.guest(&mut container, ports) => End::Guest(end),
        };
        let mut no_space = false;
        let ending = match end {
            End::Vm(status) => {
                if container.is_up && container.hook_failed.is_none() {
                    self.note_own_end();
                }
                let ending = output.ending(status).await;
                no_space = is_for_want_of_space(&ending);
                self.vm_ending(ending)
            }
            End::Guest(GuestEnd::Asked(limit)) => {
                let killed = shut_down(&self.tart, &self.spec.vm, &mut child, limit).await;
                self.stopped(killed)
            }
            // The connection breaks a moment before tart says why.
            End::Guest(GuestEnd::Lost) => match timeout(LAST_WORDS, child.wait()).await {
                Ok(status) => {
                    let ending = output.ending(status).await;
                    no_space = is_for_want_of_space(&ending);
                    lost_with(ending)
                }
                Err(_) => lost("the guest agent went away while the command ran"),
            },
            End::Guest(GuestEnd::Over(ending)) if self.may_be_the_vms(&ending) => {
                let patience = if self.cut_off.get().is_some() { DYING_ALTOGETHER } else { DYING };
                match timeout(patience, child.wait()).await {
                    Ok(status) => told_by_vm(output.ending(status).await, ending),
                    Err(_) => ending,
                }
            }
            End::Guest(GuestEnd::Over(ending)) => ending,
        };
        // Whatever the guest makes of it, that is what it ends for.
        let ending = match container.hook_failed {
            Some(message) => Ending::Exited { code: KILLED, message: Some(message) },
            None => ending,
        };
        let has_started = container.is_up || !matches!(ending, Ending::NotStarted { .. });
        let finished_at = self.exit.get().map_or_else(Timestamp::now, |exit| exit.finished_at);
        // One that has ended under its `postStart` hook had started all the same.
        let begun_at = self.begun_at.get().copied().filter(|_| !matches!(ending, Ending::NotStarted { .. }));
        let outcome = Outcome { ending, started_at: container.started_at.or(begun_at), finished_at };
        RunResult { child: Some(child), outcome, no_space, has_started }
    }

    /// Whether the command was killed, and nobody has asked for it: a VM that breaks down takes it along, and has more to say. A guest that
    /// shuts down asks first, and says nothing.
    fn may_be_the_vms(&self, ending: &Ending) -> bool {
        matches!(ending, Ending::Exited { code: KILLED, .. }) && self.stop.latest().is_none()
    }

    /// The end of a VM that was shut down because that was asked for.
    fn stopped(&self, killed: bool) -> Ending {
        if self.spec.main.command.is_some() {
            // It was still on its way to its command, which is all that could have succeeded.
            return stopped_early();
        }
        let told = (!killed).then(|| self.told_by_guest()).flatten();
        told.unwrap_or(Ending::Stopped { killed })
    }

    /// The end of a VM that ended by itself: the guest may have said more about it than tart can.
    fn vm_ending(&self, ending: Ending) -> Ending {
        if let Some(Outcome { ending: exit, .. }) = self.exit.get().cloned() {
            return if self.may_be_the_vms(&exit) { told_by_vm(ending, exit) } else { exit };
        }
        if self.spec.main.command.is_some() {
            return lost_with(ending);
        }
        match ending {
            Ending::Exited { code: 0, .. } => self.told_by_guest().unwrap_or(ending),
            other => other,
        }
    }

    fn told_by_guest(&self) -> Option<Ending> {
        container::guest_status::of(&self.spec)
    }

    /// The guest's side of it: its address, then its containers. Without a command it never ends by itself.
    async fn guest(&self, container: &mut Container, ports: &HostPorts) -> GuestEnd {
        let mut stop = self.stop.clone();
        let limit = self.spec.boot_limit;
        let address = tokio::select! {
            address = timeout(limit, self.address()) => address,
            _ = stop.requested() => return GuestEnd::Asked(GracePeriod::asked(stop)),
        };
        let Ok(address) = address else { return GuestEnd::Over(no_address(limit)) };
        container.is_up = true;
        if let Some(replaced) = self.shares_replaced().await {
            return GuestEnd::Over(replaced);
        }
        let _forwarding = ports.serve(address);
        let Some(command) = &self.spec.main.command else { return self.boot(container, address).await };
        self.enter(Stage::Up { address });
        crash_point::point("shim.up");
        let agent = tokio::select! {
            agent = timeout(limit, self.guest_agent()) => agent,
            _ = stop.requested() => return GuestEnd::Asked(GracePeriod::asked(stop)),
        };
        let Ok((mut guest, _)) = agent else {
            return GuestEnd::Over(guest_agent_missing(limit, "a Pod without `command` and `args`"));
        };
        match self.initialise(&mut guest, address).await {
            InitResult::Done => {}
            InitResult::Ended(end) => return end,
        }
        let first = self.spec.init.is_empty();
        let due = (self.spec.main.late && !first).then_some(0);
        let Some(command) = self.command_of(&self.spec.main, command, due).await else {
            return GuestEnd::Over(stopped_early());
        };
        let task = Task {
            spec: &self.spec.main,
            command: &command,
            address,
            identity: first.then_some(&self.spec.identity),
            is_main: true,
        };
        let run =
            self.run_container(&mut guest, task, |_, ready| self.running(container, address, Some(ready)));
        let end = run.await;
        self.container_ended(&mut guest, end).await
    }

    /// What the end of the main container means for the VM.
    async fn container_ended(&self, guest: &mut Guest, run: Run) -> GuestEnd {
        let end = match run {
            Run::Over(ending) => GuestEnd::Over(ending),
            Run::Overdue => GuestEnd::Over(Ending::Stopped { killed: true }),
            Run::NotBegun => GuestEnd::Over(stopped_early()),
            Run::Lost => return GuestEnd::Lost,
        };
        if self.spec.shares.iter().any(|share| !share.read_only) {
            container::flush(guest).await;
        }
        end
    }

    /// Notes that the container has ended, unless somebody was heard who wants it to: who comes too late has not stopped it.
    fn note_own_end(&self) {
        if self.stop.latest().is_none()
            && let Err(error) = self.attempt.mark_by_itself()
        {
            warn!(error = chain(&error), "that the container has ended by itself cannot be written down");
        }
    }

    fn running(&self, container: &mut Container, address: IpAddr, ready: Option<&Ready>) {
        container.started_at = Some(Timestamp::now());
        self.reach(Stage::Running { address }, ready);
        crash_point::point("shim.running");
    }

    /// Leaves something for the agent to tell in an Event.
    fn notice(&self, reason: &str, message: String) {
        let notice = Notice { reason: reason.to_owned(), message };
        match self.attempt.notice(&notice) {
            Ok(true) => warn!(vm = %self.spec.vm, reason, "{}", notice.message),
            Ok(false) => {}
            Err(error) => {
                warn!(vm = %self.spec.vm, reason, error = chain(&error), "cannot leave for the agent to tell: {}", notice.message);
            }
        }
    }

    async fn finish(&self, ending: Ending, started_at: Option<Timestamp>) {
        self.end(&Outcome { ending, started_at, finished_at: Timestamp::now() }).await;
    }

    async fn end(&self, outcome: &Outcome) {
        // What a container says at last may be secret.
        match &outcome.ending {
            Ending::Exited { code, .. } => info!(vm = %self.spec.vm, code, "ended"),
            ending => info!(vm = %self.spec.vm, ?ending, "ended"),
        }
        self.persist("how the VM ended", || self.attempt.finish(outcome)).await;
        crash_point::point("shim.ended");
    }

    /// Writes something down that must not be lost, for as long as it takes: a full disk has room again some day. A directory that
    /// somebody has deleted has not.
    async fn persist(&self, what: &str, write: impl Fn() -> Result<(), FileError>) {
        let mut complained = false;
        while let Err(error) = write() {
            if matches!(self.attempt.path().try_exists(), Ok(false)) {
                warn!(vm = %self.spec.vm, "the VM's directory is gone; nobody will read {what}");
                return;
            }
            if !std::mem::replace(&mut complained, true) {
                warn!(vm = %self.spec.vm, error = chain(&error), "cannot write down {what}; trying until it works");
            }
            sleep(PERSIST_INTERVAL).await;
        }
    }
}
