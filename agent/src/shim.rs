//! The process that owns one VM: it makes the VM, runs it with the container's command in it, and writes down how
//! it ended. It lives in its own session and needs no API server, so the agent can die and come back meanwhile.

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
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use nix::unistd::setsid;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::guest::{ExecEvent, Guest, GuestError};
use crate::report::chain;
use crate::state::{Attempt, Ending, GuestCommand, Outcome, Progress, ShimSpec, Stage, StateError};
use crate::tart::{Fault, Size, Tart, TartError};
use log::{Log, Source};
use shutdown::shut_down;
use stop::StopSignal;
use vm_output::VmOutput;

/// How often the guest agent of a booting VM is asked for the guest's address.
const ADDRESS_INTERVAL: Duration = Duration::from_millis(100);
/// How long one such question may take.
const ADDRESS_LIMIT: Duration = Duration::from_secs(2);
/// How long a guest may take from power-on to an answering guest agent.
const BOOT_LIMIT: Duration = Duration::from_mins(15);

/// A shim that could not do its work at all.
#[derive(Debug, thiserror::Error)]
pub enum ShimError {
    /// Its directory is not usable.
    #[error(transparent)]
    State(#[from] StateError),
    /// The container's log cannot be written.
    #[error("cannot open the container's log {0}")]
    Log(String, #[source] io::Error),
    /// The directory cannot be watched.
    #[error("cannot watch {0}")]
    Watch(String, #[source] notify::Error),
    /// An older `tart` still works on the VM.
    #[error("another tart still works on {0}")]
    Busy(String),
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
    let Some(tart_lock) = attempt.take_tart_lock()? else {
        return Err(ShimError::Busy(spec.vm.to_string()));
    };
    tart_lock.share_with_children().map_err(|error| ShimError::Log(dir.display().to_string(), error))?;
    let stop = StopSignal::watch(&attempt)?;
    let shim = Shim { tart: Tart::new(&spec.tart), attempt, spec, stop };
    shim.serve().await
}

struct Shim {
    tart: Tart,
    attempt: Attempt,
    spec: ShimSpec,
    stop: StopSignal,
}

impl Shim {
    async fn serve(self) -> Result<(), ShimError> {
        let prepared = {
            let mut stop = self.stop.clone();
            tokio::select! {
                prepared = self.prepare() => prepared,
                // Dropping the call kills the tart that is at work.
                _ = stop.requested() => Ok(Err(Ending::Stopped { killed: true })),
            }
        };
        match prepared? {
            Ok(()) => self.run_vm().await,
            Err(ending) => self.finish(ending, None),
        }
    }

    /// Makes the VM. Everything up to here can be thrown away and done again.
    async fn prepare(&self) -> Result<Result<(), Ending>, StateError> {
        self.enter(Stage::Cloning)?;
        if let Err(error) = self.tart.clone_image(&self.spec.image, &self.spec.vm).await {
            return Ok(Err(not_started("CreateContainerError", &error)));
        }
        self.enter(Stage::Configuring)?;
        let size = Size { cpu: self.spec.cpu, memory_mib: self.spec.memory_mib };
        if let Err(error) = self.tart.configure(&self.spec.vm, size).await {
            return Ok(Err(not_started("CreateContainerError", &error)));
        }
        Ok(Ok(()))
    }

    async fn run_vm(mut self) -> Result<(), ShimError> {
        self.enter(Stage::Booting)?;
        let mut child = match self.tart.run(&self.spec.vm) {
            Ok(child) => child,
            Err(error) => return self.finish(not_started("StartError", &error), None),
        };
        let shown = self.spec.log.display().to_string();
        let log = Log::open(&self.spec.log).map_err(|error| ShimError::Log(shown, error))?;
        // Without a command, what tart says of the VM is all the output there is.
        let (output_log, command_log) =
            if self.spec.command.is_some() { (None, Some(log)) } else { (Some(log), None) };
        let output = VmOutput::collect(&mut child, output_log);

        let mut container = Container::default();
        let mut stop = self.stop.clone();
        let end = tokio::select! {
            status = child.wait() => End::Vm(status),
            ending = self.guest(&mut container, command_log) => End::Command(ending),
            _ = stop.requested() => End::Asked,
        };
        match end {
            End::Vm(status) => {
                let ending = output.ending(status).await;
                self.finish(ending, container.started_at)
            }
            End::Command(ending) => {
                let outcome =
                    Outcome { ending, started_at: container.started_at, finished_at: Timestamp::now() };
                if let Err(error) = self.attempt.result(&outcome) {
                    warn!(error = chain(&error), "the exit code is known, but cannot be written down yet");
                }
                shutdown::force(&self.spec.vm, &mut child).await;
                self.end(&outcome)
            }
            End::Asked => {
                let killed = shut_down(&self.tart, &self.spec.vm, &mut child, &mut self.stop).await;
                self.finish(Ending::Stopped { killed }, container.started_at)
            }
        }
    }

    /// The guest's side of the container: its address, then its command. Without a command it never ends by itself.
    async fn guest(&self, container: &mut Container, log: Option<Log>) -> Ending {
        let address = self.address().await;
        let Some((command, mut log)) = self.spec.command.as_ref().zip(log) else {
            self.running(container, address);
            return std::future::pending().await;
        };
        if let Err(error) = self.enter(Stage::Up { address }) {
            warn!(error = chain(&error), "the VM has an address, but that cannot be written down");
        }
        let Ok((mut guest, _)) = timeout(BOOT_LIMIT, self.guest_agent()).await else {
            return guest_agent_missing();
        };
        let started = guest.exec(command).await;
        match started {
            Ok(events) => {
                self.running(container, address);
                let ending = follow(events, &mut log).await;
                if let Err(error) = log.close() {
                    warn!(%error, "the end of the container's log is lost");
                }
                ending
            }
            Err(error) => command_not_started(command, &error),
        }
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
            if let Ok(mut guest) = Guest::connect(&socket).await
                && let Ok(address) = guest.address(ADDRESS_LIMIT).await
            {
                break (guest, address);
            }
            sleep(ADDRESS_INTERVAL).await;
        }
    }

    fn running(&self, container: &mut Container, address: IpAddr) {
        container.started_at = Some(Timestamp::now());
        if let Err(error) = self.enter(Stage::Running { address }) {
            // The VM runs on; a full disk must not end somebody's job.
            warn!(error = chain(&error), "the VM runs, but that cannot be written down");
        }
    }

    fn enter(&self, stage: Stage) -> Result<(), StateError> {
        self.attempt.progress(&Progress { stage, since: Timestamp::now() })
    }

    fn finish(&self, ending: Ending, started_at: Option<Timestamp>) -> Result<(), ShimError> {
        self.end(&Outcome { ending, started_at, finished_at: Timestamp::now() })
    }

    fn end(&self, outcome: &Outcome) -> Result<(), ShimError> {
        info!(vm = %self.spec.vm, ending = ?outcome.ending, "ended");
        Ok(self.attempt.finish(outcome)?)
    }
}

/// What ended a VM's life.
enum End {
    Vm(io::Result<std::process::ExitStatus>),
    Command(Ending),
    Asked,
}

/// What is known of the container while it runs.
#[derive(Debug, Default)]
struct Container {
    started_at: Option<Timestamp>,
}

/// Copies a command's output to the log until it ends.
async fn follow(
    mut events: impl futures::Stream<Item = Result<ExecEvent, GuestError>> + Unpin,
    log: &mut Log,
) -> Ending {
    let mut complained = false;
    while let Some(event) = events.next().await {
        let written = match event {
            Ok(ExecEvent::Stdout(bytes)) => log.write(Source::Stdout, &bytes),
            Ok(ExecEvent::Stderr(bytes)) => log.write(Source::Stderr, &bytes),
            Ok(ExecEvent::Exit(code)) => return command_exited(code),
            Err(error) => {
                return Ending::Exited {
                    code: 255,
                    message: Some(format!("lost the command: {}", chain(&error))),
                };
            }
        };
        // A full disk loses output, never the job.
        if let Err(error) = written
            && !std::mem::replace(&mut complained, true)
        {
            warn!(%error, "the container's log cannot be written");
        }
    }
    Ending::Exited { code: 255, message: Some("the guest agent went away while the command ran".to_owned()) }
}

fn command_exited(code: i32) -> Ending {
    if code < 0 {
        // The guest agent does not say which signal; 137 is what a kill looks like elsewhere.
        return Ending::Exited { code: 137, message: Some("a signal killed the command".to_owned()) };
    }
    Ending::Exited { code, message: None }
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

fn not_started(reason: &str, error: &TartError) -> Ending {
    let advice = error.fault().map_or("", Fault::advice);
    Ending::NotStarted {
        reason: reason.to_owned(),
        message: format!("{}{advice}", chain(error)),
        fault: None,
    }
}
