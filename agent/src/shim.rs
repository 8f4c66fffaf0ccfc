//! The process that owns one VM: it makes the VM, runs it with the container's command in it, and writes down how
//! it ended. It lives in its own session and needs no API server, so the agent can die and come back meanwhile.

mod boot;
mod container;
mod guest_status;
mod hooks;
pub mod host_ports;
mod initialise;
mod last_words;
mod launch;
mod leftovers;
mod limit;
mod log;
mod shutdown;
mod stop;
mod vm_output;

pub use launch::{LaunchError, launch};
pub use leftovers::{LeftoversError, kill_leftovers};

use std::fs::File;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use jiff::Timestamp;
use nix::unistd::setsid;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::crash;
use crate::guest::script::Ready;
use crate::guest::{Guest, GuestError};
use crate::report::chain;
use crate::state::{Attempt, Ending, HostFault, Notice, Outcome, Progress, ShimSpec, Stage, StateError};
use crate::tart::{Fault, Size, Tart, TartError};
use container::{Run, Task};
use host_ports::{HostPortError, HostPorts};
use initialise::Initialised;
use log::Log;
use shutdown::shut_down;
use stop::StopSignal;
use vm_output::VmOutput;

/// How often the guest agent of a booting VM is asked for the guest's address.
const ADDRESS_INTERVAL: Duration = Duration::from_millis(100);
/// How long one such question may take.
const ADDRESS_LIMIT: Duration = Duration::from_secs(2);
/// How often something that could not be written down is tried again.
const PERSIST_INTERVAL: Duration = Duration::from_secs(1);
/// How long the agent may take to make room; it may just be restarted.
const ROOM_PATIENCE: Duration = Duration::from_mins(5);
const ROOM_INTERVAL: Duration = Duration::from_millis(200);
/// How long a VM may take to follow a command that a signal has ended.
const DYING: Duration = Duration::from_millis(500);
/// How long tart may take to say why a VM is gone whose guest agent has gone.
const LAST_WORDS: Duration = Duration::from_secs(3);

/// A shim that could not do its work at all.
#[derive(Debug, thiserror::Error)]
pub enum ShimError {
    /// Its directory is not usable.
    #[error(transparent)]
    State(#[from] StateError),
    /// The lock of the VM cannot be shared with tart.
    #[error("cannot share the VM's lock with tart")]
    Share(#[source] io::Error),
}

/// Serves the VM whose directory is `dir`, from clone to outcome. The VM's lock comes as standard input.
pub async fn run(dir: &Path, stdin: File) -> Result<(), ShimError> {
    // Out of the agent's session: nothing that is sent to its group may reach us. It fails when we lead a group
    // already, that is when a person started us, and then there is nothing to leave.
    let _ = setsid();
    let (attempt, spec) = Attempt::open(dir)?;
    let Some(_shim_lock) = attempt.inherit_shim_lock(stdin)? else {
        info!(vm = %spec.vm, "this VM is not ours to run");
        return Ok(());
    };
    let stop = StopSignal::watch(&attempt);
    let shim = Shim { tart: Tart::new(&spec.tart), attempt, spec, stop };
    shim.persist("who runs the VM", || shim.attempt.sign(std::process::id())).await;
    let Some(tart_lock) = shim.attempt.take_tart_lock()? else {
        let message = "another tart is still at work on the VM".to_owned();
        shim.finish(Ending::NotStarted { reason: "StartError".to_owned(), message, fault: None }, None).await;
        return Ok(());
    };
    tart_lock.share_with_children().map_err(ShimError::Share)?;
    crash::point("shim.started");
    shim.serve().await;
    Ok(())
}

struct Shim {
    tart: Tart,
    attempt: Attempt,
    spec: ShimSpec,
    stop: StopSignal,
}

impl Shim {
    async fn serve(self) {
        self.persist("that the VM is begun", || self.attempt.begin()).await;
        crash::point("shim.begun");
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
            Ok(()) => self.run_vm(ports).await,
            Err(ending) => self.finish(ending, None).await,
        }
    }

    /// Makes the VM.
    async fn prepare(&self) -> Result<(), Ending> {
        self.enter(Stage::Cloning, Vec::new());
        // The disk has time for this while tart clones.
        let attempt = self.attempt.clone();
        let begun = spawn_blocking(move || attempt.sync_begun());
        self.clone_with_room().await.map_err(|error| not_started("CreateContainerError", &error))?;
        crash::point("shim.cloned");
        self.enter(Stage::Configuring, Vec::new());
        self.configure().await.map_err(|error| not_started("CreateContainerError", &error))?;
        if !matches!(begun.await, Ok(Ok(()))) {
            self.persist("that the VM is begun", || self.attempt.sync_begun()).await;
        }
        Ok(())
    }

    /// Clones the VM. When there is no space, the agent makes some, and it is tried once more.
    async fn clone_with_room(&self) -> Result<(), TartError> {
        match self.clone_vm().await {
            Err(error) if error.fault() == Some(Fault::NoSpace) => {
                warn!(error = chain(&error), "no space for the VM; asking the agent for some");
                self.wait_for_room().await;
                self.clone_vm().await
            }
            result => result,
        }
    }

    async fn wait_for_room(&self) {
        if let Err(error) = self.attempt.ask_for_room() {
            return warn!(error = chain(&error), "the agent cannot be asked for room");
        }
        let made = async {
            while !self.attempt.is_room_made() {
                sleep(ROOM_INTERVAL).await;
            }
        };
        if timeout(ROOM_PATIENCE, made).await.is_err() {
            warn!("the agent has not made room");
        }
    }

    async fn clone_vm(&self) -> Result<(), TartError> {
        if let Some(base) = &self.spec.base {
            match self.tart.clone_base(base, &self.spec.vm).await {
                // Somebody has deleted it a moment ago, or a part of it. A disk without room has none for the image either.
                Err(error) if error.fault().is_some_and(|fault| fault != Fault::NoSpace) => {
                    warn!(%base, error = chain(&error), "cannot clone the base VM; cloning the image itself");
                }
                result => return result,
            }
        }
        self.tart.clone_image(&self.spec.image, &self.spec.vm).await
    }

    async fn configure(&self) -> Result<(), TartError> {
        let size = Size { cpu: self.spec.cpu, memory_mib: self.spec.memory_mib };
        match self.tart.configure(&self.spec.vm, size).await {
            // A request says what is enough, not how much it has to be: the image may need more.
            Err(error) if error.fault() == Some(Fault::BadSize) && self.spec.size_is_minimum => {
                self.tart.configure(&self.spec.vm, Size::default()).await
            }
            result => result,
        }
    }

    async fn run_vm(mut self, ports: HostPorts) {
        crash::point("shim.configured");
        self.enter(Stage::Booting, Vec::new());
        let mut child = match self.tart.run(&self.spec.vm, &self.spec.shares) {
            Ok(child) => child,
            Err(error) => return self.finish(not_started("StartError", &error), None).await,
        };
        crash::point("shim.run");
        // Without a command, what tart says of the VM is all the output there is.
        let boots = self.spec.main.command.is_none();
        let log = if boots { Log::open(&self.spec.main.log) } else { Log::nowhere() };
        let output = VmOutput::collect(&mut child, log);

        let mut container = Container::default();
        let end = tokio::select! {
            status = child.wait() => End::Vm(status),
            end = self.guest(&mut container, &ports) => End::Guest(end),
        };
        let ending = match end {
            End::Vm(status) => self.vm_ending(output.ending(status).await),
            End::Guest(GuestEnd::Asked) => {
                let killed = shut_down(&self.tart, &self.spec.vm, &mut child, &mut self.stop).await;
                let told = (!killed).then(|| self.told_by_guest()).flatten();
                told.unwrap_or(Ending::Stopped { killed })
            }
            // The connection breaks a moment before tart says why.
            End::Guest(GuestEnd::Lost) => match timeout(LAST_WORDS, child.wait()).await {
                Ok(status) => lost_with(output.ending(status).await),
                Err(_) => lost("the guest agent went away while the command ran"),
            },
            End::Guest(GuestEnd::Over(ending)) if self.may_be_the_vms(&ending) => {
                match timeout(DYING, child.wait()).await {
                    Ok(status) => told_by_vm(output.ending(status).await, ending),
                    Err(_) => ending,
                }
            }
            End::Guest(GuestEnd::Over(ending)) => ending,
        };
        // Free for the next VM when somebody hears of the end of this one.
        drop(ports);
        let outcome = Outcome { ending, started_at: container.started_at, finished_at: Timestamp::now() };
        if child.id().is_some() {
            self.persist("how the container ended", || self.attempt.result(&outcome)).await;
            crash::point("shim.result");
            shutdown::force(&self.spec.vm, &mut child).await;
            crash::point("shim.stopped");
        }
        self.end(&outcome).await;
    }

    /// Whether a signal that nobody has asked for ended the command: a guest that dies takes it along.
    fn may_be_the_vms(&self, ending: &Ending) -> bool {
        matches!(ending, Ending::Exited { code: 129.., .. }) && self.stop.latest().is_none()
    }

    /// The end of a VM that ended by itself: the guest may have said more about it than tart can.
    fn vm_ending(&self, ending: Ending) -> Ending {
        if self.spec.main.command.is_some() {
            return lost_with(ending);
        }
        match ending {
            Ending::Exited { code: 0, .. } => self.told_by_guest().unwrap_or(ending),
            other => other,
        }
    }

    fn told_by_guest(&self) -> Option<Ending> {
        self.spec.status_dir.as_deref().and_then(guest_status::read)
    }

    /// The guest's side of it: its address, then its containers. Without a command it never ends by itself.
    async fn guest(&self, container: &mut Container, ports: &HostPorts) -> GuestEnd {
        let mut stop = self.stop.clone();
        let limit = self.spec.boot_limit;
        let address = tokio::select! {
            address = timeout(limit, self.address()) => address,
            _ = stop.requested() => return GuestEnd::Asked,
        };
        let Ok(address) = address else { return GuestEnd::Over(no_address(limit)) };
        let _forwarding = ports.serve(address);
        let Some(command) = &self.spec.main.command else { return self.boot(container, address).await };
        self.enter(Stage::Up { address }, Vec::new());
        crash::point("shim.up");
        let agent = tokio::select! {
            agent = timeout(limit, self.guest_agent()) => agent,
            _ = stop.requested() => return GuestEnd::Asked,
        };
        let Ok((mut guest, _)) = agent else { return GuestEnd::Over(guest_agent_missing(limit)) };
        match self.initialise(&mut guest, address).await {
            Initialised::Done => {}
            Initialised::Ended(end) => return end,
        }
        let first = self.spec.init.is_empty();
        let task = Task {
            spec: &self.spec.main,
            command,
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

    /// The guest's address, from the guest agent or from its DHCP lease, whichever is there first.
    async fn address(&self) -> IpAddr {
        let asked = async {
            let claimed = self.guest_agent().await.1;
            if self.is_credible(claimed).await { claimed } else { std::future::pending().await }
        };
        let leased = async {
            loop {
                // The MAC address is this VM's alone, so a lease for it is never a stale one.
                match self.tart.wait_for_address(&self.spec.vm, Duration::from_mins(1)).await {
                    Ok(address) => break address,
                    Err(error) => {
                        warn!(error = chain(&error), "no address yet");
                        sleep(Duration::from_secs(1)).await;
                    }
                }
            }
        };
        tokio::select! { address = asked => address, address = leased => address }
    }

    /// Whether a guest can be believed that it has an address. Host ports and probes go there, so one that is the host's own
    /// takes a lease to be believed.
    async fn is_credible(&self, claimed: IpAddr) -> bool {
        let is_hosts = claimed.is_loopback() || UdpSocket::bind((claimed, 0)).is_ok();
        if !(is_hosts || claimed.is_unspecified() || claimed.is_multicast()) {
            return true;
        }
        let leased = self.tart.wait_for_address(&self.spec.vm, Duration::ZERO).await;
        let proven = matches!(leased, Ok(leased) if leased == claimed);
        if !proven {
            warn!(vm = %self.spec.vm, %claimed, "the guest claims an address of the host's; waiting for its lease");
        }
        proven
    }

    /// The guest agent, once it answers, and the address that it says the guest has.
    ///
    /// A question that can be asked twice comes first: a command must not be sent before somebody is there to take it.
    async fn guest_agent(&self) -> (Guest, IpAddr) {
        let socket = self.tart.vm_dir(&self.spec.vm).join("control.sock");
        loop {
            let ask = async {
                let mut guest = Guest::connect(&socket).await?;
                let address = guest.address().await?;
                Ok::<_, GuestError>((guest, address))
            };
            // Whoever listens there may accept and then say nothing.
            if let Ok(Ok(answer)) = timeout(ADDRESS_LIMIT, ask).await {
                break answer;
            }
            sleep(ADDRESS_INTERVAL).await;
        }
    }

    fn running(&self, container: &mut Container, address: IpAddr, ready: Option<&Ready>) {
        container.started_at = Some(Timestamp::now());
        self.enter(Stage::Running { address }, ready.map(Ready::enter).unwrap_or_default());
        crash::point("shim.running");
    }

    fn enter(&self, stage: Stage, enter: Vec<String>) {
        if let Err(error) = self.attempt.progress(&Progress { stage, since: Timestamp::now(), enter }) {
            // The VM goes on; a full disk must not end somebody's job.
            warn!(error = chain(&error), ?stage, "how far the VM has come cannot be written down");
        }
    }

    /// Leaves something for the agent to tell in an Event.
    fn notice(&self, reason: &str, message: String) {
        warn!(vm = %self.spec.vm, reason, "{message}");
        if let Err(error) = self.attempt.notice(Notice { reason: reason.to_owned(), message }) {
            warn!(error = chain(&error), "the notice cannot be left for the agent");
        }
    }

    async fn finish(&self, ending: Ending, started_at: Option<Timestamp>) {
        self.end(&Outcome { ending, started_at, finished_at: Timestamp::now() }).await;
    }

    async fn end(&self, outcome: &Outcome) {
        info!(vm = %self.spec.vm, ending = ?outcome.ending, "ended");
        self.persist("how the VM ended", || self.attempt.finish(outcome)).await;
        crash::point("shim.ended");
    }

    /// Writes something down that must not be lost, for as long as it takes: a full disk has room again some day. A directory that
    /// somebody has deleted has not.
    async fn persist(&self, what: &str, write: impl Fn() -> Result<(), StateError>) {
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

/// What ended a VM's life.
enum End {
    Vm(io::Result<ExitStatus>),
    Guest(GuestEnd),
}

/// What ended the guest's side of it.
enum GuestEnd {
    /// This.
    Over(Ending),
    /// The guest is to be shut down.
    Asked,
    /// Nobody knows: the guest agent is gone.
    Lost,
}

/// What is known of the container while it runs.
#[derive(Debug, Default)]
struct Container {
    started_at: Option<Timestamp>,
}

fn lost(why: &str) -> Ending {
    Ending::Exited { code: 255, message: Some(why.to_owned()) }
}

/// The end of a command whose VM ended with it: what tart says of the VM explains it, when it says anything.
fn told_by_vm(vm: Ending, command: Ending) -> Ending {
    match (vm, command) {
        (Ending::Exited { message: Some(why), .. }, Ending::Exited { code, .. }) => {
            Ending::Exited { code, message: Some(why) }
        }
        (_, command) => command,
    }
}

/// The end of a command that was lost together with its VM, by the VM's account.
fn lost_with(vm: Ending) -> Ending {
    match vm {
        Ending::Exited { code: 0, .. } => lost("the guest shut down before its command had ended"),
        account => account,
    }
}

fn stopped_early() -> Ending {
    let message = "stopped before the container had started".to_owned();
    Ending::NotStarted { reason: "Stopped".to_owned(), message, fault: None }
}

fn no_address(limit: Duration) -> Ending {
    let message = format!(
        "the guest got no address within {} s; it may not have booted, or the host's DHCP server has none left",
        limit.as_secs()
    );
    Ending::NotStarted { reason: "NoAddress".to_owned(), message, fault: Some(HostFault::NoAddress) }
}

fn guest_agent_missing(limit: Duration) -> Ending {
    Ending::NotStarted {
        reason: "GuestAgentMissing".to_owned(),
        message: format!(
            "the guest agent did not answer within {} s; use an image with tart-guest-agent in it and a user that logs \
             in by itself, or a Pod without `command` and `args`",
            limit.as_secs()
        ),
        fault: None,
    }
}

fn port_taken(error: &HostPortError) -> Ending {
    Ending::NotStarted { reason: "StartError".to_owned(), message: chain(error), fault: None }
}

fn not_started(reason: &str, error: &TartError) -> Ending {
    let advice = error.fault().map_or("", Fault::advice);
    Ending::NotStarted {
        reason: reason.to_owned(),
        message: format!("{}{advice}", chain(error)),
        fault: None,
    }
}
