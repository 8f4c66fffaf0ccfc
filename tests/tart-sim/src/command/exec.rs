//! `tart exec`.

use std::fs::File;
use std::io::{self, IsTerminal as _};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};
use rustix::termios::tcgetwinsize;
use tart_sim::Fault;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{self, Sender};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};

use crate::cli;
use crate::error::{Error, Result};
use crate::guest_agent::client::Client;
use crate::guest_agent::{Command, ExecRequest, Input, IoChunk, Output, TerminalSize};
use crate::home::Home;
use crate::host::faults::VmFaults;

/// How long `exec` tries to reach the guest agent, unless the knob `agent-connect-timeout` says otherwise.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The size of a chunk of standard input.
const CHUNK: usize = 64 * 1024;

/// Runs a command in a VM, and ends as it does.
pub(crate) fn exec(args: cli::Exec) -> Result<ExitCode> {
    let vm = Home::open()?.open_local(&args.name)?;
    if !vm.is_running() {
        return Err(Error::vm_not_running(&args.name));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Error::other)?;
    // The path of a socket is limited in length.
    vm.enter();
    let _raw = if args.tty { RawTerminal::enter() } else { None };
    let code = runtime.block_on(converse(args))?;
    // Do not wait for the thread that reads standard input: it may be blocked in a read.
    runtime.shutdown_background();
    Ok(ExitCode::from(code))
}

async fn converse(args: cli::Exec) -> Result<u8> {
    let patience = VmFaults::of(&args.name).duration(Fault::AgentConnectTimeout).unwrap_or(CONNECT_TIMEOUT);
    let mut client = Client::connect(Path::new("control.sock"), patience).await.ok_or_else(unreachable)?;
    let (requests, stream) = mpsc::channel(4);
    let mut words = args.command.into_iter();
    let command = Command {
        name: words.next().unwrap_or_default(),
        args: words.collect(),
        interactive: args.interactive,
        tty: args.tty,
        terminal_size: args.tty.then(terminal_size),
        ..Command::default()
    };
    requests.try_send(Input::Command(command).into()).map_err(Error::other)?;
    if args.interactive {
        let requests = requests.clone();
        thread::spawn(move || send_standard_input(&requests));
    }
    if args.tty {
        tokio::spawn(send_terminal_sizes(requests.clone()));
    }
    let mut responses = client.exec(ReceiverStream::new(stream)).await.map_err(|status| failed(&status))?;
    while let Some(response) = responses.message().await.map_err(|status| failed(&status))? {
        match response.output {
            Some(Output::StandardOutput(chunk)) => print(io::stdout(), &chunk.data)?,
            Some(Output::StandardError(chunk)) => print(io::stderr(), &chunk.data)?,
            // A process passes on only the low byte of its exit code.
            Some(Output::Exit(exit)) => return Ok(exit.code.to_le_bytes()[0]),
            Some(Output::Started(_)) | None => {}
        }
    }
    Ok(0)
}

fn print(mut to: impl io::Write, data: &[u8]) -> Result<()> {
    to.write_all(data).and_then(|()| to.flush()).map_err(Error::other)
}

/// The whole of standard input, then the empty chunk that ends it.
fn send_standard_input(requests: &Sender<ExecRequest>) {
    use io::Read as _;

    let mut buffer = vec![0; CHUNK];
    loop {
        let length = io::stdin().lock().read(&mut buffer).unwrap_or(0);
        let chunk = IoChunk { data: buffer[..length].to_vec() };
        if requests.blocking_send(Input::StandardInput(chunk).into()).is_err() || length == 0 {
            return;
        }
    }
}

async fn send_terminal_sizes(requests: Sender<ExecRequest>) {
    let Ok(mut changed) = signal(SignalKind::window_change()) else { return };
    while changed.recv().await.is_some() {
        if requests.send(Input::TerminalResize(terminal_size()).into()).await.is_err() {
            return;
        }
    }
}

fn terminal_size() -> TerminalSize {
    tcgetwinsize(io::stdin())
        .or_else(|_| tcgetwinsize(io::stdout()))
        .map(|size| TerminalSize { rows: size.ws_row.into(), cols: size.ws_col.into() })
        .unwrap_or_default()
}

fn unreachable() -> Error {
    Error::runtime(
        "Failed to connect to the VM using its control socket: The operation couldn’t be completed. \
         (GRPC.GRPCConnectionPoolError error 1.), is the Tart Guest Agent running?",
    )
}

/// A call that failed, in the words of gRPC for Swift.
fn failed(status: &Status) -> Error {
    let name = match status.code() {
        Code::Unavailable | Code::Cancelled => {
            return Error::other("unavailable (14): Transport became inactive");
        }
        Code::Unknown if std::error::Error::source(status).is_some() => {
            return Error::other("unavailable (14): Transport became inactive");
        }
        Code::Unknown => "unknown",
        Code::InvalidArgument => "invalid argument",
        Code::DeadlineExceeded => "deadline exceeded",
        Code::NotFound => "not found",
        Code::PermissionDenied => "permission denied",
        Code::Unimplemented => "unimplemented",
        Code::Internal => "internal error",
        _ => "error",
    };
    Error::other(format!("{name} ({}): {}", status.code() as i32, status.message()))
}

/// The terminal without line editing, until dropped.
struct RawTerminal {
    terminal: File,
    before: Termios,
}

impl RawTerminal {
    fn enter() -> Option<Self> {
        let stdin = io::stdin();
        if !stdin.is_terminal() {
            return None;
        }
        let terminal = File::from(stdin.as_fd().try_clone_to_owned().ok()?);
        let before = tcgetattr(&terminal).ok()?;
        let mut raw = before.clone();
        cfmakeraw(&mut raw);
        tcsetattr(&terminal, SetArg::TCSANOW, &raw).ok()?;
        Some(Self { terminal, before })
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // The terminal may be gone.
        let _ = tcsetattr(&self.terminal, SetArg::TCSANOW, &self.before);
    }
}
