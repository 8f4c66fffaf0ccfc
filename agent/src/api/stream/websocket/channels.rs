//! Streams by the first byte of each message: the `channel.k8s.io` protocols.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{BufMut, Bytes, BytesMut};
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, interval_at, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error, Message};
use tracing::debug;

use super::goodbye;
use crate::api::stream::{
    Activity, Closed, Input, InputQueue, KEEP_ALIVE, LINGER, MAX_CHUNK, Outgoing, Output, QUEUE,
};

/// In this channel a client of v5 names a channel that it closes.
const CLOSE: u8 = 255;

/// How a message carries bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoding {
    /// The channel, then the bytes.
    Binary,
    /// The digit of the channel, then the bytes in base64, as text.
    Base64,
}

/// The rules of a `channel.k8s.io` protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rules {
    pub(crate) encoding: Encoding,
    /// Whether the client can close a channel, as from v5 on.
    pub(crate) half_close: bool,
}

#[derive(Debug, thiserror::Error)]
enum ChannelError {
    #[error(transparent)]
    WebSocket(#[from] Error),
    #[error("a message is not base64")]
    NotBase64,
    #[error("the client does not read")]
    NotRead,
    #[error("no data for a long time")]
    Idle,
}

/// A connection, as its handler sees it. Dropped, it is cut.
#[derive(Debug)]
pub(crate) struct Channels {
    inputs: HashMap<u8, Input>,
    queue: mpsc::Sender<Outgoing>,
    closed: Closed,
    tasks: JoinSet<()>,
}

impl Channels {
    /// Serves a WebSocket on which the client may write to the channels `inputs`.
    pub(crate) fn new<T>(messages: WebSocketStream<T>, rules: Rules, inputs: &[u8], idle: Duration) -> Self
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (sink, source) = messages.split();
        let (queue, outgoing) = mpsc::channel(QUEUE);
        let (closing, closed) = watch::channel(false);
        let (mut queues, mut receivers) = (HashMap::new(), HashMap::new());
        for &channel in inputs {
            let (queue, input) = InputQueue::new();
            queues.insert(channel, queue);
            receivers.insert(channel, input);
        }
        let activity = Arc::new(Activity::new(idle));
        let mut reader = Reader { source, rules, queues, activity: activity.clone() };
        let mut writer = Writer { sink, rules, outgoing, activity };
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let result = tokio::select! {
                result = reader.run() => result,
                result = writer.run() => result,
            };
            reader.cut();
            let _ = closing.send(true);
            let code = match &result {
                Ok(()) => CloseCode::Normal,
                Err(ChannelError::WebSocket(Error::Capacity(_))) => CloseCode::Size,
                Err(ChannelError::NotBase64) => CloseCode::Invalid,
                Err(ChannelError::Idle) => CloseCode::Away,
                Err(_) => CloseCode::Error,
            };
            let goodbye = async {
                let _ = writer.sink.send(goodbye(code)).await;
                reader.discard().await;
            };
            let _ = timeout(LINGER, goodbye).await;
            if let Err(error) = result {
                debug!(%error, "a WebSocket has ended");
            }
        });
        Self { inputs: receivers, queue, closed: Closed(closed), tasks }
    }

    /// What arrives in a channel that the client may write to; once.
    pub(crate) fn input(&mut self, channel: u8) -> Option<Input> {
        self.inputs.remove(&channel)
    }

    /// Where a handler writes to a channel.
    pub(crate) fn output(&self, channel: u8) -> Output {
        let reset = Arc::new(AtomicBool::new(false));
        Output { stream: channel.into(), queue: self.queue.clone(), reset, dropped: None }
    }

    /// An empty message in a channel: some clients wait for it.
    pub(crate) async fn announce(&self, channel: u8) {
        let empty = Outgoing::Data { stream: channel.into(), bytes: Bytes::new() };
        // A client that is gone is for the handler to find out.
        let _ = self.queue.send(empty).await;
    }

    pub(crate) fn closed(&self) -> Closed {
        self.closed.clone()
    }

    /// Sends all that was written, says goodbye, and reads on for a while.
    pub(crate) async fn close(mut self) {
        if self.queue.send(Outgoing::Close).await.is_ok() {
            while self.tasks.join_next().await.is_some() {}
        }
    }
}

struct Reader<T> {
    source: SplitStream<WebSocketStream<T>>,
    rules: Rules,
    queues: HashMap<u8, InputQueue>,
    activity: Arc<Activity>,
}

impl<T: AsyncRead + AsyncWrite + Unpin> Reader<T> {
    async fn run(&mut self) -> Result<(), ChannelError> {
        while let Some(message) = self.source.next().await {
            let bytes = match message {
                Ok(Message::Binary(bytes)) => bytes,
                Ok(Message::Text(text)) => text.into(),
                Ok(Message::Close(_)) | Err(Error::ConnectionClosed) => return Ok(()),
                // tungstenite answers pings itself.
                Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_)) => continue,
                Err(error) => return Err(error.into()),
            };
            self.activity.touch();
            let Some((channel, bytes)) = read(self.rules.encoding, &bytes)? else { continue };
            if channel == CLOSE && self.rules.half_close {
                // The input ends when its queue is dropped.
                bytes.first().map(|closed| self.queues.remove(closed));
                continue;
            }
            let Some(queue) = self.queues.get(&channel) else { continue };
            let mut rest = bytes;
            while !rest.is_empty() {
                let chunk = rest.split_to(rest.len().min(MAX_CHUNK));
                // A handler that takes no more input has dropped its end; the bytes are for no one.
                if queue.queue.send(chunk).await.is_err() {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Ends all inputs: the client is gone.
    fn cut(&mut self) {
        for (_, queue) in self.queues.drain() {
            queue.reset();
        }
    }

    async fn discard(&mut self) {
        while let Some(Ok(_)) = self.source.next().await {}
    }
}

/// The channel of a message, and its bytes; `None` for an empty message, and for one in no channel.
fn read(encoding: Encoding, message: &Bytes) -> Result<Option<(u8, Bytes)>, ChannelError> {
    let Some(&first) = message.first() else { return Ok(None) };
    let rest = message.slice(1..);
    match encoding {
        Encoding::Binary => Ok(Some((first, rest))),
        Encoding::Base64 => {
            let Some(channel) = first.checked_sub(b'0') else { return Ok(None) };
            let bytes = STANDARD.decode(&rest).map_err(|_| ChannelError::NotBase64)?;
            Ok(Some((channel, bytes.into())))
        }
    }
}

/// A message with bytes for a channel.
fn message(encoding: Encoding, channel: u8, bytes: &[u8]) -> Message {
    match encoding {
        Encoding::Binary => {
            let mut message = BytesMut::with_capacity(bytes.len() + 1);
            message.put_u8(channel);
            message.put_slice(bytes);
            Message::Binary(message.freeze())
        }
        Encoding::Base64 => {
            // The characters after the digits stand for the channels after 9.
            let mut text = String::from(char::from(b'0'.saturating_add(channel)));
            STANDARD.encode_string(bytes, &mut text);
            Message::Text(text.into())
        }
    }
}

struct Writer<T> {
    sink: SplitSink<WebSocketStream<T>, Message>,
    rules: Rules,
    outgoing: mpsc::Receiver<Outgoing>,
    activity: Arc<Activity>,
}

impl<T: AsyncRead + AsyncWrite + Unpin> Writer<T> {
    /// Writes until the handler has closed the connection.
    async fn run(&mut self) -> Result<(), ChannelError> {
        let mut keep_alive = interval_at(Instant::now() + KEEP_ALIVE, KEEP_ALIVE);
        loop {
            let next = tokio::select! {
                outgoing = self.outgoing.recv() => match outgoing {
                    None | Some(Outgoing::Close) => return Ok(()),
                    Some(Outgoing::Data { stream, bytes }) => {
                        self.activity.touch();
                        message(self.rules.encoding, u8::try_from(stream).unwrap_or(u8::MAX), &bytes)
                    }
                    // These protocols have no sign for it.
                    Some(Outgoing::End { .. } | Outgoing::Reset { .. }) => continue,
                },
                // kubectl gives up when its pings stay unanswered for a minute. The reader sees none of them while the handler does not
                // take its input.
                _ = keep_alive.tick() => {
                    if self.activity.is_idle() {
                        return Err(ChannelError::Idle);
                    }
                    Message::Pong(Bytes::new())
                }
            };
            let limit = self.activity.limit();
            timeout(limit, self.sink.send(next)).await.map_err(|_| ChannelError::NotRead)??;
        }
    }
}

#[cfg(test)]
mod tests;
