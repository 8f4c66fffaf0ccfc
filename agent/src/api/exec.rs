//! Commands in a guest: `kubectl exec`.

use futures::StreamExt;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use tokio::sync::mpsc;
use tracing::debug;

use super::command_query::CommandQuery;
use super::context::ApiContext;
use super::http::path::ContainerPath;
use super::http::response::{self, Body};
use super::http::upgrade::{self, Protocol, Protocols, Upgrade};
use super::running_container::{CommandLine, RunningContainer};
use super::stream::remote_command::{
    CommandStatus, RemoteCommand, Resizes, SPDY_PROTOCOLS, TerminalSize, WEB_SOCKET_PROTOCOLS, Wanted,
};
use super::stream::{Gone, Input};
use crate::error_chain::chain;
use crate::guest::{Exec, ExecEvent, ExecInput, Guest, GuestError, Stdin};
use crate::state::KILLED;

pub(super) const PROTOCOLS: Protocols = Protocols { spdy: SPDY_PROTOCOLS, web_socket: WEB_SOCKET_PROTOCOLS };

/// Answers a request that is authenticated and authorized, and goes on in a task.
pub(super) async fn handle(
    mut request: Request<Incoming>,
    target: &ContainerPath,
    context: &ApiContext,
) -> Response<Body> {
    let CommandQuery { wanted, command } = match CommandQuery::parse(request.uri()) {
        Ok(query) => query,
        Err(words) => return response::refusal(StatusCode::BAD_REQUEST, words),
    };
    if command.is_empty() {
        return response::refusal(StatusCode::BAD_REQUEST, "you must specify a command");
    }
    let container = match RunningContainer::find(target, context).await {
        Ok(container) => container,
        Err(answer) => return answer,
    };
    let (upgrade, answer) = match upgrade::accept(&mut request, PROTOCOLS) {
        Ok(accepted) => accepted,
        Err(answer) => return answer,
    };
    let context = context.clone();
    tokio::spawn(async move {
        let Some(remote) = connect(upgrade, wanted).await else { return };
        let guest = context.guests.to(&container.control_socket);
        match container.line(&command, &context).await {
            Ok(line) => serve(remote, guest, line, wanted).await,
            Err(words) => remote.finish(failed(&words)).await,
        }
    });
    answer
}

/// The streams of a client whose connection HTTP hands over; `None` when the client is gone.
pub(super) async fn connect(upgrade: Upgrade, wanted: Wanted) -> Option<RemoteCommand> {
    let protocol = upgrade.protocol;
    let connection = upgrade.connection().await?;
    match protocol {
        Protocol::Spdy(protocol) => RemoteCommand::over_spdy(connection, protocol, wanted).await,
        Protocol::WebSocket(protocol) => {
            Some(RemoteCommand::over_web_socket(connection, protocol, wanted).await)
        }
    }
}

/// Runs the command for its client, to the end of either.
async fn serve(mut remote: RemoteCommand, mut guest: Guest, line: CommandLine, wanted: Wanted) {
    let exec = Exec {
        argv: line.argv.clone(),
        // As every runtime of containers sets it.
        env: if wanted.tty { vec![("TERM".to_owned(), "xterm".to_owned())] } else { Vec::new() },
        stdin: if wanted.stdin { Stdin::Open } else { Stdin::Empty },
        tty: wanted.tty,
    };
    let (inputs, received) = mpsc::channel(1);
    let (stdin, resizes, mut closed) = (remote.stdin.take(), remote.resizes.take(), remote.closed());
    let mut runner = guest.clone();
    let end = {
        let output = async {
            let mut events = runner.exec_interactively(exec, received).await.map_err(End::Guest)?;
            while let Some(event) = events.next().await {
                let (output, bytes) = match event.map_err(End::Guest)? {
                    ExecEvent::Started => continue,
                    ExecEvent::Stdout(bytes) => (&mut remote.stdout, bytes),
                    ExecEvent::Stderr(bytes) => (&mut remote.stderr, bytes),
                    ExecEvent::Exit(code) => return Ok(code),
                };
                if let Some(output) = output {
                    output.write(bytes.into()).await.map_err(|Gone| End::Gone)?;
                }
            }
            Err(End::Guest(GuestError::Nonsense("a command without an end".to_owned())))
        };
        tokio::select! {
            end = output => end,
            Gone = feed(stdin, resizes, inputs) => Err(End::Gone),
            () = closed.wait() => Err(End::Gone),
        }
    };
    let status = match end {
        Ok(code) => CommandStatus::Exit(if code < 0 { KILLED } else { code }),
        Err(End::Gone) => {
            debug!("the client of a command is gone");
            line.end(&mut guest).await;
            return;
        }
        // Some guest agents close the connection as a command ends; its shell still knows the exit code.
        Err(End::Guest(error)) => match line.end(&mut guest).await {
            Some(code) => CommandStatus::Exit(code),
            None => failed(&chain(&error)),
        },
    };
    remote.finish(status).await;
}

/// What ends a command before its own end.
enum End {
    /// The client is gone.
    Gone,
    /// The guest agent is, or refused.
    Guest(GuestError),
}

/// Hands on what the client sends, until the client is gone.
pub(super) async fn feed(
    mut stdin: Option<Input>,
    mut resizes: Option<Resizes>,
    inputs: mpsc::Sender<ExecInput>,
) -> Gone {
    loop {
        let input = tokio::select! {
            Some(bytes) = optional(&mut stdin, Input::recv) => match bytes {
                Ok(Some(bytes)) => ExecInput::Stdin(bytes),
                Ok(None) => {
                    stdin = None;
                    ExecInput::EndOfStdin
                }
                Err(gone) => return gone,
            },
            Some(size) = optional(&mut resizes, Resizes::next) => match size {
                Some(TerminalSize { rows, columns }) => ExecInput::Resize { rows, columns },
                None => {
                    resizes = None;
                    continue;
                }
            },
            else => std::future::pending().await,
        };
        if inputs.send(input).await.is_err() {
            // The command has ended.
            std::future::pending::<()>().await;
        }
    }
}

/// What a source gives next, if there is a source.
async fn optional<S, T>(source: &mut Option<S>, next: impl AsyncFnOnce(&mut S) -> T) -> Option<T> {
    match source {
        Some(source) => Some(next(source).await),
        None => None,
    }
}

/// The kubelet's words.
fn failed(words: &str) -> CommandStatus {
    CommandStatus::Failed(format!("error executing command in container: {words}"))
}
