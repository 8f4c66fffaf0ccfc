//! The life of a running VM: the guest, the signals and the faults, until one of them ends it.

use std::env;
use std::future::pending;
use std::io;
use std::process::ExitCode;
use std::time::Duration;

use nix::sys::signal::{self, Signal as Sig};
use nix::unistd::Pid;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, interval, sleep};

use super::control_socket::ControlSocket;
use super::screen::Server;
use super::{Vm, complain, vz_error};
use crate::guest::{AGENT_SOCKET, Halt, Machine};
use crate::host::Slot;
use crate::{console, faults, version};

/// How often the faults that strike a running VM are looked for.
const FAULT_CHECK: Duration = Duration::from_millis(50);

/// The signals that `run` reacts to. All others have their usual effect, which ends the process.
#[derive(Debug)]
pub(super) struct Signals {
    interrupt: Signal,
    suspend: Signal,
    request_stop: Signal,
}

impl Signals {
    /// Takes the signals over.
    pub(super) fn listen() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            suspend: signal(SignalKind::user_defined1())?,
            request_stop: signal(SignalKind::user_defined2())?,
        })
    }
}

/// Why a VM's life ended.
#[derive(Debug)]
enum End {
    /// `tart stop`.
    Interrupted,
    /// `tart suspend`.
    Suspended,
    /// The guest, or the framework, stopped it: the line on stdout tells why.
    Stopped(String),
    /// Something went wrong in tart itself.
    Failed(String),
    /// The process dies for no reason, or for the one in these words.
    Dies(Death, Option<String>),
}

/// How a process dies that was told to by a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Death {
    Exit(u8),
    Signal(Sig),
}

/// Lives until the VM stops; the guest is gone when this returns.
pub(super) async fn live(vm: Vm, mut slot: Slot, mut signals: Signals) -> ExitCode {
    let mut guest = None;
    let end = match serve_control_socket(&vm) {
        Ok(()) => until_the_end(&vm, &mut slot, &mut signals, &mut guest).await.unwrap_or_else(End::from),
        Err(error) => End::from(error),
    };
    let code = match end {
        End::Dies(death, words) => {
            if let Some(words) = words {
                complain(&words);
            }
            die(death)
        }
        End::Interrupted => {
            console::line("Stopping VM...");
            ExitCode::SUCCESS
        }
        End::Suspended => suspend(&vm),
        End::Stopped(line) => {
            console::line(line);
            ExitCode::SUCCESS
        }
        End::Failed(message) => {
            complain(&message);
            ExitCode::FAILURE
        }
    };
    if let Some(machine) = guest {
        // It is gone either way; how does not matter.
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
    let agent_socket = agent_socket.strip_prefix(vm.dir.path()).unwrap_or(&agent_socket).to_owned();
    env::set_current_dir(vm.dir.path())?;
    match ControlSocket::bind("control.sock", agent_socket, vm.faults.clone()) {
        Ok(socket) => {
            tokio::spawn(socket.serve());
            Ok(())
        }
        Err(error) if version::is_snapshot() => Err(error),
        // Releases do not notice.
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
            _ = signals.interrupt.recv() => if !vm.faults.is_on("sigint-hang") {
                sleep(vm.faults.duration("sigint-delay").unwrap_or_default()).await;
                return Ok(End::Interrupted);
            },
            _ = signals.suspend.recv() => return Ok(End::Suspended),
            _ = signals.request_stop.recv() => {
                console::line("Requesting guest OS to stop...");
                if let Some(machine) = guest {
                    machine.press_power_button().await?;
                }
            }
            _ = fault_check.tick() => if let Some(end) = strike(vm, started) {
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
    let host_name = vm.boot(None).host_name();
    let address = if vm.faults.is_on("dhcp-exhausted") {
        None
    } else {
        slot.connect(&host_name, vm.faults.is_on("stale-lease"))?
    };
    let machine =
        Machine::start(&vm.dir.guest_path(), vm.boot(address), !vm.faults.is_on("no-namespaces")).await?;
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

/// The faults that end a running VM.
fn strike(vm: &Vm, started: Instant) -> Option<End> {
    if let Some((after, death, words)) = vm.faults.parameter("run-dies").and_then(|text| parse_death(&text))
        && started.elapsed() >= after
    {
        return Some(End::Dies(death, words));
    }
    if vm.faults.is_on("guest-panic") {
        return Some(stopped_by(&vz_error::stopped_unexpectedly()));
    }
    if vm.faults.is_on("vz-out-of-disk-space") {
        return Some(stopped_by(&vz_error::out_of_disk_space()));
    }
    if vm.faults.is_on("network-lost") {
        let (device, error) = vz_error::network_lost();
        return Some(End::Stopped(format!(
            "virtual machine's network attachment {device} has been disconnected with error: {error}"
        )));
    }
    if vm.network.softnet && vm.faults.is_on("softnet-dies") {
        return Some(End::Failed("RuntimeFailed(why: \"Softnet process terminated prematurely\")".into()));
    }
    None
}

fn stopped_by(error: &str) -> End {
    End::Stopped(format!("guest has stopped the virtual machine due to error: {error}"))
}

/// `[<duration>] [exit <code> | signal <name>] [: <words>]`; exit code 1 if not said.
fn parse_death(text: &str) -> Option<(Duration, Death, Option<String>)> {
    let (text, last_words) = match text.split_once(':') {
        Some((text, words)) => (text, Some(words.trim().to_owned())),
        None => (text, None),
    };
    let words: Vec<_> = text.split_whitespace().collect();
    let (after, rest) = match words.split_first() {
        Some((word, rest)) if *word != "exit" && *word != "signal" => (faults::parse_duration(word)?, rest),
        _ => (Duration::ZERO, words.as_slice()),
    };
    let death = match rest {
        [] => Death::Exit(1),
        ["exit", code] => Death::Exit(code.parse().ok()?),
        ["signal", name] => Death::Signal(format!("SIG{}", name.trim_start_matches("SIG")).parse().ok()?),
        _ => return None,
    };
    Some((after, death, last_words))
}

/// Ends this process without any ado: the guest goes with it.
fn die(death: Death) -> ExitCode {
    match death {
        Death::Exit(code) => std::process::exit(code.into()),
        Death::Signal(signal) => {
            // Rust's own handler of some signals takes the first one to step aside.
            let _ = signal::raise(signal).and_then(|()| signal::raise(signal));
            // Ignored or blocked by whoever started this process.
            let _ = signal::kill(Pid::this(), Sig::SIGKILL);
            ExitCode::FAILURE
        }
    }
}

/// Saves the guest's memory, or says why not. What is saved is only that there is something to resume.
fn suspend(vm: &Vm) -> ExitCode {
    let failed = |reason: &str| {
        console::line(format!("Failed to suspend the VM: {reason}"));
        ExitCode::FAILURE
    };
    if !vm.suspendable {
        return failed("Invalid virtual machine configuration. Unsupported console device in configuration.");
    }
    console::line("pausing VM to take a snapshot...");
    console::line("creating a snapshot...");
    if vm.faults.is_on("suspend-fails") {
        return failed("An error occurred while saving the virtual machine.");
    }
    if let Err(error) = std::fs::write(vm.dir.state_path(), "memory of a simulated guest\n") {
        return failed(&error.to_string());
    }
    console::line("snapshot created successfully! shutting down the VM...");
    ExitCode::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_death_has_a_time_and_a_manner() {
        for (text, expected) in [
            ("", Some((Duration::ZERO, Death::Exit(1)))),
            ("2s", Some((Duration::from_secs(2), Death::Exit(1)))),
            ("20ms exit 3", Some((Duration::from_millis(20), Death::Exit(3)))),
            ("signal KILL", Some((Duration::ZERO, Death::Signal(Sig::SIGKILL)))),
            ("1 signal SIGSEGV", Some((Duration::from_secs(1), Death::Signal(Sig::SIGSEGV)))),
            ("soon", None),
        ] {
            let expected = expected.map(|(after, death)| (after, death, None));
            assert_eq!(parse_death(text), expected, "{text:?}");
        }
        let told = parse_death("1s exit 2: Error: no space").unwrap();
        assert_eq!(told, (Duration::from_secs(1), Death::Exit(2), Some("Error: no space".into())));
    }
}
