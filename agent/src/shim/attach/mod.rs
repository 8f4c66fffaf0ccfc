//! The shim's socket for clients that attach to the container's command.
//!
//! The agent connects for each client, names the container, and gets what the command writes from then on. It sends what the client types
//! where the Pod asked for `stdin`. The shim owns the command, so that a client that attaches again after a restart of the agent finds it.
//! A client that does not read is cut off: it must not hold up the command.

pub(in crate::shim) mod frame;
mod recent_output;

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use crate::guest::ExecInput;
use crate::logs::line::LogStream;
use crate::state::GuestCommand;
use frame::{Frame, Hello};
use recent_output::{Missed, OutputReader, OutputSender, OutputSource};

/// How long a client may take to say what it wants.
const HELLO_LIMIT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_secs(1);

/// The command that clients can attach to.
#[derive(Debug, Clone, Default)]
pub(in crate::shim) struct AttachServer(Arc<Mutex<Option<Session>>>);

#[derive(Debug, Clone)]
struct Session {
    container: String,
    output: OutputSource,
    inputs: mpsc::Sender<ExecInput>,
    stdin: bool,
    stdin_once: bool,
}

/// Where the shim puts the output of a command. Dropped, it ends all clients.
#[derive(Debug)]
pub(in crate::shim) struct AttachedOutput {
    server: AttachServer,
    output: OutputSender,
}

impl AttachServer {
    /// Listens in the VM's directory. A VM runs without it, if need be.
    pub(in crate::shim) fn listen(path: &Path) -> Self {
        let server = Self::default();
        match bind(path) {
            Ok(listener) => drop(tokio::spawn(server.clone().serve(listener))),
            Err(error) => warn!(%error, path = %path.display(), "no client can attach to this VM"),
        }
        server
    }

    async fn serve(self, listener: UnixListener) {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => drop(tokio::spawn(converse(self.clone(), stream))),
                Err(error) => {
                    warn!(%error, "cannot take a client that attaches");
                    sleep(PAUSE).await;
                }
            }
        }
    }

    /// From here on clients attach to this command. What they send comes out of the receiver.
    pub(in crate::shim) fn begin(
        &self,
        container: &str,
        command: &GuestCommand,
    ) -> (AttachedOutput, mpsc::Receiver<ExecInput>) {
        let (output, source) = recent_output::output();
        let (inputs, received) = mpsc::channel(1);
        *self.session() = Some(Session {
            container: container.to_owned(),
            output: source,
            inputs,
            stdin: command.stdin,
            stdin_once: command.stdin_once,
        });
        (AttachedOutput { server: self.clone(), output }, received)
    }

    fn session(&self) -> MutexGuard<'_, Option<Session>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first client with a standard input that may be used once has it.
    fn join(&self, hello: &Hello) -> Option<Session> {
        let mut current = self.session();
        let session = current.as_mut().filter(|session| session.container == hello.container)?;
        let joined = Session { stdin: session.stdin && hello.stdin, ..session.clone() };
        if joined.stdin && session.stdin_once {
            session.stdin = false;
        }
        Some(joined)
    }
}

impl AttachedOutput {
    pub(in crate::shim) async fn send(&self, stream: LogStream, bytes: &[u8]) {
        self.output.send(stream, bytes).await;
    }
}

impl Drop for AttachedOutput {
    fn drop(&mut self) {
        *self.server.session() = None;
    }
}

/// The socket is the user's only, from the start: the directory is, too.
fn bind(path: &Path) -> io::Result<UnixListener> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = crate::fs::socket::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    UnixListener::from_std(listener)
}

/// Serves one client to its end, or to that of the command.
async fn converse(server: AttachServer, stream: UnixStream) {
    let (mut from_client, mut to_client) = stream.into_split();
    let Ok(Ok(Some(Frame::Hello(hello)))) = timeout(HELLO_LIMIT, Frame::read(&mut from_client)).await else {
        return;
    };
    let Some(session) = server.join(&hello) else {
        let words = format!("container {} does not run a command now", hello.container);
        let _ = Frame::Refused(words).write(&mut to_client).await;
        return;
    };
    let Session { inputs, stdin, stdin_once, output, .. } = session;
    let output = output.join();
    if Frame::Joined.write(&mut to_client).await.is_err() {
        return;
    }
    tokio::select! {
        () = take_input(from_client, &inputs, stdin, stdin_once) => {}
        () = give_output(output, to_client) => {}
    }
    // The client that had it is gone.
    if stdin && stdin_once {
        let _ = inputs.send(ExecInput::EndOfStdin).await;
    }
}

async fn take_input(
    mut client: OwnedReadHalf,
    inputs: &mpsc::Sender<ExecInput>,
    stdin: bool,
    stdin_once: bool,
) {
    loop {
        let input = match Frame::read(&mut client).await {
            Ok(Some(Frame::Stdin(bytes))) if stdin => ExecInput::Stdin(bytes),
            Ok(Some(Frame::EndOfStdin)) if stdin && stdin_once => ExecInput::EndOfStdin,
            Ok(Some(Frame::Resize { rows, columns })) => ExecInput::Resize { rows, columns },
            // A standard input that may be used again stays open.
            Ok(Some(_)) => continue,
            Ok(None) => return,
            Err(error) => {
                debug!(%error, "a client that attached broke off");
                return;
            }
        };
        if inputs.send(input).await.is_err() {
            // The command has ended, and its last output is on its way.
            std::future::pending::<()>().await;
        }
    }
}

async fn give_output(mut output: OutputReader, mut client: OwnedWriteHalf) {
    while let Some(next) = output.next().await {
        let frame = match next {
            Ok((LogStream::Stdout, bytes)) => Frame::Stdout(bytes),
            Ok((LogStream::Stderr, bytes)) => Frame::Stderr(bytes),
            Err(Missed) => {
                Frame::Refused("the client reads more slowly than the container writes".to_owned())
            }
        };
        let is_last = matches!(frame, Frame::Refused(_));
        if frame.write(&mut client).await.is_err() || is_last {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shim::supervise::attach::AttachedCommand;
    use crate::testing::dir;
    use bytes::Bytes;

    fn command(stdin_once: bool) -> GuestCommand {
        GuestCommand { stdin: true, stdin_once, ..GuestCommand::example(&["sh"]) }
    }

    #[tokio::test]
    async fn clients_get_the_output_from_then_on_and_only_one_has_a_stdin_that_is_for_once() {
        let dir = dir();
        let path = dir.path().join("attach.sock");
        let server = AttachServer::listen(&path);
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let refused = AttachedCommand::open(&path, "main", true).await.unwrap_err();
        assert!(refused.to_string().contains("does not run a command"), "{refused}");
        let (output, mut inputs) = server.begin("main", &command(true));
        output.send(LogStream::Stdout, b"for no one").await;
        let mut first = AttachedCommand::open(&path, "main", true).await.unwrap();
        let mut second = AttachedCommand::open(&path, "main", true).await.unwrap();
        output.send(LogStream::Stdout, b"out").await;
        output.send(LogStream::Stderr, b"err").await;
        for client in [&mut first, &mut second] {
            let said = client.output.recv().await.unwrap();
            assert_eq!(said, Some((LogStream::Stdout, Bytes::from_static(b"out"))));
            let said = client.output.recv().await.unwrap();
            assert_eq!(said, Some((LogStream::Stderr, Bytes::from_static(b"err"))));
        }
        second.input.send(ExecInput::Stdin(Bytes::from_static(b"not mine"))).await.unwrap();
        second.input.send(ExecInput::Resize { rows: 1, columns: 2 }).await.unwrap();
        assert_eq!(inputs.recv().await, Some(ExecInput::Resize { rows: 1, columns: 2 }));
        first.input.send(ExecInput::Stdin(Bytes::from_static(b"in"))).await.unwrap();
        assert_eq!(inputs.recv().await, Some(ExecInput::Stdin(Bytes::from_static(b"in"))));
        drop(first);
        assert_eq!(inputs.recv().await, Some(ExecInput::EndOfStdin));
        drop(output);
        assert_eq!(second.output.recv().await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_stdin_that_is_not_for_once_stays_open_and_a_slow_client_is_cut_off() {
        let dir = dir();
        let path = dir.path().join("attach.sock");
        let server = AttachServer::listen(&path);
        let (output, mut inputs) = server.begin("main", &command(false));
        for _ in 0..2 {
            let mut client = AttachedCommand::open(&path, "main", true).await.unwrap();
            client.input.send(ExecInput::EndOfStdin).await.unwrap();
            client.input.send(ExecInput::Stdin(Bytes::from_static(b"in"))).await.unwrap();
            assert_eq!(inputs.recv().await, Some(ExecInput::Stdin(Bytes::from_static(b"in"))));
        }
        let mut slow = AttachedCommand::open(&path, "main", false).await.unwrap();
        // More than the queue and any socket hold, before the client is looked at.
        let piece = vec![0; 32 << 10];
        for _ in 0..1280 {
            output.send(LogStream::Stdout, &piece).await;
        }
        let error = loop {
            if let Err(error) = slow.output.recv().await {
                break error;
            }
        };
        assert!(error.to_string().contains("more slowly"), "{error}");
    }
}
