//! Streams between a client of Kubernetes and a handler: SPDY/3.1 and WebSocket, behind one pair of types.
//!
//! `spdy` and `websocket` are the transports. `negotiation` chooses among them and their protocols. `remote_command` and `forwarded_ports`
//! are what the protocols of Kubernetes carry; handlers see nothing else.
//!
//! A transport has two tasks, one that reads and one that writes, and each direction of each stream has a queue of a few chunks. A handler
//! that does not take its input makes the reader wait, and the peer with it. A peer that does not read makes the writer wait, and the
//! handler with it.

pub(crate) mod forwarded_ports;
pub(crate) mod negotiation;
pub(crate) mod remote_command;
pub(crate) mod spdy;
pub(crate) mod websocket;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// How many chunks of one direction of a stream wait. A chunk has 16 KiB at most.
const QUEUE: usize = 4;
/// The longest chunk that a handler may write.
pub(crate) const MAX_CHUNK: usize = 16 << 10;
/// How often the agent sends something to a silent client: a client that is gone is found out by it, and one that waits for a pong gets one.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// How long the agent reads on after its last byte. A socket that is closed before all was read takes back what the client has not read.
const LINGER: Duration = Duration::from_secs(10);

/// The peer has gone, or has reset the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the client is gone")]
pub(crate) struct Gone;

/// What arrives on one stream.
#[derive(Debug)]
pub(crate) struct Input {
    queue: mpsc::Receiver<Bytes>,
    reset: Arc<AtomicBool>,
}

impl Input {
    /// The next bytes; `None` after the peer has closed its side.
    pub(crate) async fn recv(&mut self) -> Result<Option<Bytes>, Gone> {
        match self.queue.recv().await {
            Some(bytes) => Ok(Some(bytes)),
            None if self.reset.load(Ordering::Acquire) => Err(Gone),
            None => Ok(None),
        }
    }
}

#[cfg(test)]
impl Input {
    /// The input of a stream that its peer has reset.
    pub(crate) fn of_reset_stream() -> Self {
        let (queue, input) = InputQueue::new();
        queue.reset();
        input
    }
}

/// The transport's end of an [`Input`].
#[derive(Debug)]
struct InputQueue {
    queue: mpsc::Sender<Bytes>,
    reset: Arc<AtomicBool>,
}

impl InputQueue {
    fn new() -> (Self, Input) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let reset = Arc::new(AtomicBool::new(false));
        (Self { queue: sender, reset: reset.clone() }, Input { queue: receiver, reset })
    }

    /// The input ends here, and not because the peer has closed it.
    fn reset(self) {
        self.reset.store(true, Ordering::Release);
    }
}

/// What a handler writes for the transport to send.
#[derive(Debug)]
enum Outgoing {
    Data {
        stream: u32,
        bytes: Bytes,
    },
    /// The handler's side of the stream is closed.
    End {
        stream: u32,
    },
    /// All is written: the connection is closed.
    Close,
}

/// Where a handler writes to one stream. It is closed by [`end`](Self::end); one that is dropped resets its stream, if its transport can.
#[derive(Debug)]
pub(crate) struct Output {
    stream: u32,
    queue: mpsc::Sender<Outgoing>,
    /// Whether the peer has reset the stream.
    reset: Arc<AtomicBool>,
    dropped: Option<spdy::connection::DroppedOutput>,
}

impl Output {
    /// Waits until the transport has taken the bytes.
    pub(crate) async fn write(&mut self, mut bytes: Bytes) -> Result<(), Gone> {
        while !bytes.is_empty() {
            let chunk = bytes.split_to(bytes.len().min(MAX_CHUNK));
            self.send(Outgoing::Data { stream: self.stream, bytes: chunk }).await?;
        }
        Ok(())
    }

    /// Closes the handler's side of the stream.
    pub(crate) async fn end(mut self) -> Result<(), Gone> {
        self.send(Outgoing::End { stream: self.stream }).await?;
        self.close();
        Ok(())
    }

    /// The transport knows that the stream is closed.
    fn close(&mut self) {
        if let Some(dropped) = self.dropped.take() {
            dropped.disarm();
        }
    }

    async fn send(&mut self, outgoing: Outgoing) -> Result<(), Gone> {
        if self.reset.load(Ordering::Acquire) {
            return Err(Gone);
        }
        self.queue.send(outgoing).await.map_err(|_| Gone)
    }
}

#[cfg(test)]
impl Output {
    /// An output whose transport takes a few chunks, and sends none.
    pub(crate) fn to_nowhere() -> (Self, impl Sized) {
        let (queue, transport) = mpsc::channel(QUEUE);
        (Self { stream: 1, queue, reset: Arc::default(), dropped: None }, transport)
    }
}

/// Whether a connection still is.
#[derive(Debug, Clone)]
pub(crate) struct Closed(watch::Receiver<bool>);

impl Closed {
    /// Waits for the end of the connection.
    pub(crate) async fn wait(&mut self) {
        // A sender that is gone has ended with the connection.
        let _ = self.0.wait_for(|closed| *closed).await;
    }
}

/// When data last passed on a connection, in either direction. Pings do not count.
#[derive(Debug)]
struct Activity {
    last: Mutex<Instant>,
    limit: Duration,
}

impl Activity {
    fn new(limit: Duration) -> Self {
        Self { last: Mutex::new(Instant::now()), limit }
    }

    fn touch(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Whether no data has passed for so long that the connection is to be closed.
    fn is_idle(&self) -> bool {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).elapsed() > self.limit
    }

    fn limit(&self) -> Duration {
        self.limit
    }
}
