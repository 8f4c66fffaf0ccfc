//! Where the agent can be asked to pull an image: a socket in its state directory, which only its own user can reach.
//!
//! Whoever asks sends one line of JSON, and is told how far the pull has come, line by line, until it is over. The pull goes on for
//! as long as somebody waits for it.

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

use super::manager::{ImageManager, is_remote_name};
use crate::error_chain::chain;
use crate::tart::Credential;

/// No question comes near it.
const MAX_QUESTION: u64 = 256 << 10;
/// How long a question, and each part of an answer, may take.
const LIMIT: Duration = Duration::from_secs(10);
/// How often whoever waits is told something, so that both know of each other's end.
const TOLD_EVERY: Duration = Duration::from_secs(1);
/// After a connection could not be taken.
const PAUSE: Duration = Duration::from_secs(1);

/// An image that somebody wants to have here.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PullRequest {
    pub(crate) image: String,
    /// What to try at its registry.
    pub(crate) credentials: Vec<Credential>,
}

/// What somebody who waits is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Answer {
    /// So many percent are here.
    Arrived(u8),
    /// It is this image, and VMs can be made from it.
    Ready(String),
    /// It cannot be had.
    Failed(String),
}

/// Answers for as long as it is polled. Where there can be no socket, nobody can ask.
pub(crate) async fn serve(path: &Path, ahead: ImageManager) {
    let listener = match listen(path) {
        Ok(listener) => listener,
        Err(error) => {
            warn!(path = %path.display(), %error, "`tart-kubelet images pull` cannot reach this agent");
            return std::future::pending().await;
        }
    };
    let mut visits = JoinSet::new();
    loop {
        tokio::select! {
            visitor = listener.accept() => match visitor {
                Ok((stream, _)) => drop(visits.spawn(receive(stream, ahead.clone()))),
                Err(error) => {
                    warn!(%error, "cannot take a question for an image");
                    sleep(PAUSE).await;
                }
            },
            Some(_) = visits.join_next() => {}
        }
    }
}

fn listen(path: &Path) -> io::Result<UnixListener> {
    // One of an earlier agent leads nowhere; there is no other agent in this directory.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o600))?;
    Ok(listener)
}

async fn receive(stream: UnixStream, ahead: ImageManager) {
    let (reading, mut writing) = stream.into_split();
    let mut lines = BufReader::new(reading.take(MAX_QUESTION)).lines();
    let question = match timeout(LIMIT, lines.next_line()).await {
        Ok(Ok(Some(line))) => serde_json::from_str::<PullRequest>(&line).ok(),
        _ => None,
    };
    let Some(PullRequest { image, credentials }) = question.filter(|asked| is_remote_name(&asked.image))
    else {
        let _ = say(&mut writing, &Answer::Failed("this is not a question that the agent knows".to_owned()))
            .await;
        return;
    };
    let (percent, heard) = watch::channel(0);
    let ready = async {
        let mut ready = pin!(ahead.ready(&image, &credentials, |now| _ = percent.send_replace(now)));
        let begun = poll!(ready.as_mut());
        // Whoever reads it can count on it that the pull does not end without us.
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
            () = sleep(TOLD_EVERY) => {
                let now = *heard.borrow();
                if say(&mut writing, &Answer::Arrived(now)).await.is_err() {
                    return info!(image, "nobody waits for the image any more");
                }
            }
        }
    };
    let _ = say(&mut writing, &answer).await;
}

async fn say(writing: &mut OwnedWriteHalf, answer: &Answer) -> io::Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    timeout(LIMIT, writing.write_all(&line)).await?
}

/// Why an agent has not had an image ready.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PullSocketError {
    /// There is no agent that could.
    #[error("no agent answers")]
    Closed(#[source] io::Error),
    /// It has gone away.
    #[error("the agent has gone away; ask again, and the pull goes on")]
    Gone,
    /// The image cannot be had; why, in the agent's words.
    #[error("{0}")]
    Refused(String),
}

/// Asks the agent for an image, and waits until it is there: this one. `arrived` is told how much of it is here.
pub(crate) async fn ask(
    path: &Path,
    question: &PullRequest,
    mut arrived: impl FnMut(u8),
) -> Result<String, PullSocketError> {
    // An agent that stands still takes nobody in.
    let connected = timeout(LIMIT, UnixStream::connect(path)).await.map_err(|_| PullSocketError::Gone)?;
    let mut stream = connected.map_err(PullSocketError::Closed)?;
    let mut line = serde_json::to_vec(question).map_err(|_| PullSocketError::Gone)?;
    line.push(b'\n');
    let Ok(Ok(())) = timeout(LIMIT, stream.write_all(&line)).await else { return Err(PullSocketError::Gone) };
    let mut lines = BufReader::new(stream).lines();
    loop {
        // It says something every second; a pull itself has its limit there.
        let next = timeout(LIMIT * 3, lines.next_line()).await;
        let Ok(Ok(Some(line))) = next else { return Err(PullSocketError::Gone) };
        match serde_json::from_str(&line) {
            Ok(Answer::Arrived(percent)) => arrived(percent),
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
    fn a_question_never_shows_its_password() {
        let credential =
            Credential { host: "r.test".into(), username: "me".into(), password: "hunter2".into() };
        let question = PullRequest { image: "r.test/macos".into(), credentials: vec![credential] };
        assert!(!format!("{question:?}").contains("hunter2"));
        let sent = serde_json::to_string(&question).unwrap();
        let read: PullRequest = serde_json::from_str(&sent).unwrap();
        assert_eq!((read.image, read.credentials), (question.image, question.credentials));
    }
}
