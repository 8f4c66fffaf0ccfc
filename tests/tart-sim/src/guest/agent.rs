//! The guest agent: runs commands for the clients of the control socket.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fs::File;
use std::os::fd::AsFd;
use std::process::Stdio;

use nix::pty::openpty;
use nix::unistd::Pid;
use rustix::termios::{Winsize, tcsetwinsize};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::process::{ChildStderr, ChildStdin, ChildStdout};
use tokio::sync::mpsc::{self, Sender};
use tokio::sync::oneshot;
use tokio_stream::StreamExt as _;
use tonic::{Status, Streaming};

use super::Boot;
use super::commands::{self, Environment, Request};
use super::processes::{Kind, Processes};
use crate::guest_agent::server::{Agent, Responses};
use crate::guest_agent::{
    Command, ExecRequest, ExecResponse, Exit, Input, IoChunk, Output, Started, TerminalSize,
};

/// How much of a command's output is read at once.
const CHUNK: usize = 32 * 1024;

/// How many chunks may wait for a client that does not read.
const WAITING_CHUNKS: usize = 4;

/// The character that ends a terminal's input.
const END_OF_INPUT: u8 = 0x04;

/// The agent of one guest.
#[derive(Debug)]
pub(super) struct GuestAgent {
    boot: Boot,
    environment: Environment,
    processes: Processes,
}

type Reader = Box<dyn AsyncRead + Send + Unpin>;
type Label = fn(IoChunk) -> Output;
type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// A running command, as its streams.
struct Running {
    leader: Pid,
    stdin: Option<Writer>,
    /// Each with the message that carries its chunks.
    outputs: Vec<(Reader, Label)>,
    exit_code: oneshot::Receiver<i32>,
    /// The host's end of the terminal, if the command has one.
    terminal: Option<File>,
}

impl GuestAgent {
    pub(super) fn new(boot: Boot, environment: Environment, processes: Processes) -> Self {
        Self { boot, environment, processes }
    }

    fn start(&self, command: &Command) -> Result<Running, Status> {
        let request = Request {
            name: &command.name,
            args: &command.args,
            variables: &command.env,
            directory: &command.workdir,
            session: command.tty || command.detach,
        };
        // The agent is a Go program and returns its error as is, which gRPC for Go makes a status of code 2.
        let mut process = self.environment.command(&request).map_err(Status::unknown)?;
        let terminal = if command.tty {
            let pty = openpty(None, None).map_err(|error| Status::unknown(error.desc().to_lowercase()))?;
            resize(&pty.master, command.terminal_size.unwrap_or_default());
            let slave = File::from(pty.slave);
            process.stdin(slave.try_clone()?).stdout(slave.try_clone()?).stderr(slave);
            Some(File::from(pty.master))
        } else {
            let (input, output) = match (command.interactive, command.detach) {
                (true, _) => (Stdio::piped(), [Stdio::piped(), Stdio::piped()]),
                (false, false) => (Stdio::null(), [Stdio::piped(), Stdio::piped()]),
                (false, true) => (Stdio::null(), [Stdio::null(), Stdio::null()]),
            };
            let [stdout, stderr] = output;
            process.stdin(input).stdout(stdout).stderr(stderr);
            None
        };
        let kind = if request.session { Kind::Session } else { Kind::Plain };
        let started = self.processes.start(&mut process, kind).map_err(|error| {
            Status::unknown(format!("fork/exec {}: {}", command.name, commands::describe(&error)))
        })?;
        // Close this process's copy of the guest's end of the terminal: the output would not end otherwise.
        drop(process);

        let mut running = Running {
            leader: started.leader,
            stdin: None,
            outputs: Vec::new(),
            exit_code: started.exit_code,
            terminal: None,
        };
        if let Some(terminal) = terminal {
            if command.interactive {
                running.stdin = Some(Box::new(tokio::fs::File::from_std(terminal.try_clone()?)));
            }
            let output = tokio::fs::File::from_std(terminal.try_clone()?);
            running.outputs.push((Box::new(output), Output::StandardOutput));
            running.terminal = Some(terminal);
        }
        if let Some(stdin) = started.stdin {
            running.stdin = Some(Box::new(ChildStdin::from_std(stdin)?));
        }
        if let Some(stdout) = started.stdout {
            running.outputs.push((Box::new(ChildStdout::from_std(stdout)?), Output::StandardOutput));
        }
        if let Some(stderr) = started.stderr {
            running.outputs.push((Box::new(ChildStderr::from_std(stderr)?), Output::StandardError));
        }
        Ok(running)
    }
}

impl Agent for GuestAgent {
    async fn exec(&self, mut requests: Streaming<ExecRequest>) -> Result<Responses, Status> {
        let first = requests.message().await?.and_then(|request| request.input);
        let Some(Input::Command(mut command)) = first else {
            return Err(Status::unknown("first exec request should describe a command to execute"));
        };
        if self.boot.old_agent {
            command = Command { detach: false, env: HashMap::new(), workdir: String::new(), ..command };
        }
        if command.detach && (command.interactive || command.tty) {
            return Err(Status::unknown("detach cannot be used with interactive or tty"));
        }
        let running = self.start(&command)?;
        let (responses, stream) = mpsc::channel(WAITING_CHUNKS);
        if self.boot.says_started {
            // The channel has room for it.
            let _ = responses.try_send(Ok(Output::Started(Started {}).into()));
        }
        if command.detach {
            // The channel has room for it. The client may be gone already.
            let _ = responses.try_send(Ok(Output::Exit(Exit { code: 0 }).into()));
        } else {
            let (processes, user) = (self.processes.clone(), self.environment.user());
            let kill = move |process| processes.kill(process, user);
            tokio::spawn(forward_streams(running, requests, responses, self.boot.forgets_exit, kill));
        }
        Ok(Responses::begin(stream).await)
    }

    fn resolve_ip(&self) -> Result<String, Status> {
        if !self.boot.resolves_ip {
            return Err(Status::unimplemented("unknown method ResolveIP for service Agent"));
        }
        match self.boot.address {
            Some(address) => Ok(address.to_string()),
            None => Err(Status::unknown("cannot resolve VM's IP address")),
        }
    }
}

/// Forwards a command's streams until it ends, and kills it when the client is gone.
async fn forward_streams(
    running: Running,
    requests: Streaming<ExecRequest>,
    responses: Sender<Result<ExecResponse, Status>>,
    forgets_exit: bool,
    kill: impl FnOnce(Pid),
) {
    let Running { leader, stdin, outputs, exit_code, terminal } = running;
    let outputs =
        outputs.into_iter().map(|(from, label)| tokio::spawn(forward_output(from, label, responses.clone())));
    let outputs: Vec<_> = outputs.collect();
    let finished = async {
        for output in outputs {
            let _ = output.await;
        }
        exit_code.await.unwrap_or(-1)
    };
    tokio::select! {
        code = finished => {
            let end = if forgets_exit {
                // The agent's reader fails first, because the agent has closed its pipe.
                Err(Status::unknown("read |0: file already closed"))
            } else {
                Ok(Output::Exit(Exit { code }).into())
            };
            let _ = responses.send(end).await;
        }
        () = responses.closed() => kill(leader),
        _ = forward_input(requests, stdin, terminal) => kill(leader),
    }
}

async fn forward_output(mut from: Reader, label: Label, to: Sender<Result<ExecResponse, Status>>) {
    let mut buffer = vec![0; CHUNK];
    // Reading from a terminal whose other end is closed fails.
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        let chunk = IoChunk { data: buffer[..length].to_vec() };
        if to.send(Ok(label(chunk).into())).await.is_err() {
            break;
        }
    }
}

/// Ends only when the client breaks off. A client that has sent everything still reads.
async fn forward_input(
    mut requests: Streaming<ExecRequest>,
    mut stdin: Option<Writer>,
    terminal: Option<File>,
) -> Result<Infallible, Status> {
    while let Some(request) = requests.next().await {
        match request?.input {
            Some(Input::StandardInput(IoChunk { data })) => {
                if data.is_empty() && terminal.is_none() {
                    stdin = None;
                } else if let Some(open) = &mut stdin {
                    let data = if data.is_empty() { vec![END_OF_INPUT] } else { data };
                    // The command may not read its input.
                    if open.write_all(&data).await.is_err() || open.flush().await.is_err() {
                        stdin = None;
                    }
                }
            }
            Some(Input::TerminalResize(size)) => {
                if let Some(terminal) = &terminal {
                    resize(terminal, size);
                }
            }
            Some(Input::Command(_)) | None => {}
        }
    }
    // Standard input stays open: only an empty chunk is its end.
    std::future::pending().await
}

fn resize(terminal: impl AsFd, size: TerminalSize) {
    let characters = |number| u16::try_from(number).unwrap_or(u16::MAX);
    let size =
        Winsize { ws_row: characters(size.rows), ws_col: characters(size.cols), ws_xpixel: 0, ws_ypixel: 0 };
    // Fails for a terminal that is being closed.
    let _ = tcsetwinsize(terminal, size);
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::time::Duration;

    use tempfile::TempDir;

    use super::super::boot::tests::boot;
    use super::*;
    use crate::guest_agent::{client::Client, server};
    use tokio_stream::wrappers::ReceiverStream;

    /// A guest without namespaces, and a client of its agent.
    async fn guest(boot: Boot) -> (TempDir, Client) {
        let dir =
            tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap();
        std::fs::create_dir_all(dir.path().join("Users/admin/work")).unwrap();
        let environment = Environment::new(&boot, dir.path(), "/no/such".into(), "/bin:/usr/bin".into());
        let processes = Processes::new(false);
        let agent = GuestAgent::new(boot, environment, processes.clone());
        let listener = UnixListener::bind(dir.path().join("agent.sock")).unwrap();
        tokio::spawn(server::serve(listener, agent));
        tokio::spawn(async move { processes.reap().await });
        let client = Client::connect(&dir.path().join("agent.sock"), Duration::from_secs(10)).await.unwrap();
        (dir, client)
    }

    fn shell(script: &str) -> Command {
        Command { name: "sh".into(), args: vec!["-c".into(), script.into()], ..Command::default() }
    }

    /// Everything that a command said, and its exit code.
    async fn run(client: &mut Client, command: Command) -> Result<(String, Option<i32>), Status> {
        let (requests, stream) = mpsc::channel(1);
        requests.try_send(Input::Command(command).into()).unwrap();
        let mut responses = client.exec(ReceiverStream::new(stream)).await?;
        let (mut text, mut code) = (String::new(), None);
        while let Some(response) = responses.message().await? {
            match response.output {
                Some(Output::Exit(exit)) => code = Some(exit.code),
                Some(Output::StandardOutput(chunk) | Output::StandardError(chunk)) => {
                    text.push_str(&String::from_utf8_lossy(&chunk.data));
                }
                Some(Output::Started(_)) => text.push_str("started "),
                None => {}
            }
        }
        drop(requests);
        Ok((text, code))
    }

    fn with_environment() -> Command {
        let env = [("GREETING".to_owned(), "hello".to_owned())].into();
        Command { env, workdir: "work".into(), ..shell("echo $GREETING ${PWD##*/}") }
    }

    #[tokio::test]
    async fn the_client_chooses_environment_and_directory() {
        let (_dir, mut client) = guest(boot()).await;
        assert_eq!(run(&mut client, with_environment()).await.unwrap(), ("hello work\n".into(), Some(0)));
    }

    #[tokio::test]
    async fn an_old_agent_ignores_environment_and_directory() {
        let (_dir, mut client) = guest(Boot { old_agent: true, ..boot() }).await;
        assert_eq!(run(&mut client, with_environment()).await.unwrap(), ("admin\n".into(), Some(0)));
    }

    #[tokio::test]
    async fn a_new_agent_says_that_a_command_has_started() {
        let (_dir, mut client) = guest(Boot { says_started: true, ..boot() }).await;
        assert_eq!(run(&mut client, shell("echo up")).await.unwrap(), ("started up\n".into(), Some(0)));
    }

    #[tokio::test]
    async fn a_signal_is_exit_code_minus_one() {
        let (_dir, mut client) = guest(boot()).await;
        assert_eq!(run(&mut client, shell("kill -9 $$")).await.unwrap(), (String::new(), Some(-1)));
    }

    #[tokio::test]
    async fn an_agent_before_0_5_does_not_know_the_address() {
        let (_dir, mut client) = guest(Boot { resolves_ip: false, ..boot() }).await;
        assert_eq!(client.resolve_ip().await.unwrap_err().code(), tonic::Code::Unimplemented);
    }

    #[tokio::test]
    async fn a_broken_stream_kills_the_command_and_nothing_that_it_has_started() {
        let (dir, mut client) = guest(boot()).await;
        let (requests, stream) = mpsc::channel(1);
        let script = "sleep 1000 & echo $! >child; echo $$ >command; echo; wait";
        requests.try_send(Input::Command(shell(script)).into()).unwrap();
        let mut responses = client.exec(ReceiverStream::new(stream)).await.unwrap();
        responses.message().await.unwrap().unwrap();
        let pid = |file: &str| {
            let text = std::fs::read_to_string(dir.path().join("Users/admin").join(file)).unwrap();
            Pid::from_raw(text.trim().parse().unwrap())
        };
        let is_alive = |pid| nix::sys::signal::kill(pid, None).is_ok();
        drop((responses, requests));
        while is_alive(pid("command")) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        assert!(is_alive(pid("child")));
        nix::sys::signal::kill(pid("child"), nix::sys::signal::Signal::SIGKILL).unwrap();
    }

    #[tokio::test]
    async fn the_agent_refuses_with_status_unknown() {
        let (_dir, mut client) = guest(boot()).await;
        for (command, message) in [
            (
                Command { name: "/no/such".into(), ..Command::default() },
                "fork/exec /no/such: no such file or directory",
            ),
            (
                Command { workdir: "/no/such".into(), ..shell("") },
                "chdir /no/such: no such file or directory",
            ),
            (
                Command { detach: true, tty: true, ..shell("") },
                "detach cannot be used with interactive or tty",
            ),
        ] {
            let status = run(&mut client, command).await.unwrap_err();
            assert_eq!((status.code(), status.message()), (tonic::Code::Unknown, message));
        }
    }

    #[tokio::test]
    async fn the_first_request_has_to_be_the_command() {
        let (_dir, mut client) = guest(boot()).await;
        let (requests, stream) = mpsc::channel(1);
        requests.try_send(Input::StandardInput(IoChunk::default()).into()).unwrap();
        let status = client.exec(ReceiverStream::new(stream)).await.unwrap_err();
        assert_eq!(status.message(), "first exec request should describe a command to execute");
    }

    #[tokio::test]
    async fn only_an_empty_chunk_ends_standard_input() {
        let (_dir, mut client) = guest(boot()).await;
        let (requests, stream) = mpsc::channel(3);
        let command = Command { interactive: true, ..shell("cat; echo end") };
        requests.try_send(Input::Command(command).into()).unwrap();
        requests.try_send(Input::StandardInput(IoChunk { data: b"text\n".to_vec() }).into()).unwrap();
        let mut responses = client.exec(ReceiverStream::new(stream)).await.unwrap();
        let first = responses.message().await.unwrap().unwrap();
        assert_eq!(first, Output::StandardOutput(IoChunk { data: b"text\n".to_vec() }).into());
        requests.try_send(Input::StandardInput(IoChunk::default()).into()).unwrap();
        let second = responses.message().await.unwrap().unwrap();
        assert_eq!(second, Output::StandardOutput(IoChunk { data: b"end\n".to_vec() }).into());
    }

    #[tokio::test]
    async fn the_address_is_the_guests_own() {
        let (_dir, mut client) = guest(boot()).await;
        assert_eq!(Some(client.resolve_ip().await.unwrap()), boot().address);
        let (_dir, mut client) = guest(Boot { address: None, ..boot() }).await;
        assert_eq!(client.resolve_ip().await.unwrap_err().message(), "cannot resolve VM's IP address");
    }
}
