//! WebSocket, the server's side, after a handshake that the HTTP server has made.
//!
//! `channels` gives the first byte of each message the meaning of a stream's number. `tunnel` takes the messages for one stream of bytes,
//! with SPDY inside.

pub(crate) mod channels;
pub(crate) mod tunnel;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};

/// The longest message that a client may send. kubectl sends 32 KiB at a time.
const MAX_MESSAGE: usize = 4 << 20;
const READ: usize = 16 << 10;
/// The longest message that the agent sends is a chunk in base64.
const MAX_UNSENT: usize = 256 << 10;

/// The value of `Sec-WebSocket-Accept` for a client's `Sec-WebSocket-Key`.
pub(crate) fn accept_key(key: &[u8]) -> String {
    derive_accept_key(key)
}

/// The messages on a connection that the client has made a WebSocket.
pub(crate) async fn open<T: AsyncRead + AsyncWrite + Unpin>(io: T) -> WebSocketStream<T> {
    let config = WebSocketConfig::default()
        .read_buffer_size(READ)
        .write_buffer_size(0)
        .max_write_buffer_size(MAX_UNSENT)
        .max_message_size(Some(MAX_MESSAGE))
        .max_frame_size(Some(MAX_MESSAGE));
    WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await
}

/// The end of a connection: a client takes any other code than 1000 for an error.
fn goodbye(code: CloseCode) -> Message {
    Message::Close(Some(CloseFrame { code, reason: "".into() }))
}
