//! A running VM: waits for the guest, for signals and for faults until one of them ends it.

use std::env;
use std::future::pending;
use std::io;
use std::process::ExitCode;
use std::time::Duration;

use nix::sys::signal::{self, Signal as Sig};
use nix::unistd::Pid;
use tart_sim::fault::{ExitKind, Fault, RunExit};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, interval, sleep};

use super::control_socket::ControlSocket;
use super::vnc::Server;
use super::{Vm, print_error, vz_error};
use crate::guest::{self, AGENT_SOCKET, Boot, Halt, Machine};
use crate::host::dhcp_leases::Subnet;
use crate::host::faults;
use crate::host::running_vms::Slot;
use crate::output::stdout;
use crate::version;

/// How often `run` looks for faults that end the VM.
const FAULT_CHECK: Duration = Duration::from_millis(50);

/// The signals that `run` handles. All others end the process.
#[derive(Debug)]
pub(super) struct Signals {
    interrupt: Signal,
    suspend: Signal,
    request_stop: Signal,
}

impl Signals {
    /// Installs the handlers.
    pub(super) fn listen() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            suspend: signal(SignalKind::user_defined1())?,
            request_stop: signal(SignalKind::user_defined2())?,
        })
    }
}

/// Why a VM ended.
#[derive(Debug)]
enum End {
    /// `tart stop`.
    Interrupted,
    /// `tart suspend`.
    Suspended,
    /// The guest, or the framework, stopped it. The line on stdout says why.
    Stopped(String),
    /// tart itself failed.
    Failed(String),
    /// A fault ends the process.
    Dies(RunExit),
}

/// Runs until the VM stops. The guest is gone when this returns.
pub(super) async fn run_until_end(vm: Vm, mut slot: Slot, mut signals: Signals) -> ExitCode {
    let mut guest = None;
    let end = match serve_control_socket(&vm) {
        Ok(()) => until_the_end(&vm, &mut slot, &mut signals, &mut guest).await.unwrap_or_else(End::from),
        Err(error) => End::from(error),
    };
    let code = match end {
        End::Dies(exit) => {
            if let Some(message) = exit.message {
                print_error(&message);
            }
            die(exit.kind)
        }
        End::Interrupted => {
            stdout::line("Stopping VM...");
            ExitCode::SUCCESS
        }
        End::Suspended => suspend(&vm),
        End::Stopped(line) => {
            stdout::line(line);
            ExitCode::SUCCESS
        }
        End::Failed(message) => {
            print_error(&message);
            ExitCode::FAILURE
        }
    };
    if let Some(machine) = guest {
        // The guest is gone even if this fails.
        let _ = machine.cut_power().await;
    }
    code
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

fn serve_control_socket(vm: &Vm) -> io::Result<()> {
    if !version::at_least((2, 27, 0)) {
        return Ok(());
    }
    let agent_socket = vm.dir.guest_path().join(AGENT_SOCKET);
    vm.dir.remove_control_socket();
    vm.dir.enter();
    // The simulator's own socket is reached by the shortest path that there is.
    let is_inside = env::current_dir()? == vm.dir.path();
    let inner = agent_socket.strip_prefix(vm.dir.path()).ok().filter(|_| is_inside);
    let agent_socket = inner.unwrap_or(&agent_socket).to_owned();
    match ControlSocket::bind(&vm.dir.control_socket_path(), agent_socket, vm.faults.clone()) {
        Ok(socket) => {
            tokio::spawn(socket.serve());
            Ok(())
        }
        Err(error) if version::is_snapshot() => Err(error),
        // Releases ignore the failure.
        Err(_) => Ok(()),
    }
}

/// How the guest ended by itself, if it is up.
async fn halted(guest: &mut Option<Machine>) -> io::Result<Halt> {
    match guest {
        Some(machine) => machine.halted().await,
        None => pending().await,
    }
}

async fn until_the_end(
    vm: &Vm,
    slot: &mut Slot,
    signals: &mut Signals,
    guest: &mut Option<Machine>,
) -> io::Result<End> {
    let started = Instant::now();
    let mut fault_check = interval(FAULT_CHECK);
    let mut boot = Some(started + vm.boot_delay());
    if vm.screen.is_some_and(|screen| screen.server == Server::Framework) {
        announce_screen(vm, None);
    }
    loop {
        tokio::select! {
            () = until(boot) => {
                boot = None;
                *guest = Some(boot_guest(vm, slot).await?);
            }
            halt = halted(guest) => match halt? {
                Halt::PoweredOff => return Ok(End::Stopped("guest has stopped the virtual machine".into())),
                Halt::Crashed => return Ok(stopped_by(&vz_error::stopped_unexpectedly())),
                Halt::Reboot => {
                    *guest = None;
                    boot = Some(Instant::now() + vm.boot_delay());
                }
            },
            _ = signals.interrupt.recv() => if !vm.faults.is_on(Fault::SigintHang) {
                sleep(vm.faults.duration(Fault::SigintDelay).unwrap_or_default()).await;
                return Ok(End::Interrupted);
            },
            _ = signals.suspend.recv() => return Ok(End::Suspended),
            _ = signals.request_stop.recv() => {
                stdout::line("Requesting guest OS to stop...");
                if let Some(machine) = guest {
                    machine.press_power_button().await?;
                }
            }
            _ = fault_check.tick() => if let Some(end) = fault_end(vm, started) {
                return Ok(end);
            },
        }
    }
}

async fn until(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant).await,
        None => pending().await,
    }
}

async fn boot_guest(vm: &Vm, slot: &mut Slot) -> io::Result<Machine> {
    let isolated = !vm.faults.is_on(Fault::NoNamespaces);
    let unreachable = Subnet::unreachable();
    let own_network = faults::is_on(Fault::OwnNetwork)
        && isolated
        && unreachable.is_none()
        && guest::can_have_own_network().await;
    let mut boot = Boot { own_network, ..vm.boot() };
    if !vm.faults.is_on(Fault::DhcpExhausted) {
        let subnet = if own_network { Subnet::own() } else { Subnet::loopback() };
        let host_name = vm.faults.parameter(Fault::GuestName).unwrap_or_else(|| boot.host_name());
        let stale_lease = vm.faults.is_on(Fault::StaleLease);
        boot.address = slot.connect(unreachable.unwrap_or(subnet), &host_name, stale_lease)?;
    }
    let address = boot.address;
    let machine = Machine::start(&vm.dir.guest_path(), boot, isolated).await?;
    if vm.screen.is_some_and(|screen| screen.server == Server::Guest) {
        announce_screen(vm, address);
    }
    Ok(machine)
}

fn announce_screen(vm: &Vm, address: Option<std::net::Ipv4Addr>) {
    if let Some(screen) = vm.screen {
        screen.announce(address);
    }
}

/// The end that a fault gives to a running VM.
fn fault_end(vm: &Vm, started: Instant) -> Option<End> {
    if let Some(exit) = vm.faults.parameter(Fault::RunDies).and_then(|text| RunExit::parse(&text))
        && started.elapsed() >= exit.after
    {
        return Some(End::Dies(exit));
    }
    if vm.faults.is_on(Fault::GuestPanic) {
        return Some(stopped_by(&vz_error::stopped_unexpectedly()));
    }
    if vm.faults.is_on(Fault::VzOutOfDiskSpace) {
        return Some(stopped_by(&vz_error::out_of_disk_space()));
    }
    if vm.faults.is_on(Fault::NetworkLost) {
        let (device, error) = vz_error::network_lost();
        return Some(End::Stopped(format!(
            "virtual machine's network attachment {device} has been disconnected with error: {error}"
        )));
    }
    if vm.network.softnet && vm.faults.is_on(Fault::SoftnetDies) {
        return Some(End::Failed("RuntimeFailed(why: \"Softnet process terminated prematurely\")".into()));
    }
    None
}

fn stopped_by(error: &str) -> End {
    End::Stopped(format!("guest has stopped the virtual machine due to error: {error}"))
}

/// Ends this process at once. The guest ends with it.
fn die(kind: ExitKind) -> ExitCode {
    match kind {
        ExitKind::Code(code) => std::process::exit(code.into()),
        ExitKind::Signal(signal) => {
            // The first signal removes Rust's own handler, the second ends the process.
            let _ = signal::raise(signal).and_then(|()| signal::raise(signal));
            // The parent process made this one ignore or block the signal.
            let _ = signal::kill(Pid::this(), Sig::SIGKILL);
            ExitCode::FAILURE
        }
    }
}

/// Saves the guest's memory, or prints why not. The file has no memory in it: it only marks the VM as suspended.
fn suspend(vm: &Vm) -> ExitCode {
    let failed = |reason: &str| {
        stdout::line(format!("Failed to suspend the VM: {reason}"));
        ExitCode::FAILURE
    };
    if !vm.suspendable {
        return failed("Invalid virtual machine configuration. Unsupported console device in configuration.");
    }
    stdout::line("pausing VM to take a snapshot...");
    stdout::line("creating a snapshot...");
    if vm.faults.is_on(Fault::SuspendFails) {
        return failed("An error occurred while saving the virtual machine.");
    }
    if let Err(error) = std::fs::write(vm.dir.state_path(), "memory of a simulated guest\n") {
        return failed(&error.to_string());
    }
    stdout::line("snapshot created successfully! shutting down the VM...");
    ExitCode::SUCCESS
}
