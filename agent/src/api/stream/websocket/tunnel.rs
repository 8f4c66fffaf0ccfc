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
                Some(Ok(Message::Close(_))) | None => return Poll::Ready(Ok(())),
                // A client that goes without a goodbye has ended, too.
                Some(Err(
                    Error::ConnectionClosed
                    | Error::AlreadyClosed
                    | Error::Protocol(ProtocolError::ResetWithoutClosingHandshake),
                )) => return Poll::Ready(Ok(())),
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
