//! A stream of bytes in the messages of a WebSocket: `SPDY/3.1+portforward.k8s.io`. Messages may be cut anywhere.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use futures::{Sink, Stream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::error::ProtocolError;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error, Message};

use super::goodbye;

/// How much one message carries.
const MAX_PART: usize = 32 << 10;

#[derive(Debug)]
pub(crate) struct Tunnel<T> {
    messages: WebSocketStream<T>,
    /// The rest of the last message.
    rest: Bytes,
    /// Whether the close message is on its way.
    closing: bool,
}

impl<T> Tunnel<T> {
    pub(crate) fn new(messages: WebSocketStream<T>) -> Self {
        Self { messages, rest: Bytes::new(), closing: false }
    }
}

fn broken(error: Error) -> io::Error {
    match error {
        Error::Io(error) => error,
        error => io::Error::new(io::ErrorKind::InvalidData, error),
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncRead for Tunnel<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.rest.is_empty() {
            match ready!(Pin::new(&mut self.messages).poll_next(context)) {
                Some(Ok(Message::Binary(bytes))) => self.rest = bytes,
                Some(Ok(Message::Text(text))) => self.rest = text.into(),
                // A client that goes without a goodbye has ended, too.
                None
                | Some(
                    Ok(Message::Close(_))
                    | Err(
                        Error::ConnectionClosed
                        | Error::AlreadyClosed
                        | Error::Protocol(ProtocolError::ResetWithoutClosingHandshake),
                    ),
                ) => return Poll::Ready(Ok(())),
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
                Some(Err(error)) => return Poll::Ready(Err(broken(error))),
            }
        }
        let length = self.rest.len().min(buffer.remaining());
        buffer.put_slice(&self.rest[..length]);
        self.rest.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Tunnel<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(Pin::new(&mut self.messages).poll_ready(context)).map_err(broken)?;
        let length = bytes.len().min(MAX_PART);
        let message = Message::Binary(Bytes::copy_from_slice(&bytes[..length]));
        Pin::new(&mut self.messages).start_send(message).map_err(broken)?;
        Poll::Ready(Ok(length))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.messages).poll_flush(context).map_err(broken)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.closing {
            ready!(Pin::new(&mut self.messages).poll_ready(context)).map_err(broken)?;
            self.closing = true;
            Pin::new(&mut self.messages).start_send(goodbye(CloseCode::Normal)).map_err(broken)?;
        }
        self.poll_flush(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::stream::spdy::connection::{Connection, Limits, Stream as SpdyStream};
    use crate::api::stream::websocket;
    use futures::SinkExt as _;
    use std::time::Duration;
    use tokio::io::AsyncWriteExt as _;
    use tokio_tungstenite::tungstenite::protocol::Role;

    /// What a handler of SPDY gets of each stream: its headers and its bytes. A client that has closed its side and then goes may be seen as
    /// one that is gone.
    async fn streams(io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Vec<String> {
        let limits = Limits { streams: 8, idle: Duration::from_hours(4), stall: None };
        let (mut connection, mut streams) = (Connection::new(io, limits), Vec::new());
        while let Some(SpdyStream { headers, mut input, output }) = connection.accept().await {
            streams.push(tokio::spawn(async move {
                let _output = output;
                let mut bytes = Vec::new();
                while let Ok(Some(part)) = input.recv().await {
                    bytes.extend(part);
                }
                format!("{headers:?} {bytes:?}")
            }));
        }
        futures::future::join_all(streams).await.into_iter().map(Result::unwrap).collect()
    }

    /// SPDY in the messages of a WebSocket is the same as without, wherever the messages are cut.
    #[test]
    fn fuzz_a_tunnel() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let mut random = fastrand::Rng::with_seed(18);
        crate::fuzz::run(include_str!("../corpus/spdy.txt"), |bytes| {
            runtime.block_on(async {
                let (mut client, server) = tokio::io::duplex(64 << 10);
                client.write_all(bytes).await.unwrap();
                client.shutdown().await.unwrap();
                let expected = streams(server).await;
                let (client, server) = tokio::io::duplex(64 << 10);
                let mut client = WebSocketStream::from_raw_socket(client, Role::Client, None).await;
                let mut rest = Bytes::copy_from_slice(bytes);
                while !rest.is_empty() {
                    let part = rest.split_to(random.usize(..=rest.len().min(50)));
                    client.send(Message::Binary(part)).await.unwrap();
                    if random.u8(..8) == 0 {
                        client.send(Message::Ping(Bytes::from_static(b"?"))).await.unwrap();
                    }
                }
                client.send(Message::Close(None)).await.unwrap();
                assert_eq!(streams(Tunnel::new(websocket::open(server).await)).await, expected);
            });
        });
    }
}
