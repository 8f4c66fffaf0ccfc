//! A container's termination message: a file in the guest, or the end of its log.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::time::Duration;

use crate::error_chain::chain;
use crate::guest::{Exec, Guest, script};
use crate::state::Termination;

/// The longest message that Kubernetes takes.
const MAX_MESSAGE: usize = 4096;
/// How much of a log serves as a message.
const MAX_TAIL: usize = 2048;
const MAX_TAIL_LINES: usize = 80;
/// How much of a log file is read for it: more than the longest line.
const MAX_LOG: u64 = 64 << 10;
/// How long the guest may take to read the message.
const LIMIT: Duration = Duration::from_secs(10);

pub(in crate::shim) struct TerminationMessage<'a>(pub(in crate::shim) &'a Termination);

impl TerminationMessage<'_> {
    /// The message of a container that ended with `code`. The guest reads the file, so that no path leads to a file of the host.
    pub(in crate::shim) async fn read(&self, guest: &mut Guest, code: i32, tail: &Tail) -> Option<String> {
        let exec = Exec { argv: script::termination_message(&self.0.path), ..Exec::default() };
        let done = guest.run(exec, LIMIT, MAX_MESSAGE).await;
        if let Err(error) = &done.end {
            tracing::warn!(error = chain(error), "the termination message may be incomplete");
        }
        let message = text(&done.output).filter(|_| matches!(done.end, Ok(0) | Err(_)));
        message.or_else(|| (self.0.or_log && code != 0).then(|| tail.text()).flatten())
    }
}

/// The end of a container's output.
#[derive(Debug, Default)]
pub(in crate::shim) struct Tail(VecDeque<u8>);

impl Tail {
    /// The end of the output in a log file.
    pub(in crate::shim) fn of_log(path: &Path) -> Self {
        let mut tail = Self::default();
        for line in last_lines(path).unwrap_or_default().split(|&byte| byte == b'\n') {
            // The time, the stream, whether the line ends here, and the line.
            if let [_, _, tag, text] = line.splitn(4, |&byte| byte == b' ').collect::<Vec<_>>()[..] {
                tail.add(text);
                tail.add(if tag == b"F" { b"\n" } else { b"" });
            }
        }
        tail
    }

    pub(in crate::shim) fn add(&mut self, bytes: &[u8]) {
        let kept = &bytes[bytes.len().saturating_sub(MAX_TAIL)..];
        self.0.extend(kept);
        let surplus = self.0.len().saturating_sub(MAX_TAIL);
        self.0.drain(..surplus);
    }

    fn text(&self) -> Option<String> {
        let bytes: Vec<u8> = self.0.iter().copied().collect();
        let all = String::from_utf8_lossy(&bytes).into_owned();
        let lines: Vec<&str> = all.split_inclusive('\n').collect();
        text(lines[lines.len().saturating_sub(MAX_TAIL_LINES)..].concat().as_bytes())
    }
}

fn last_lines(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(MAX_LOG)))?;
    let mut bytes = Vec::new();
    file.take(MAX_LOG).read_to_end(&mut bytes)?;
    if length > MAX_LOG {
        // The first line is incomplete.
        let whole = bytes.iter().position(|&byte| byte == b'\n').map_or(bytes.len(), |end| end + 1);
        bytes.drain(..whole);
    }
    Ok(bytes)
}

fn text(bytes: &[u8]) -> Option<String> {
    (!bytes.is_empty()).then(|| String::from_utf8_lossy(bytes).replace('\0', "\u{fffd}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::dir;

    #[test]
    fn the_tail_is_bounded_in_bytes_and_lines() {
        let mut tail = Tail::default();
        assert_eq!(tail.text(), None);
        for number in 0..1000 {
            tail.add(format!("{number}\n").as_bytes());
        }
        let text = tail.text().unwrap();
        assert_eq!((text.lines().count(), text.lines().last()), (MAX_TAIL_LINES, Some("999")));
        tail.add(&vec![b'x'; 100_000]);
        assert_eq!(tail.text().unwrap(), "x".repeat(MAX_TAIL));
    }

    #[test]
    fn the_tail_is_read_from_a_log_file() {
        let dir = dir();
        let path = dir.path().join("0.log");
        assert_eq!(Tail::of_log(&path).text(), None);
        let line = |tag: &str, text: &str| format!("2026-11-16T08:00:00.000000000Z stderr {tag} {text}\n");
        std::fs::write(&path, line("F", "two words") + &line("P", "no end") + "half a li").unwrap();
        assert_eq!(Tail::of_log(&path).text().as_deref(), Some("two words\nno end"));
        std::fs::write(&path, line("P", &"x".repeat(16 << 10)).repeat(8) + &line("F", "y")).unwrap();
        assert_eq!(Tail::of_log(&path).text(), Some("x".repeat(MAX_TAIL - 2) + "y\n"));
    }
}
