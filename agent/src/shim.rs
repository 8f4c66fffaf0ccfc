//! The process that owns one VM: it makes the VM, runs it with the container's command in it, and writes down how
//! it ended. It lives in its own session and needs no API server, so the agent can die and come back meanwhile.

pub mod host_ports;
mod launch;
mod log;
mod shutdown;
mod stop;
mod vm_output;

pub use launch::{LaunchError, launch};

use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use futures::{Stream, StreamExt};
use jiff::Timestamp;
use nix::unistd::setsid;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::crash;
use crate::guest::{ExecEvent, Guest, GuestError};
use crate::report::chain;
use crate::state::{
    Attempt, Ending, GuestCommand, HostFault, Outcome, Progress, ShimSpec, Stage, StateError,
};
use crate::tart::{Fault, Size, Tart, TartError};
use host_ports::{HostPortError, HostPorts};
use log::{Log, Source};
use shutdown::shut_down;
use stop::StopSignal;
use vm_output::VmOutput;

/// How often the guest agent of a booting VM is asked for the guest's address.
const ADDRESS_INTERVAL: Duration = Duration::from_millis(100);
/// How long one such question may take.
const ADDRESS_LIMIT: Duration = Duration::from_secs(2);
/// How long a command is given to fail to start.
const SILENT_START: Duration = Duration::from_millis(250);
/// How often something that could not be written down is tried again.
const PERSIST_INTERVAL: Duration = Duration::from_secs(1);
/// How long tart may take to say why a VM is gone whose guest agent has gone.
const LAST_WORDS: Duration = Duration::from_secs(3);
/// How long a guest may take from power-on to an answering guest agent.
const BOOT_LIMIT: Duration = Duration::from_mins(15);

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
        self.enter(Stage::Cloning);
        // The disk has time for this while tart clones.
        let attempt = self.attempt.clone();
        let begun = spawn_blocking(move || attempt.sync_begun());
        self.clone_vm().await.map_err(|error| not_started("CreateContainerError", &error))?;
        crash::point("shim.cloned");
        self.enter(Stage::Configuring);
        self.configure().await.map_err(|error| not_started("CreateContainerError", &error))?;
        if !matches!(begun.await, Ok(Ok(()))) {
            self.persist("that the VM is begun", || self.attempt.sync_begun()).await;
        }
        Ok(())
    }

    async fn clone_vm(&self) -> Result<(), TartError> {
        if let Some(base) = &self.spec.base {
            match self.tart.clone_base(base, &self.spec.vm).await {
                // Somebody has deleted it a moment ago.
                Err(error) if error.fault() == Some(Fault::MissingVm) => {
                    warn!(%base, error = chain(&error), "the base VM is gone; cloning the image itself");
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
        self.enter(Stage::Booting);
        let mut child = match self.tart.run(&self.spec.vm) {
            Ok(child) => child,
            Err(error) => return self.finish(not_started("StartError", &error), None).await,
        };
        crash::point("shim.run");
        // Without a command, what tart says of the VM is all the output there is.
        let log = Log::open(&self.spec.log);
        let (output_log, command_log) =
            if self.spec.command.is_some() { (Log::nowhere(), log) } else { (log, Log::nowhere()) };
        let output = VmOutput::collect(&mut child, output_log);

        let mut container = Container::default();
        let mut stop = self.stop.clone();
        let end = tokio::select! {
            status = child.wait() => End::Vm(status),
            end = self.guest(&mut container, &ports, command_log) => End::Guest(end),
            _ = stop.requested() => End::Asked,
        };
        let ending = match end {
            End::Vm(status) => output.ending(status).await,
            End::Asked => {
                let killed = shut_down(&self.tart, &self.spec.vm, &mut child, &mut self.stop).await;
                Ending::Stopped { killed }
            }
            // The connection breaks a moment before tart says why.
            End::Guest(GuestEnd::Lost) => match timeout(LAST_WORDS, child.wait()).await {
                Ok(status) => lost_with(output.ending(status).await),
                Err(_) => lost("the guest agent went away while the command ran"),
            },
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

    /// The guest's side of the container: its address, then its command. Without a command it never ends by itself.
    async fn guest(&self, container: &mut Container, ports: &HostPorts, mut log: Log) -> GuestEnd {
        let Ok(address) = timeout(BOOT_LIMIT, self.address()).await else {
            return GuestEnd::Over(no_address());
        };
        let _forwarding = ports.serve(address);
        let Some(command) = &self.spec.command else {
            self.running(container, address);
            return std::future::pending().await;
        };
        self.enter(Stage::Up { address });
        let Ok((mut guest, _)) = timeout(BOOT_LIMIT, self.guest_agent()).await else {
            return GuestEnd::Over(guest_agent_missing());
        };
        let exec = guest.exec(command);
        tokio::pin!(exec);
        // A command that cannot start says so at once; one that is silent says nothing at all until it ends.
        let events = match timeout(SILENT_START, &mut exec).await {
            Ok(Err(error)) => return GuestEnd::Over(command_not_started(command, &error)),
            Ok(Ok(events)) => {
                self.running(container, address);
                Ok(events)
            }
            Err(_) => {
                self.running(container, address);
                exec.await
            }
        };
        let end = match events {
            Ok(events) => follow(events, &mut log).await,
            Err(error) => disconnected(&error),
        };
        log.close();
        end
    }

    /// The guest's address, from the guest agent or from its DHCP lease, whichever is there first.
    async fn address(&self) -> IpAddr {
        let asked = async { self.guest_agent().await.1 };
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

    fn running(&self, container: &mut Container, address: IpAddr) {
        container.started_at = Some(Timestamp::now());
        self.enter(Stage::Running { address });
        crash::point("shim.running");
    }

    fn enter(&self, stage: Stage) {
        if let Err(error) = self.attempt.progress(&Progress { stage, since: Timestamp::now() }) {
            // The VM goes on; a full disk must not end somebody's job.
            warn!(error = chain(&error), ?stage, "how far the VM has come cannot be written down");
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
    Asked,
}

/// What ended the guest's side of it.
enum GuestEnd {
    /// This.
    Over(Ending),
    /// Nobody knows: the guest agent is gone.
    Lost,
}

/// What is known of the container while it runs.
#[derive(Debug, Default)]
struct Container {
    started_at: Option<Timestamp>,
}

/// Copies a command's output to the log until it ends.
async fn follow(
    mut events: impl Stream<Item = Result<ExecEvent, GuestError>> + Unpin,
    log: &mut Log,
) -> GuestEnd {
    while let Some(event) = events.next().await {
        match event {
            Ok(ExecEvent::Stdout(bytes)) => log.write(Source::Stdout, &bytes),
            Ok(ExecEvent::Stderr(bytes)) => log.write(Source::Stderr, &bytes),
            Ok(ExecEvent::Exit(code)) => return GuestEnd::Over(command_exited(code)),
            Err(error) => return disconnected(&error),
        }
    }
    GuestEnd::Lost
}

fn disconnected(error: &GuestError) -> GuestEnd {
    warn!(error = chain(error), "lost the connection to the guest agent");
    GuestEnd::Lost
}

fn lost(why: &str) -> Ending {
    Ending::Exited { code: 255, message: Some(why.to_owned()) }
}

/// The end of a command that was lost together with its VM, by the VM's account.
fn lost_with(vm: Ending) -> Ending {
    match vm {
        Ending::Exited { code: 0, .. } => lost("the guest shut down while the command ran"),
        account => account,
    }
}

fn command_exited(code: i32) -> Ending {
    if code < 0 {
        // The guest agent does not say which signal; 137 is what a kill looks like elsewhere.
        return Ending::Exited { code: 137, message: Some("a signal killed the command".to_owned()) };
    }
    Ending::Exited { code, message: None }
}

fn stopped_early() -> Ending {
    let message = "stopped before its VM had started".to_owned();
    Ending::NotStarted { reason: "Stopped".to_owned(), message, fault: None }
}

fn no_address() -> Ending {
    let message = format!(
        "the guest got no address within {} minutes; it may not have booted, or the host's DHCP server has none left",
        BOOT_LIMIT.as_secs() / 60
    );
    Ending::NotStarted { reason: "NoAddress".to_owned(), message, fault: Some(HostFault::NoAddress) }
}

fn command_not_started(command: &GuestCommand, error: &GuestError) -> Ending {
    let program = command.argv.first().map_or("", String::as_str);
    Ending::NotStarted {
        reason: "StartError".to_owned(),
        message: format!("cannot start `{program}` in the guest: {}", chain(error)),
        fault: None,
    }
}

fn guest_agent_missing() -> Ending {
    Ending::NotStarted {
        reason: "GuestAgentMissing".to_owned(),
        message: format!(
            "the guest agent did not answer within {} minutes; use an image with tart-guest-agent in it and a user \
             that logs in by itself, or a Pod without `command` and `args`",
            BOOT_LIMIT.as_secs() / 60
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
