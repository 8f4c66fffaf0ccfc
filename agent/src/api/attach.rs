//! The output and the terminal of a container: `kubectl attach`.

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use tokio::sync::mpsc;

use super::command_query::CommandQuery;
use super::context::ApiContext;
use super::exec::{PROTOCOLS, connect, feed};
use super::http::path::ContainerPath;
use super::http::response::{self, Body};
use super::http::upgrade;
use super::running_container::RunningContainer;
use super::stream::Gone;
use super::stream::remote_command::{CommandStatus, RemoteCommand};
use crate::error_chain::chain;
use crate::guest::ExecInput;
use crate::logs::line::LogStream;
use crate::shim::{AttachError, AttachedCommand, AttachedInput, AttachedReader};

/// Answers a request that is authenticated and authorized, and goes on in a task.
pub(super) async fn handle(
    mut request: Request<Incoming>,
    target: &ContainerPath,
    context: &ApiContext,
) -> Response<Body> {
    let wanted = match CommandQuery::parse(request.uri()) {
        Ok(query) => query.wanted,
        Err(words) => return response::refusal(StatusCode::BAD_REQUEST, words),
    };
    let container = match RunningContainer::find(target, context).await {
        Ok(container) => container,
        Err(answer) => return answer,
    };
    if container.only_boots() {
        let words =
            "the container has no command to attach to: its VM only boots; use kubectl exec, or kubectl logs";
        return response::refusal(StatusCode::BAD_REQUEST, words);
    }
    let (upgrade, answer) = match upgrade::accept(&mut request, PROTOCOLS) {
        Ok(accepted) => accepted,
        Err(answer) => return answer,
    };
    let (socket, name) = (container.run.attach_socket_path(), target.container.clone());
    tokio::spawn(async move {
        let Some(remote) = connect(upgrade, wanted).await else { return };
        // A standard input for once belongs to the first client that attaches, so that only one with streams may.
        match AttachedCommand::open(&socket, &name, wanted.stdin).await {
            Ok(command) => serve(remote, command).await,
            Err(error) => remote.finish(failed(&error)).await,
        }
    });
    answer
}

/// Copies both directions, to the end of the client or of the command.
async fn serve(mut remote: RemoteCommand, command: AttachedCommand) {
    let AttachedCommand { input, output } = command;
    let (inputs, received) = mpsc::channel(1);
    let (stdin, resizes, mut closed) = (remote.stdin.take(), remote.resizes.take(), remote.closed());
    let end = tokio::select! {
        end = give(&mut remote, output) => end,
        Gone = feed(stdin, resizes, inputs) => Err(End::Gone),
        () = take(received, input) => Err(End::Gone),
        () = closed.wait() => Err(End::Gone),
    };
    let status = match end {
        Ok(()) => CommandStatus::Exit(0),
        Err(End::Gone) => return,
        Err(End::Shim(error)) => failed(&error),
    };
    remote.finish(status).await;
}

/// The kubelet's words.
fn failed(error: &AttachError) -> CommandStatus {
    CommandStatus::Failed(format!("error attaching to container: {}", chain(error)))
}

enum End {
    Gone,
    Shim(AttachError),
}

async fn give(remote: &mut RemoteCommand, mut output: AttachedReader) -> Result<(), End> {
    while let Some((stream, bytes)) = output.recv().await.map_err(End::Shim)? {
        let output = match stream {
            LogStream::Stdout => &mut remote.stdout,
            LogStream::Stderr => &mut remote.stderr,
        };
        if let Some(output) = output {
            output.write(bytes).await.map_err(|Gone| End::Gone)?;
        }
    }
    Ok(())
}

/// Hands the client's input to the shim. A shim that takes no more still has output.
async fn take(mut received: mpsc::Receiver<ExecInput>, mut input: AttachedInput) {
    while let Some(next) = received.recv().await {
        if input.send(next).await.is_err() {
            break;
        }
    }
    std::future::pending::<()>().await;
}
