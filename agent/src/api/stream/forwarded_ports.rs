//! Connections that a client forwards to ports of a Pod, whatever its transport.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, sleep_until};

use super::spdy::connection::{Connection, Headers, Limits, Stream};
use super::websocket::channels::{Channels, Encoding, Rules};
use super::websocket::tunnel::Tunnel;
use super::{Input, Output, websocket};

pub(crate) const SPDY_PROTOCOLS: &[&str] = &["portforward.k8s.io"];
/// SPDY in the messages of a WebSocket.
const TUNNEL: &str = "SPDY/3.1+portforward.k8s.io";
pub(crate) const WEB_SOCKET_PROTOCOLS: &[&str] = &[TUNNEL, "v4.channel.k8s.io", "v4.base64.channel.k8s.io"];
/// How long the client may take to open the second stream of a connection.
const CREATION_LIMIT: Duration = Duration::from_secs(30);
const IDLE_LIMIT: Duration = Duration::from_hours(4);
/// Each connection takes two streams. One that its server does not read must not hold up all others.
const LIMITS: Limits = Limits { streams: 512, idle: IDLE_LIMIT, stall: Some(Duration::from_secs(30)) };
/// Ports of one WebSocket: two channels each, of 255.
const MAX_PORTS: usize = 100;

/// A connection to one port.
#[derive(Debug)]
pub(crate) struct ForwardedConnection {
    pub(crate) port: u16,
    pub(crate) input: Input,
    pub(crate) output: Output,
    /// Where the client reads why the connection failed.
    pub(crate) error: Output,
    /// Whether the client learns of the end of one direction. The channels of a WebSocket have no sign for it, so that such a connection ends
    /// with its server's output.
    pub(crate) half_close: bool,
}

/// The connections of one client.
#[derive(Debug)]
pub(crate) struct ForwardedPorts {
    link: Link,
    /// Connections of which one stream is open.
    halves: HashMap<(String, u16), Half>,
    /// Connections of a WebSocket that were not taken yet.
    ready: Vec<ForwardedConnection>,
}

#[derive(Debug)]
enum Link {
    Spdy(Connection),
    WebSocket(Channels),
}

#[derive(Debug)]
struct Half {
    stream: Stream,
    kind: StreamType,
    deadline: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StreamType {
    Data,
    Error,
}

impl ForwardedPorts {
    pub(crate) fn over_spdy<T>(io: T) -> Self
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let link = Link::Spdy(Connection::new(io, LIMITS));
        Self { link, halves: HashMap::new(), ready: Vec::new() }
    }

    /// `ports` are those of the query, which only the protocols of channels need.
    pub(crate) async fn over_web_socket<T>(io: T, protocol: Option<&str>, ports: &[u16]) -> Self
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let messages = websocket::open(io).await;
        let protocol = protocol.unwrap_or("v4.channel.k8s.io");
        if protocol == TUNNEL {
            return Self::over_spdy(Tunnel::new(messages));
        }
        let encoding = if protocol.contains("base64") { Encoding::Base64 } else { Encoding::Binary };
        let numbered = || (0_u8..).step_by(2).zip(ports.iter().copied());
        let inputs: Vec<u8> = numbered().map(|(channel, _)| channel).collect();
        let mut channels =
            Channels::new(messages, Rules { encoding, half_close: false }, &inputs, IDLE_LIMIT);
        let mut ready = Vec::new();
        for (channel, port) in numbered() {
            let Some(input) = channels.input(channel) else { continue };
            let (mut output, mut error) = (channels.output(channel), channels.output(channel + 1));
            let number = Bytes::copy_from_slice(&port.to_le_bytes());
            // A client that is gone is found out when its connection is taken.
            let _ = output.write(number.clone()).await;
            let _ = error.write(number).await;
            ready.push(ForwardedConnection { port, input, output, error, half_close: false });
        }
        ready.reverse();
        Self { link: Link::WebSocket(channels), halves: HashMap::new(), ready }
    }

    /// Whether a protocol needs the ports of the query.
    pub(crate) fn needs_ports(protocol: Option<&str>) -> bool {
        protocol != Some(TUNNEL)
    }

    /// Whether all connections were taken. A client of SPDY can open another one at any time.
    pub(crate) fn is_exhausted(&self) -> bool {
        matches!(self.link, Link::WebSocket(_)) && self.ready.is_empty()
    }

    /// Sends all that was written, and closes the client's connection: the one sign that a WebSocket has for the end of all ports.
    pub(crate) async fn close(self) {
        match self.link {
            Link::Spdy(connection) => connection.close().await,
            Link::WebSocket(channels) => channels.close().await,
        }
    }

    /// The next connection; `None` when the client is gone.
    pub(crate) async fn accept(&mut self) -> Option<ForwardedConnection> {
        let connection = match &mut self.link {
            Link::WebSocket(channels) => {
                if let Some(connection) = self.ready.pop() {
                    return Some(connection);
                }
                channels.closed().wait().await;
                return None;
            }
            Link::Spdy(connection) => connection,
        };
        loop {
            let overdue = self.halves.values().map(|half| half.deadline).min();
            let expiry = async {
                match overdue {
                    Some(deadline) => sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
            };
            let stream = tokio::select! {
                stream = connection.accept() => stream?,
                () = expiry => {
                    // A stream that is dropped is reset.
                    self.halves.retain(|_, half| half.deadline > Instant::now());
                    continue;
                }
            };
            let Some((id, port, kind)) = read(&stream.headers) else { continue };
            match self.halves.remove(&(id.clone(), port)) {
                Some(other) if other.kind != kind => {
                    let (data, error) = if kind == StreamType::Data {
                        (stream, other.stream)
                    } else {
                        (other.stream, stream)
                    };
                    let Stream { input, output, .. } = data;
                    let error = error.output;
                    return Some(ForwardedConnection { port, input, output, error, half_close: true });
                }
                _ => {
                    let deadline = Instant::now() + CREATION_LIMIT;
                    self.halves.insert((id, port), Half { stream, kind, deadline });
                }
            }
        }
    }
}

/// Which connection a stream belongs to: the client's number for it, and the port.
fn read(headers: &Headers) -> Option<(String, u16, StreamType)> {
    let kind = match headers.get("streamtype")? {
        "data" => StreamType::Data,
        "error" => StreamType::Error,
        _ => return None,
    };
    let port = headers.get("port")?.parse().ok().filter(|port| *port > 0)?;
    Some((headers.get("requestid")?.to_owned(), port, kind))
}

/// The ports of a query, each value a list; an error in the words of the kubelet.
pub(crate) fn parse_ports<'a>(values: impl Iterator<Item = &'a str>) -> Result<Vec<u16>, String> {
    let mut ports = Vec::new();
    for word in values.flat_map(|value| value.split(',')) {
        let port = word.parse().map_err(|_| format!("unable to parse {word:?} as a port"))?;
        if port == 0 {
            return Err("port must be > 0".to_owned());
        }
        ports.push(port);
    }
    match ports.len() {
        0 => Err("query parameter \"port\" is required".to_owned()),
        number if number > MAX_PORTS => Err(format!("at most {MAX_PORTS} ports can be forwarded at once")),
        _ => Ok(ports),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::stream::spdy::connection::tests::Client;

    #[tokio::test(start_paused = true)]
    async fn a_stream_whose_other_half_does_not_come_in_time_is_reset() {
        let (mut client, server) = Client::connect();
        let mut forwarded = ForwardedPorts::over_spdy(server);
        let accept = tokio::spawn(async move { forwarded.accept().await.map(|connection| connection.port) });
        let half = |id, kind| [("streamtype", kind), ("port", "80"), ("requestid", id)];
        let begin = Instant::now();
        client.open(1, &half("0", "error")).await;
        client.until_reset(1).await;
        assert!((CREATION_LIMIT..CREATION_LIMIT * 2).contains(&begin.elapsed()));
        // The second half is too late, and waits for another first one.
        client.open(3, &half("0", "data")).await;
        client.open(5, &half("1", "error")).await;
        client.open(7, &half("1", "data")).await;
        assert_eq!(accept.await.unwrap(), Some(80));
    }

    #[test]
    fn the_ports_of_a_query_are_lists_of_numbers() {
        let of = |values: &[&str]| parse_ports(values.iter().copied());
        assert_eq!(of(&["80", "443,8080"]), Ok(vec![80, 443, 8080]));
        for wrong in [&[][..], &["0"], &["80,x"], &["65536"], &[""]] {
            assert!(of(wrong).is_err(), "{wrong:?}");
        }
        assert!(of(&["1"; 101]).is_err());
    }
}
