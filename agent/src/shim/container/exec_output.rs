//! The output and the exit code of a command in the guest.

use std::cell::Cell;
use std::pin::Pin;
use std::time::Duration;

use futures::{Stream, StreamExt};
use tokio::time::{Instant, sleep, timeout};
use tracing::warn;

use super::set_up::MAX_OUTPUT;
use super::termination_message::Tail;
use crate::error_chain::chain;
use crate::guest::script::ContainerScripts;
use crate::guest::{Exec, ExecEvent, Guest, GuestError};
use crate::logs::line::LogStream;
use crate::logs::writer::LogWriter;
use crate::shim::attach::AttachedOutput;

/// A pause of this length is the end of the output of a command that has ended.
const DRAIN_PAUSE: Duration = Duration::from_secs(1);
/// How long the rest of its output may take in all.
const DRAIN_LIMIT: Duration = Duration::from_secs(30);
/// How long one question for the exit code waits, and how soon the next one follows.
const WAIT_LIMIT: Duration = Duration::from_mins(10);
const WAIT_INTERVAL: Duration = Duration::from_secs(1);

/// The end of a command, by the guest agent's account.
pub(in crate::shim) enum ExecResult {
    Exit(i32),
    /// The command never ran.
    Refused(String),
    /// The connection broke.
    Lost,
}

/// Waits for the rest of a command's output. Processes that it has left behind may hold the output open, or write to it.
pub(in crate::shim) async fn drain(
    mut follow: Pin<&mut impl Future<Output = ExecResult>>,
    received: &Cell<u64>,
) {
    let end = Instant::now() + DRAIN_LIMIT;
    while !is_drained(follow.as_mut(), received).await && Instant::now() < end {}
}

/// Whether all output of a command has arrived after a while: it has ended, or paused.
pub(in crate::shim) async fn is_drained(
    follow: Pin<&mut impl Future<Output = ExecResult>>,
    received: &Cell<u64>,
) -> bool {
    let before = received.get();
    timeout(DRAIN_PAUSE, follow).await.is_ok() || received.get() == before
}

/// Waits for the exit code from the command's own shell, for as long as it takes.
pub(in crate::shim) async fn wait_for_exit_code(guest: &mut Guest, scripts: &ContainerScripts) -> i32 {
    let exec = Exec { argv: scripts.wait(WAIT_LIMIT), ..Exec::default() };
    loop {
        let done = guest.run(exec.clone(), WAIT_LIMIT, MAX_OUTPUT).await;
        // A code in the output counts, whatever the guest agent says of the shell that printed it.
        if let Some(code) = read_exit_code(&done.output) {
            return code;
        }
        // A process in the guest may have killed the shell that waited.
        sleep(WAIT_INTERVAL).await;
    }
}

/// An exit code on a line of its own.
pub(in crate::shim) fn read_exit_code(output: &[u8]) -> Option<i32> {
    let text = String::from_utf8_lossy(output);
    text.strip_suffix('\n')?.parse::<u8>().ok().map(i32::from)
}

/// Copies a command's output to the log, and to the clients that are attached, until it ends.
pub(in crate::shim) async fn follow(
    mut events: impl Stream<Item = Result<ExecEvent, GuestError>> + Unpin,
    (log, attached): (&mut LogWriter, &AttachedOutput),
    tail: &mut Tail,
    received: &Cell<u64>,
) -> ExecResult {
    while let Some(event) = events.next().await {
        received.set(received.get() + 1);
        match event {
            Ok(ExecEvent::Started) => {}
            Ok(ExecEvent::Stdout(bytes)) => {
                tail.add(&bytes);
                log.write(LogStream::Stdout, &bytes);
                attached.send(LogStream::Stdout, &bytes).await;
            }
            Ok(ExecEvent::Stderr(bytes)) => {
                tail.add(&bytes);
                log.write(LogStream::Stderr, &bytes);
                attached.send(LogStream::Stderr, &bytes).await;
            }
            Ok(ExecEvent::Exit(code)) => return ExecResult::Exit(code),
            // A command with output has started, whatever the guest agent says now.
            Err(error) if received.get() > 1 => return lost(&error),
            Err(error) => return disconnected(&error),
        }
    }
    ExecResult::Lost
}

/// The end of a command whose connection broke before its first message.
pub(in crate::shim) fn disconnected(error: &GuestError) -> ExecResult {
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
    use crate::state::GuestCommand;

    async fn followed(events: Vec<Result<ExecEvent, GuestError>>) -> String {
        let (mut log, mut tail, received) = (LogWriter::nowhere(), Tail::default(), Cell::new(0));
        let (attached, _) =
            crate::shim::attach::AttachServer::default().begin("main", &GuestCommand::default());
        let events = futures::stream::iter(events);
        match follow(events, (&mut log, &attached), &mut tail, &received).await {
            ExecResult::Exit(code) => format!("exit {code}"),
            ExecResult::Refused(why) => format!("refused: {why}"),
            ExecResult::Lost => "lost".to_owned(),
        }
    }

    #[test]
    fn an_incomplete_exit_code_is_none() {
        assert_eq!(read_exit_code(b"143\n"), Some(143));
        for bad in ["", "14", "\n", "-1\n", "256\n", "1\n2\n", "no such file\n"] {
            assert_eq!(read_exit_code(bad.as_bytes()), None, "{bad:?}");
        }
    }

    #[tokio::test]
    async fn a_command_is_refused_only_before_its_first_message() {
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
