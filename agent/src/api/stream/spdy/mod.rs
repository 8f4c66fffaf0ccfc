//! SPDY/3.1, as far as Kubernetes uses it: streams over one connection, half-closed and reset one by one.
//!
//! `frame` and `header_block` are pure: bytes in, frames out, and back. `connection` runs them over any pair of byte streams, so that it
//! serves a TLS connection and the messages of a WebSocket alike. The peer in Kubernetes knows no flow control: it ignores
//! `WINDOW_UPDATE`. The agent bounds its memory by not reading.

pub(crate) mod connection;
mod dictionary;
mod frame;
mod header_block;
