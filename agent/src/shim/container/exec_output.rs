//! A command in the guest, followed to its end: its output, and what it exits with.

use std::cell::Cell;
use std::pin::Pin;
use std::time::Duration;

use futures::{Stream, StreamExt};
use tokio::time::{Instant, sleep, timeout};
use tracing::warn;

use super::SET_UP_WORDS;
use super::termination_message::Tail;
use crate::error_chain::chain;
use crate::guest::script::Ready;
use crate::guest::{Exec, ExecEvent, Guest, GuestError};
use crate::logs::writer::{LogStream, LogWriter};

/// How long the output of a command that has ended may pause before it is all there is, and how long it may take in all.
const DRAIN: Duration = Duration::from_secs(1);
const LONGEST_DRAIN: Duration = Duration::from_secs(30);
/// How long somebody waits for the end of a command before another one is sent, and how soon after one that failed.
const WAIT_LIMIT: Duration = Duration::from_mins(10);
const WAIT_AGAIN: Duration = Duration::from_secs(1);

/// The command's end, as the guest agent tells it.
pub(crate) enum ExecResult {
    Exit(i32),
    /// It never ran.
    Refused(String),
    Lost,
}

/// Lets what a command has written arrive, though what it has left running may hold its output open, or even write to it.
pub(crate) async fn drain(mut follow: Pin<&mut impl Future<Output = ExecResult>>, written: &Cell<u64>) {
    let end = Instant::now() + LONGEST_DRAIN;
    while !is_drained(follow.as_mut(), written).await && Instant::now() < end {}
}

/// Whether all that a command has written has arrived after a while: its output has ended, or paused.
pub(crate) async fn is_drained(
    follow: Pin<&mut impl Future<Output = ExecResult>>,
    written: &Cell<u64>,
) -> bool {
    let before = written.get();
    timeout(DRAIN, follow).await.is_ok() || written.get() == before
}

/// Waits for the exit code that the command's own shell tells, for as long as it takes.
pub(crate) async fn exit_of(guest: &mut Guest, ready: &Ready) -> i32 {
    let exec = Exec { argv: ready.wait(WAIT_LIMIT), ..Exec::default() };
    loop {
        let told = guest.run(exec.clone(), WAIT_LIMIT, SET_UP_WORDS).await;
        // Once it is said, it counts, whatever the guest agent says of the one who said it.
        if let Some(code) = told_code(&told.output) {
            return code;
        }
        // Somebody in the guest may have killed the one who waited for us.
        sleep(WAIT_AGAIN).await;
    }
}

/// An exit code that was told, on a line of its own.
pub(crate) fn told_code(output: &[u8]) -> Option<i32> {
    let text = String::from_utf8_lossy(output);
    text.strip_suffix('\n')?.parse::<u8>().ok().map(i32::from)
}

/// Copies a command's output to the log until it ends.
pub(crate) async fn follow(
    mut events: impl Stream<Item = Result<ExecEvent, GuestError>> + Unpin,
    log: &mut LogWriter,
    tail: &mut Tail,
    written: &Cell<u64>,
) -> ExecResult {
    while let Some(event) = events.next().await {
        written.set(written.get() + 1);
        match event {
            Ok(ExecEvent::Started) => {}
            Ok(ExecEvent::Stdout(bytes)) => {
                tail.add(&bytes);
                log.write(LogStream::Stdout, &bytes);
            }
            Ok(ExecEvent::Stderr(bytes)) => {
                tail.add(&bytes);
                log.write(LogStream::Stderr, &bytes);
            }
            Ok(ExecEvent::Exit(code)) => return ExecResult::Exit(code),
            // What has spoken has started, whatever the guest agent says now.
            Err(error) if written.get() > 1 => return lost(&error),
            Err(error) => return disconnected(&error),
        }
    }
    ExecResult::Lost
}

pub(crate) fn disconnected(error: &GuestError) -> ExecResult {
    match error {
        GuestError::Refused(why) => ExecResult::Refused(why.clone()),
        error => lost(error),
    }
}

fn lost(error: &GuestError) -> ExecResult {
    warn!(error = chain(error), "lost the connection to the guest agent");
    ExecResult::Lost
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn followed(events: Vec<Result<ExecEvent, GuestError>>) -> String {
        let (mut log, mut tail, written) = (LogWriter::nowhere(), Tail::default(), Cell::new(0));
        match follow(futures::stream::iter(events), &mut log, &mut tail, &written).await {
            ExecResult::Exit(code) => format!("exit {code}"),
            ExecResult::Refused(why) => format!("refused: {why}"),
            ExecResult::Lost => "lost".to_owned(),
        }
    }

    #[test]
    fn half_a_code_is_none() {
        assert_eq!(told_code(b"143\n"), Some(143));
        for bad in ["", "14", "\n", "-1\n", "256\n", "1\n2\n", "no such file\n"] {
            assert_eq!(told_code(bad.as_bytes()), None, "{bad:?}");
        }
    }

    #[tokio::test]
    async fn only_what_has_said_nothing_yet_can_be_refused() {
        let said = || Ok(ExecEvent::Stdout(b"here".to_vec()));
        let refused = || Err(GuestError::Refused("no".to_owned()));
        assert_eq!(followed(vec![said(), Ok(ExecEvent::Exit(3)), refused()]).await, "exit 3");
        assert_eq!(followed(vec![refused()]).await, "refused: no");
        assert_eq!(followed(vec![said(), refused()]).await, "lost");
        assert_eq!(followed(vec![said(), Err(GuestError::Nonsense("x".to_owned()))]).await, "lost");
        assert_eq!(followed(vec![said()]).await, "lost");
        assert_eq!(followed(vec![Ok(ExecEvent::Started), refused()]).await, "lost");
    }
}
