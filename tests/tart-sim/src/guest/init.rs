//! A guest's first process: from the boot to the shutdown.

use std::ffi::OsString;
use std::fs;
use std::io::{self, BufRead as _, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::agent::GuestAgent;
use super::commands::{Environment, Request};
use super::machine::{POWER_BUTTON, exit};
use super::processes::{Kind, Processes};
use super::{Boot, no_namespaces, programs};
use crate::guest_agent::server;
use crate::home::config::Os;

/// The socket in the guest's directory that stands for the agent's vsock port.
pub(crate) const AGENT_SOCKET: &str = "agent.sock";

/// The argument that tells init that it has a PID namespace.
pub(super) const ISOLATED: &str = "isolated";

/// How long a shutdown waits for processes that ignore its request.
const GRACE: Duration = Duration::from_secs(5);

/// The search path of the guest agent, and so of the commands it runs.
pub(super) const SEARCH_PATH: &str = "/bin:/usr/bin:/usr/sbin:/usr/local/bin:/opt/homebrew/bin";

/// Boots the guest in the current directory and runs until it is switched off.
pub(super) fn main(words: &[OsString]) -> ExitCode {
    let is_isolated = words.iter().any(|word| word == ISOLATED);
    match prepare(words, is_isolated) {
        Ok(guest) => match guest.run() {
            Ok(code) => ExitCode::from(code),
            Err(error) => {
                eprintln!("guest: {error}");
                ExitCode::FAILURE
            }
        },
        Err(error) => {
            eprintln!("guest: {error}");
            ExitCode::from(if is_isolated { exit::NOT_ISOLATED } else { 1 })
        }
    }
}

struct Guest {
    boot: Boot,
    agent_socket: OwnedFd,
    environment: Environment,
    processes: Processes,
}

/// Does what a process may do only while it has one thread.
fn prepare(words: &[OsString], is_isolated: bool) -> io::Result<Guest> {
    let boot = Boot::read_line(io::stdin().lock())?;
    let agent_socket = bind_agent_socket()?;
    let environment = if is_isolated { enter_own_root(&boot, words)? } else { no_namespaces::enter(&boot)? };
    Ok(Guest { boot, agent_socket, environment, processes: Processes::new(is_isolated) })
}

#[cfg(target_os = "linux")]
fn enter_own_root(boot: &Boot, words: &[OsString]) -> io::Result<Environment> {
    super::namespaces::enter(boot, words)
}

#[cfg(not(target_os = "linux"))]
fn enter_own_root(_: &Boot, _: &[OsString]) -> io::Result<Environment> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Binds the agent's socket. To be called before the root directory changes: the socket is the host's.
fn bind_agent_socket() -> io::Result<OwnedFd> {
    // A name without a directory, because the length of a socket's path is limited.
    let _ = fs::remove_file(AGENT_SOCKET);
    let socket = socket(AddressFamily::Unix, SockType::Stream, SockFlag::empty(), None)?;
    bind(std::os::fd::AsRawFd::as_raw_fd(&socket), &UnixAddr::new(AGENT_SOCKET)?)?;
    Ok(socket)
}

impl Guest {
    fn run(self) -> io::Result<u8> {
        tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(self.serve())
    }

    async fn serve(self) -> io::Result<u8> {
        let Self { boot, agent_socket, environment, processes } = self;
        let mut power_off = signal(signal_kind(programs::POWER_OFF))?;
        let mut reboot = signal(signal_kind(programs::REBOOT))?;
        let mut power_button = watch_power(processes.clone());
        run_boot_command(&boot, &environment, &processes);

        let agent = GuestAgent::new(boot.clone(), environment, processes.clone());
        let serve_agent = async {
            sleep(boot.agent_delay).await;
            if boot.agent {
                listen(&agent_socket, Backlog::MAXCONN)?;
                server::serve(UnixListener::from(agent_socket), agent).await;
            }
            std::future::pending::<io::Result<()>>().await
        };
        let code = tokio::select! {
            _ = power_off.recv() => exit::POWERED_OFF,
            _ = reboot.recv() => exit::REBOOT,
            // macOS would ask its user.
            Some(()) = power_button.recv(), if boot.os == Os::Linux => exit::POWERED_OFF,
            result = processes.reap() => return result.map(|()| 1),
            result = serve_agent => return result.map(|()| 1),
        };
        shut_down(&processes, boot.shutdown_delay).await?;
        Ok(code)
    }
}

fn signal_kind(signal: Signal) -> SignalKind {
    SignalKind::from_raw(signal as i32)
}

/// Watches the pipe from `tart run`: a line is the power button, the pipe's end is a power cut.
fn watch_power(processes: Processes) -> mpsc::UnboundedReceiver<()> {
    let (pressed, power_button) = mpsc::unbounded_channel();
    // A thread of its own: a busy init must not delay the power cut.
    thread::spawn(move || {
        for line in BufReader::new(io::stdin()).lines().map_while(Result::ok) {
            if line == POWER_BUTTON {
                let _ = pressed.send(());
            }
        }
        processes.signal_all(Signal::SIGKILL);
        std::process::exit(exit::POWERED_OFF.into());
    });
    power_button
}

fn run_boot_command(boot: &Boot, environment: &Environment, processes: &Processes) {
    let Some((name, args)) = boot.command.split_first() else { return };
    let request = Request { name, args, variables: &[].into(), directory: "", session: true };
    let started = environment.command(&request).and_then(|mut command| {
        use std::process::Stdio;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        processes.start(&mut command, Kind::Session).map_err(|error| error.to_string())
    });
    if let Err(message) = started {
        eprintln!("boot command: {message}");
    }
}

/// Asks every process to end, and ends those that do not.
async fn shut_down(processes: &Processes, at_least: Duration) -> io::Result<()> {
    processes.signal_all(Signal::SIGTERM);
    let (ended, ()) = tokio::join!(timeout(GRACE, processes.all_ended()), sleep(at_least));
    if ended.is_err() {
        processes.signal_all(Signal::SIGKILL);
    }
    Ok(())
}
