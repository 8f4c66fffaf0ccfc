//! The server's side of a connection: the peer opens streams, the handler accepts them.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, interval_at, timeout};
use tracing::debug;

use super::frame::{Decoder, Encoder, Frame, FrameError, ResetStatus, StreamId};
pub(crate) use super::header_block::Headers;
use crate::api::stream::{Activity, Closed, Input, InputQueue, KEEP_ALIVE, LINGER, Outgoing, Output, QUEUE};

/// How many bytes one read takes, and how many the writer collects for one write.
const READ: usize = 16 << 10;
const WRITE: usize = 48 << 10;
/// How many control frames wait for a peer that does not read.
const MAX_CONTROL: usize = 1024;

/// What a connection may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Streams at a time.
    pub(crate) streams: usize,
    /// How long no data may pass before the connection is closed.
    pub(crate) idle: Duration,
    /// How long one stream that is not read may hold up the others before it is reset; `None` where the streams belong together.
    pub(crate) stall: Option<Duration>,
}

/// A stream that the peer has opened.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) headers: Headers,
    pub(crate) input: Input,
    pub(crate) output: Output,
}

/// A connection, as its handler sees it. Dropped, it is cut.
#[derive(Debug)]
pub(crate) struct Connection {
    streams: mpsc::Receiver<Stream>,
    queue: mpsc::Sender<Outgoing>,
    closed: Closed,
    tasks: JoinSet<()>,
}

#[derive(Debug, thiserror::Error)]
enum ConnectionError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("the client does not read")]
    NotRead,
    #[error("no data for a long time")]
    Idle,
}

impl Connection {
    /// Serves a connection on which the peer has sent nothing but frames.
    pub(crate) fn new<T>(io: T, limits: Limits) -> Self
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (read, write) = tokio::io::split(io);
        let (queue, outgoing) = mpsc::channel(QUEUE);
        // As many as there may be streams, so that the reader never waits for the handler to accept.
        let (accepted, streams) = mpsc::channel(limits.streams.max(1));
        let (closing, closed) = watch::channel(false);
        let shared = Arc::new(Shared::new(limits.idle));
        let reader = Reader { io: read, limits, shared: shared.clone(), accepted, queue: queue.downgrade() };
        let writer = Writer { io: write, shared, outgoing };
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut reader = reader;
            let mut writer = Box::pin(writer.run());
            // Both ends share one fate. The reader's end, at the end of its peer's bytes, leaves nothing to write for.
            let result = tokio::select! {
                result = reader.run() => result,
                result = &mut writer => match result {
                    Ok(()) => {
                        reader.shared.cut();
                        let _ = closing.send(true);
                        timeout(LINGER, reader.discard()).await.unwrap_or(Ok(()))
                    }
                    Err(error) => Err(error),
                },
            };
            reader.shared.cut();
            let _ = closing.send(true);
            if let Err(error) = result {
                debug!(%error, "a SPDY connection has ended");
            }
        });
        Self { streams, queue, closed: Closed(closed), tasks }
    }

    /// The next stream that the peer opens; `None` when the connection has ended.
    pub(crate) async fn accept(&mut self) -> Option<Stream> {
        self.streams.recv().await
    }

    pub(crate) fn closed(&self) -> Closed {
        self.closed.clone()
    }

    /// Sends all that was written, says goodbye, and reads on for a while.
    pub(crate) async fn close(mut self) {
        if self.queue.send(Outgoing::Close).await.is_ok() {
            self.streams.close();
            drop(self.queue);
            while self.tasks.join_next().await.is_some() {}
        }
    }
}

/// What reader, writer and streams share.
#[derive(Debug)]
struct Shared {
    table: Mutex<Table>,
    activity: Activity,
    /// The writer has control frames to send.
    control: Notify,
}

#[derive(Debug)]
struct Table {
    streams: HashMap<StreamId, Entry>,
    control: VecDeque<Frame>,
    last: StreamId,
}

#[derive(Debug)]
struct Entry {
    /// Absent after the peer has closed its side.
    input: Option<InputQueue>,
    /// Whether the handler's side is closed.
    ended: bool,
    /// Shared with the handler's [`Output`].
    reset: Arc<std::sync::atomic::AtomicBool>,
}

impl Shared {
    fn new(idle: Duration) -> Self {
        let table = Table { streams: HashMap::new(), control: VecDeque::new(), last: StreamId(0) };
        Self { table: Mutex::new(table), activity: Activity::new(idle), control: Notify::new() }
    }

    fn with<T>(&self, change: impl FnOnce(&mut Table) -> T) -> T {
        change(&mut self.table.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn send(&self, frame: Frame) -> Result<(), ConnectionError> {
        let waiting = self.with(|table| {
            table.control.push_back(frame);
            table.control.len()
        });
        self.control.notify_one();
        if waiting > MAX_CONTROL { Err(ConnectionError::NotRead) } else { Ok(()) }
    }

    /// Ends all streams: the peer is gone.
    fn cut(&self) {
        let streams = self.with(|table| std::mem::take(&mut table.streams));
        for (_, entry) in streams {
            entry.cut();
        }
    }

    /// Forgets a stream that is reset, by either side.
    fn remove(&self, stream: StreamId) {
        if let Some(entry) = self.with(|table| table.streams.remove(&stream)) {
            entry.cut();
        }
    }
}

impl Entry {
    fn cut(self) {
        self.reset.store(true, Ordering::Release);
        if let Some(input) = self.input {
            input.reset();
        }
    }
}

impl Table {
    /// Closes one side of a stream, and forgets a stream that is closed on both.
    fn close(&mut self, stream: StreamId, close: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.streams.get_mut(&stream) {
            close(entry);
            if entry.ended && entry.input.is_none() {
                self.streams.remove(&stream);
            }
        }
    }
}

/// Resets a stream whose handler has gone without closing it.
#[derive(Debug)]
pub(in crate::api::stream) struct DroppedOutput {
    shared: Arc<Shared>,
    stream: StreamId,
    armed: bool,
}

impl DroppedOutput {
    /// The handler has closed the stream.
    pub(in crate::api::stream) fn disarm(mut self) {
        self.armed = false;
    }
}

impl Drop for DroppedOutput {
    fn drop(&mut self) {
        let is_open = |table: &mut Table| table.streams.get(&self.stream).is_some_and(|it| !it.ended);
        if self.armed && self.shared.with(is_open) {
            self.shared.remove(self.stream);
            // A peer that does not read is the writer's to find out.
            let frame = Frame::RstStream { stream: self.stream, status: ResetStatus::CANCEL };
            let _ = self.shared.send(frame);
        }
    }
}

struct Reader<T> {
    io: ReadHalf<T>,
    limits: Limits,
    shared: Arc<Shared>,
    accepted: mpsc::Sender<Stream>,
    /// Weak: the writer ends when every handler is gone.
    queue: mpsc::WeakSender<Outgoing>,
}

impl<T: AsyncRead> Reader<T> {
    async fn run(&mut self) -> Result<(), ConnectionError> {
        let (mut decoder, mut input) = (Decoder::new(), BytesMut::new());
        loop {
            while let Some(frame) = decoder.decode(&mut input)? {
                self.handle(frame).await?;
            }
            input.reserve(READ);
            if self.io.read_buf(&mut input).await? == 0 {
                return Ok(());
            }
        }
    }

    async fn handle(&mut self, frame: Frame) -> Result<(), ConnectionError> {
        match frame {
            Frame::SynStream { stream, fin, unidirectional, headers, .. } => {
                self.open(stream, fin, unidirectional, headers)
            }
            Frame::Data { stream, fin, data } => {
                self.shared.activity.touch();
                if !data.is_empty() {
                    self.deliver(stream, data).await?;
                }
                if fin {
                    self.end(stream);
                }
                Ok(())
            }
            Frame::RstStream { stream, .. } => {
                self.shared.remove(stream);
                Ok(())
            }
            Frame::Headers { stream, fin: true, .. } | Frame::SynReply { stream, fin: true, .. } => {
                self.end(stream);
                Ok(())
            }
            // A ping of the agent's own has an even number, and comes back.
            Frame::Ping(id) if id % 2 == 1 => self.shared.send(Frame::Ping(id)),
            Frame::Ping(_)
            | Frame::Settings
            | Frame::GoAway { .. }
            | Frame::Headers { .. }
            | Frame::SynReply { .. }
            | Frame::WindowUpdate { .. } => Ok(()),
        }
    }

    fn open(
        &mut self,
        stream: StreamId,
        fin: bool,
        unidirectional: bool,
        headers: Headers,
    ) -> Result<(), ConnectionError> {
        let refuse = |status| self.shared.send(Frame::RstStream { stream, status });
        let (number, last) = self.shared.with(|table| (table.streams.len(), table.last));
        if stream.0.is_multiple_of(2) || stream <= last {
            return refuse(ResetStatus::PROTOCOL_ERROR);
        }
        self.shared.with(|table| table.last = stream);
        let Some(queue) = self.queue.upgrade().filter(|_| number < self.limits.streams) else {
            return refuse(ResetStatus::REFUSED_STREAM);
        };
        let (input_queue, input) = InputQueue::new();
        let reset = input_queue.reset.clone();
        let entry =
            Entry { input: (!fin).then_some(input_queue), ended: unidirectional, reset: reset.clone() };
        self.shared.activity.touch();
        self.shared.with(|table| table.streams.insert(stream, entry));
        // The peer drops data that comes before the reply.
        self.shared.send(Frame::SynReply { stream, fin: false, headers: Headers::default() })?;
        let dropped = Some(DroppedOutput { shared: self.shared.clone(), stream, armed: true });
        let output = Output { stream: stream.0, queue, reset, dropped };
        // A handler that accepts no more has dropped its end: the stream is reset.
        let _ = self.accepted.try_send(Stream { headers, input, output });
        Ok(())
    }

    /// The peer has closed its side of the stream.
    fn end(&self, stream: StreamId) {
        self.shared.with(|table| table.close(stream, |entry| drop(entry.input.take())));
    }

    /// Hands data to the stream's handler, and waits while its queue is full.
    async fn deliver(&mut self, stream: StreamId, data: bytes::Bytes) -> Result<(), ConnectionError> {
        let (queue, is_new, others) = self.shared.with(|table| {
            let entry = table.streams.get(&stream);
            let queue = entry.and_then(|entry| entry.input.as_ref()).map(|input| input.queue.clone());
            (queue, stream > table.last, table.streams.len() > 2)
        });
        let Some(queue) = queue else {
            // Data of a stream that was reset a moment ago is on its way still.
            let status = ResetStatus::INVALID_STREAM;
            return if is_new { self.shared.send(Frame::RstStream { stream, status }) } else { Ok(()) };
        };
        match self.limits.stall {
            Some(limit) if others => {
                if timeout(limit, queue.send(data)).await.is_err() {
                    self.shared.remove(stream);
                    let status = ResetStatus::FLOW_CONTROL_ERROR;
                    return self.shared.send(Frame::RstStream { stream, status });
                }
            }
            // A handler that takes no more input has dropped its end; the bytes are for no one.
            _ => drop(queue.send(data).await),
        }
        Ok(())
    }

    /// Reads to the end, and drops it.
    async fn discard(&mut self) -> Result<(), ConnectionError> {
        let mut input = BytesMut::with_capacity(READ);
        while self.io.read_buf(&mut input).await? > 0 {
            input.clear();
        }
        Ok(())
    }
}

struct Writer<T> {
    io: WriteHalf<T>,
    shared: Arc<Shared>,
    outgoing: mpsc::Receiver<Outgoing>,
}

impl<T: AsyncWrite> Writer<T> {
    /// Writes until the handler has closed the connection.
    async fn run(mut self) -> Result<(), ConnectionError> {
        let (mut encoder, mut out) = (Encoder::default(), BytesMut::new());
        let mut keep_alive = interval_at(Instant::now() + KEEP_ALIVE, KEEP_ALIVE);
        let mut ping = 0_u32;
        loop {
            let mut next = None;
            let mut is_over = false;
            tokio::select! {
                biased;
                () = self.shared.control.notified() => {}
                outgoing = self.outgoing.recv() => match outgoing {
                    Some(outgoing) => next = Some(outgoing),
                    None => is_over = true,
                },
                _ = keep_alive.tick() => {
                    if self.shared.activity.is_idle() {
                        return Err(ConnectionError::Idle);
                    }
                    ping = ping.wrapping_add(2);
                    encoder.encode(&Frame::Ping(ping), &mut out);
                }
            }
            loop {
                // Replies come before the data of their streams.
                for frame in self.shared.with(|table| std::mem::take(&mut table.control)) {
                    encoder.encode(&frame, &mut out);
                }
                match next.take() {
                    Some(Outgoing::Close) => is_over = true,
                    Some(outgoing) => self.encode(outgoing, &mut encoder, &mut out),
                    None => break,
                }
                if is_over || out.len() >= WRITE {
                    break;
                }
                next = self.outgoing.try_recv().ok();
            }
            if is_over {
                let last = self.shared.with(|table| table.last);
                encoder.encode(&Frame::GoAway { last, status: 0 }, &mut out);
            }
            timeout(self.shared.activity.limit(), self.io.write_all_buf(&mut out))
                .await
                .map_err(|_| ConnectionError::NotRead)??;
            self.io.flush().await?;
            if is_over {
                return Ok(self.io.shutdown().await?);
            }
        }
    }

    fn encode(&self, outgoing: Outgoing, encoder: &mut Encoder, out: &mut BytesMut) {
        match outgoing {
            Outgoing::Data { stream, bytes } => {
                self.shared.activity.touch();
                let frame = Frame::Data { stream: StreamId(stream), fin: false, data: bytes };
                encoder.encode(&frame, out);
            }
            Outgoing::End { stream } => {
                let stream = StreamId(stream);
                let is_open = self.shared.with(|table| {
                    let is_open = table.streams.get(&stream).is_some_and(|entry| !entry.ended);
                    table.close(stream, |entry| entry.ended = true);
                    is_open
                });
                if is_open {
                    encoder.encode(&Frame::Data { stream, fin: true, data: bytes::Bytes::new() }, out);
                }
            }
            Outgoing::Close => {}
        }
    }
}

#[cfg(test)]
pub(in crate::api::stream) mod tests;
