//! The latest output of a command, for the clients that are attached: one copy for all of them, and a position for each.

use std::collections::VecDeque;

use bytes::Bytes;
use tokio::sync::watch;

use super::frame::MAX;
use crate::logs::line::LogStream;

/// How many bytes, and how many pieces, wait for the slowest client.
const MAX_BYTES: usize = 2 << 20;
const MAX_PIECES: usize = 8 << 10;

#[derive(Debug, Default)]
struct RecentOutput {
    pieces: VecDeque<Piece>,
    /// How many bytes the command has written since clients are counted.
    end: usize,
}

/// Bytes of one stream.
#[derive(Debug)]
struct Piece {
    /// How many bytes of output were before it.
    start: usize,
    stream: LogStream,
    bytes: Vec<u8>,
}

/// The client has not read for too long, so that output which it lacks is gone.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Missed;

/// Where the output is written. Dropped, it is the end of the output.
#[derive(Debug)]
pub(super) struct OutputSender(watch::Sender<RecentOutput>);

/// Where clients join. It has no output itself.
#[derive(Debug, Clone)]
pub(super) struct OutputSource(watch::Receiver<RecentOutput>);

/// The output from the moment on at which a client has joined.
#[derive(Debug)]
pub(super) struct OutputReader {
    output: watch::Receiver<RecentOutput>,
    position: usize,
}

pub(super) fn output() -> (OutputSender, OutputSource) {
    let (sender, receiver) = watch::channel(RecentOutput::default());
    (OutputSender(sender), OutputSource(receiver))
}

impl OutputSender {
    /// Adds bytes for the clients. Now and then it lets them take some: a command may write faster than the shim's one thread looks at them.
    pub(super) async fn send(&self, stream: LogStream, bytes: &[u8]) {
        let mut is_time = false;
        self.0.send_if_modified(|output| {
            // The source is the first receiver.
            if self.0.receiver_count() <= 1 {
                output.pieces = VecDeque::new();
                return false;
            }
            let before = output.end;
            output.add(stream, bytes);
            is_time = before / MAX != output.end / MAX;
            true
        });
        if is_time {
            tokio::task::yield_now().await;
        }
    }
}

impl OutputSource {
    pub(super) fn join(&self) -> OutputReader {
        let output = self.0.clone();
        let position = output.borrow().end;
        OutputReader { output, position }
    }
}

impl OutputReader {
    /// The next bytes of one stream; `None` at the end of the output.
    pub(super) async fn next(&mut self) -> Option<Result<(LogStream, Bytes), Missed>> {
        loop {
            let found = self.output.borrow_and_update().after(self.position);
            match found {
                Ok(Some((stream, bytes))) => {
                    self.position += bytes.len();
                    return Some(Ok((stream, bytes)));
                }
                Ok(None) => self.output.changed().await.ok()?,
                Err(missed) => return Some(Err(missed)),
            }
        }
    }
}

impl RecentOutput {
    fn add(&mut self, stream: LogStream, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = match self.pieces.back() {
                Some(last) if last.stream == stream => MAX - last.bytes.len(),
                _ => 0,
            };
            if room == 0 {
                self.pieces.push_back(Piece { start: self.end, stream, bytes: Vec::new() });
            }
            let room = if room == 0 { MAX } else { room };
            let (part, rest) = bytes.split_at(bytes.len().min(room));
            if let Some(last) = self.pieces.back_mut() {
                last.bytes.extend_from_slice(part);
            }
            self.end += part.len();
            bytes = rest;
        }
        while self.pieces.len() > MAX_PIECES
            || self.pieces.front().is_some_and(|first| self.end - first.start > MAX_BYTES)
        {
            self.pieces.pop_front();
        }
    }

    /// The bytes of one stream from a position on; `None` while there are none.
    fn after(&self, position: usize) -> Result<Option<(LogStream, Bytes)>, Missed> {
        if position == self.end {
            return Ok(None);
        }
        let index = self.pieces.partition_point(|piece| piece.start <= position);
        let piece = index.checked_sub(1).and_then(|index| self.pieces.get(index)).ok_or(Missed)?;
        Ok(Some((piece.stream, Bytes::copy_from_slice(&piece.bytes[position - piece.start..]))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use proptest::prelude::*;

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    #[tokio::test]
    async fn a_client_that_reads_now_and_then_gets_all_of_many_small_pieces() {
        let (sender, source) = output();
        let mut reader = source.join();
        let reads = tokio::spawn(async move {
            let mut read = Vec::new();
            while let Some(next) = reader.next().await {
                read.extend(next.unwrap().1);
            }
            String::from_utf8(read).unwrap()
        });
        let lines: Vec<String> = (0..200_000).map(|number| format!("line {number} of many\n")).collect();
        for line in &lines {
            sender.send(LogStream::Stdout, line.as_bytes()).await;
        }
        drop(sender);
        assert!(reads.await.unwrap() == lines.concat());
    }

    #[tokio::test]
    async fn twenty_thousand_lines_wait_for_a_client() {
        let (sender, source) = output();
        let mut reader = source.join();
        for number in 0..20_000 {
            sender.send(LogStream::Stdout, format!("{number}\n").as_bytes()).now_or_never();
        }
        drop(sender);
        let mut read = Vec::new();
        while let Some(next) = reader.next().await {
            read.extend(next.unwrap().1);
        }
        assert_eq!(String::from_utf8(read).unwrap().lines().count(), 20_000);
    }

    #[tokio::test]
    async fn what_a_client_has_missed_is_told_and_nothing_is_kept_without_clients() {
        let (sender, source) = output();
        sender.send(LogStream::Stdout, b"for no one").await;
        let (mut slow, mut quick) = (source.join(), source.join());
        for _ in 0..MAX_BYTES / 100 + MAX {
            sender.send(LogStream::Stdout, &[0; 100]).await;
            quick.next().await.unwrap().unwrap();
        }
        assert_eq!(slow.next().await, Some(Err(Missed)));
        assert!(quick.next().now_or_never().is_none(), "it has all");
        assert!(!source.0.borrow().pieces.is_empty());
        drop((slow, quick));
        sender.send(LogStream::Stdout, b"for no one").await;
        assert!(source.0.borrow().pieces.is_empty());
        let mut bits = source.join();
        for _ in 0..=MAX_PIECES {
            sender.send(LogStream::Stdout, b"o").await;
            sender.send(LogStream::Stderr, b"e").await;
        }
        assert_eq!(source.0.borrow().pieces.len(), MAX_PIECES);
        assert_eq!(bits.next().await, Some(Err(Missed)));
    }

    proptest! {
        #[test]
        fn each_stream_arrives_whole_and_in_order(parts in prop::collection::vec((any::<bool>(), 0..MAX * 2), 0..20)) {
            run(async {
                let (sender, source) = output();
                let mut reader = source.join();
                let (mut sent, mut received) = (Vec::new(), Vec::new());
                for (number, (is_error, length)) in (0_u8..).zip(parts) {
                    let stream = if is_error { LogStream::Stderr } else { LogStream::Stdout };
                    sender.send(stream, &vec![number; length]).await;
                    sent.extend(std::iter::repeat_n((is_error, number), length));
                    if number % 3 == 0 && length > 0 {
                        let (stream, bytes) = reader.next().await.unwrap().unwrap();
                        assert!(bytes.len() <= MAX);
                        received.extend(bytes.iter().map(|byte| (stream == LogStream::Stderr, *byte)));
                    }
                }
                drop(sender);
                while let Some(next) = reader.next().await {
                    let (stream, bytes) = next.unwrap();
                    received.extend(bytes.iter().map(|byte| (stream == LogStream::Stderr, *byte)));
                }
                assert!(received == sent);
            });
        }
    }
}
