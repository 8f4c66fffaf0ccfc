//! The socket in the state directory through which `tart-kubelet images pull` has the agent pull an image. Only the agent's user can
//! connect to it.
//!
//! The client sends one line of JSON. The agent answers with the progress, line by line, until the pull ends. The pull is cancelled when
//! the client disconnects.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use futures::poll;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::OwnedWriteHalf;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::manager::ImageManager;
use crate::error_chain::chain;
use crate::fs::absent_is_fine;
use crate::tart::Credential;

const MAX_REQUEST: u64 = 256 << 10;
/// The deadline of a request, and of each line of an answer.
const LIMIT: Duration = Duration::from_secs(10);
/// How often the agent sends the progress, so that each side notices the end of the other.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
const ACCEPT_RETRY: Duration = Duration::from_secs(1);

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PullRequest {
    pub(crate) image: String,
    pub(crate) credentials: Vec<Credential>,
}

/// One line of the agent's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Answer {
    /// So many percent have arrived.
    Arrived(u8),
    /// The digest of the image, whose base VM is ready.
    Ready(String),
    Failed(String),
}

/// Serves requests until it is dropped. Without a socket it does nothing.
pub(crate) async fn serve(path: &Path, manager: ImageManager) {
    let listener = match listen(path) {
        Ok(listener) => listener,
        Err(error) => {
            warn!(path = %path.display(), %error, "`tart-kubelet images pull` cannot reach this agent");
            return std::future::pending().await;
        }
    };
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => drop(connections.spawn(answer(stream, manager.clone()))),
                Err(error) => {
                    warn!(%error, "cannot accept a request for an image");
                    sleep(ACCEPT_RETRY).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

fn listen(path: &Path) -> io::Result<UnixListener> {
    // The socket of an earlier agent is dead: this agent alone has locked the directory.
    absent_is_fine(fs::remove_file(path))?;
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o600))?;
    Ok(listener)
}

async fn answer(stream: UnixStream, manager: ImageManager) {
    let (read, mut write) = stream.into_split();
    let mut lines = BufReader::new(read.take(MAX_REQUEST)).lines();
    let request = match timeout(LIMIT, lines.next_line()).await {
        Ok(Ok(Some(line))) => serde_json::from_str::<PullRequest>(&line).ok(),
        _ => None,
    };
    let Some(PullRequest { image, credentials }) = request else {
        let _ =
            send(&mut write, &Answer::Failed("this is not a request that the agent knows".to_owned())).await;
        return;
    };
    let (sent, progress) = watch::channel(0);
    let ready = async {
        let mut ready = pin!(manager.ensure(&image, &credentials, |percent| _ = sent.send_replace(percent)));
        let begun = poll!(ready.as_mut());
        // Logged after the first poll: from then on the pull has this requester.
        info!(image, "asked to have an image ready");
        match begun {
            Poll::Ready(ended) => ended,
            Poll::Pending => ready.await,
        }
    };
    tokio::pin!(ready);
    let answer = loop {
        tokio::select! {
            ended = &mut ready => break match ended {
                Ok(digest) => Answer::Ready(digest.to_string()),
                Err(error) => Answer::Failed(chain(&error)),
            },
            () = sleep(PROGRESS_INTERVAL) => {
                let percent = *progress.borrow();
                if send(&mut write, &Answer::Arrived(percent)).await.is_err() {
                    return info!(image, "the client no longer waits for the image");
                }
            }
        }
    };
    let _ = send(&mut write, &answer).await;
}

async fn send(write: &mut OwnedWriteHalf, answer: &Answer) -> io::Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    timeout(LIMIT, write.write_all(&line)).await?
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum PullSocketError {
    #[error("no agent answers")]
    Closed(#[source] io::Error),
    /// The agent has ended, or does not answer.
    #[error("the agent has gone away; ask again, and the pull goes on")]
    Gone,
    #[error("{0}")]
    Refused(String),
}

/// Has the agent pull an image, and returns its digest. `on_progress` gets the percentage that has arrived.
pub(crate) async fn request(
    path: &Path,
    request: &PullRequest,
    mut on_progress: impl FnMut(u8),
) -> Result<String, PullSocketError> {
    // An agent that is stopped accepts no connection.
    let connected = timeout(LIMIT, UnixStream::connect(path)).await.map_err(|_| PullSocketError::Gone)?;
    let mut stream = connected.map_err(PullSocketError::Closed)?;
    let mut line = serde_json::to_vec(request).map_err(|_| PullSocketError::Gone)?;
    line.push(b'\n');
    let Ok(Ok(())) = timeout(LIMIT, stream.write_all(&line)).await else { return Err(PullSocketError::Gone) };
    let mut lines = BufReader::new(stream).lines();
    loop {
        // The agent sends a line every second, and has the deadline of the pull.
        let next = timeout(LIMIT * 3, lines.next_line()).await;
        let Ok(Ok(Some(line))) = next else { return Err(PullSocketError::Gone) };
        match serde_json::from_str(&line) {
            Ok(Answer::Arrived(percent)) => on_progress(percent),
            Ok(Answer::Ready(digest)) => return Ok(digest),
            Ok(Answer::Failed(why)) => return Err(PullSocketError::Refused(why)),
            Err(_) => return Err(PullSocketError::Gone),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_never_shows_its_password() {
        let credential =
            Credential { host: "r.test".into(), username: "me".into(), password: "hunter2".into() };
        let request = PullRequest { image: "r.test/macos".into(), credentials: vec![credential] };
        assert!(!format!("{request:?}").contains("hunter2"));
        let sent = serde_json::to_string(&request).unwrap();
        let read: PullRequest = serde_json::from_str(&sent).unwrap();
        assert_eq!((read.image, read.credentials), (request.image, request.credentials));
    }
}
