//! The streams of a command: what exec and attach see of a client, whatever its transport.

mod status;
mod terminal;

pub(crate) use status::CommandStatus;
pub(crate) use terminal::{Resizes, TerminalSize};

use std::collections::HashMap;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tracing::debug;

use super::spdy::connection::{Connection, Limits, Stream};
use super::websocket::channels::{Channels, Encoding, Rules};
use super::{Closed, Input, Output, websocket};

/// The protocols of SPDY, the newest first. v5 is for `WebSockets` only.
pub(crate) const SPDY_PROTOCOLS: &[&str] =
    &["v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io"];
/// The protocols of `WebSockets`.
pub(crate) const WEB_SOCKET_PROTOCOLS: &[&str] = &[
    "v5.channel.k8s.io",
    "v4.channel.k8s.io",
    "v4.base64.channel.k8s.io",
    "channel.k8s.io",
    "base64.channel.k8s.io",
];
/// How long the client may take to open all its streams.
const CREATION_LIMIT: Duration = Duration::from_secs(30);
/// How long no data may pass.
const IDLE_LIMIT: Duration = Duration::from_hours(4);
/// A client opens five streams at most.
const LIMITS: Limits = Limits { streams: 16, idle: IDLE_LIMIT, stall: None };

/// The channels of a WebSocket.
const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;

/// What the client asks for in its query.
#[allow(clippy::struct_excessive_bools, reason = "each is a parameter of the query")]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) stdin: bool,
    pub(crate) stdout: bool,
    pub(crate) stderr: bool,
    pub(crate) tty: bool,
}

/// The version of a protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Version {
    V1,
    V2,
    V3,
    V4,
    V5,
}

impl Version {
    fn of(protocol: &str) -> Self {
        match protocol.split_once('.') {
            Some(("v2", _)) => Self::V2,
            Some(("v3", _)) => Self::V3,
            Some(("v4", _)) => Self::V4,
            Some(("v5", _)) => Self::V5,
            _ => Self::V1,
        }
    }
}

#[derive(Debug)]
enum Link {
    Spdy(Connection),
    WebSocket(Channels),
}

/// A client's end of a command.
#[derive(Debug)]
pub(crate) struct RemoteCommand {
    pub(crate) stdin: Option<Input>,
    pub(crate) stdout: Option<Output>,
    /// Absent with a terminal, which has one output.
    pub(crate) stderr: Option<Output>,
    pub(crate) resizes: Option<Resizes>,
    /// The other sides of the client's inputs: a client takes the end of one for the end of the input.
    unused: Vec<Output>,
    error: Output,
    version: Version,
    link: Link,
}

impl RemoteCommand {
    /// Waits for the client's streams. `None` when the client did not open them in time, or is gone.
    pub(crate) async fn over_spdy<T>(io: T, protocol: &str, wanted: Wanted) -> Option<Self>
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let version = Version::of(protocol);
        let mut connection = Connection::new(io, LIMITS);
        let Ok(streams) = timeout(CREATION_LIMIT, accept(&mut connection, &expected(wanted, version))).await
        else {
            debug!("a client has not opened its streams in time");
            return None;
        };
        let mut streams = streams?;
        let mut take = |name: &str| streams.remove(name);
        let error = take("error")?.output;
        let (stdout, stderr) = (take("stdout"), take("stderr"));
        let mut unused = Vec::new();
        let mut input = |stream: Option<Stream>| {
            let Stream { input, output, .. } = stream?;
            unused.push(output);
            Some(input)
        };
        let (stdin, resizes) = (input(take("stdin")), input(take("resize")));
        Some(Self {
            stdin,
            stdout: stdout.map(|stream| stream.output),
            stderr: stderr.map(|stream| stream.output),
            resizes: resizes.map(Resizes::new),
            unused,
            error,
            version,
            link: Link::Spdy(connection),
        })
    }

    /// Takes the channels of a WebSocket; without a protocol it is `channel.k8s.io`.
    pub(crate) async fn over_web_socket<T>(io: T, protocol: Option<&str>, wanted: Wanted) -> Self
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let protocol = protocol.unwrap_or("channel.k8s.io");
        let version = Version::of(protocol);
        let encoding = if protocol.contains("base64") { Encoding::Base64 } else { Encoding::Binary };
        let rules = Rules { encoding, half_close: version >= Version::V5 };
        let messages = websocket::open(io).await;
        let mut channels = Channels::new(messages, rules, &[STDIN, RESIZE], IDLE_LIMIT);
        let (stdin, resizes) = (channels.input(STDIN), channels.input(RESIZE));
        let stdout = wanted.stdout.then(|| channels.output(STDOUT));
        let stderr = (wanted.stderr && !wanted.tty).then(|| channels.output(STDERR));
        let first = if wanted.stdout { STDOUT } else { stderr.as_ref().map_or(ERROR, |_| STDERR) };
        channels.announce(first).await;
        Self {
            stdin: stdin.filter(|_| wanted.stdin),
            stdout,
            stderr,
            resizes: resizes.filter(|_| wanted.tty).map(Resizes::new),
            unused: Vec::new(),
            error: channels.output(ERROR),
            version,
            link: Link::WebSocket(channels),
        }
    }

    /// Tells that the client is gone.
    pub(crate) fn closed(&self) -> Closed {
        match &self.link {
            Link::Spdy(connection) => connection.closed(),
            Link::WebSocket(channels) => channels.closed(),
        }
    }

    /// Ends all outputs, tells how the command ended, and closes the connection.
    pub(crate) async fn finish(self, status: CommandStatus) {
        let Self { stdin, stdout, stderr, resizes, unused, mut error, version, link } = self;
        drop((stdin, resizes));
        // A client that is gone needs no goodbye.
        let told = async {
            for output in [stdout, stderr].into_iter().flatten() {
                output.end().await?;
            }
            for output in unused {
                // The client may have reset it.
                let _ = output.end().await;
            }
            if let Some(message) = status.message(version) {
                error.write(message.into()).await?;
            }
            error.end().await
        };
        if told.await.is_ok() {
            match link {
                Link::Spdy(connection) => connection.close().await,
                Link::WebSocket(channels) => channels.close().await,
            }
        }
    }
}

/// The streams that a client of SPDY opens for what it wants.
fn expected(wanted: Wanted, version: Version) -> Vec<&'static str> {
    let Wanted { stdin, stdout, stderr, tty } = wanted;
    let all = [
        ("error", true),
        ("stdin", stdin),
        ("stdout", stdout),
        ("stderr", stderr && !tty),
        ("resize", tty && version >= Version::V3),
    ];
    all.into_iter().filter(|(_, is_wanted)| *is_wanted).map(|(name, _)| name).collect()
}

/// Waits for all streams of these types. Others, and second ones, are reset.
async fn accept(connection: &mut Connection, expected: &[&str]) -> Option<HashMap<String, Stream>> {
    let mut streams = HashMap::new();
    while streams.len() < expected.len() {
        let stream = connection.accept().await?;
        let kind = stream.headers.get("streamtype").unwrap_or_default().to_owned();
        if expected.contains(&kind.as_str()) && !streams.contains_key(&kind) {
            streams.insert(kind, stream);
        }
    }
    Some(streams)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::stream::spdy::connection::tests::Client;
    use tokio::time::Instant;

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_open_all_its_streams_in_time_is_given_up() {
        let (mut client, server) = Client::connect();
        client.open(1, &[("streamtype", "error")]).await;
        client.open(3, &[("streamtype", "other")]).await;
        let (wanted, begin) = (Wanted { stdout: true, ..Wanted::default() }, Instant::now());
        assert!(RemoteCommand::over_spdy(server, "v4.channel.k8s.io", wanted).await.is_none());
        assert!((CREATION_LIMIT..CREATION_LIMIT * 2).contains(&begin.elapsed()));
    }

    #[test]
    fn a_client_opens_the_streams_that_it_asks_for() {
        let all = Wanted { stdin: true, stdout: true, stderr: true, tty: false };
        assert_eq!(expected(all, Version::V4), ["error", "stdin", "stdout", "stderr"]);
        let tty = Wanted { tty: true, ..all };
        assert_eq!(expected(tty, Version::V4), ["error", "stdin", "stdout", "resize"]);
        assert_eq!(expected(tty, Version::V2), ["error", "stdin", "stdout"]);
    }

    #[test]
    fn a_protocol_has_its_version() {
        for (protocol, version) in [
            ("channel.k8s.io", Version::V1),
            ("base64.channel.k8s.io", Version::V1),
            ("v2.channel.k8s.io", Version::V2),
            ("v4.base64.channel.k8s.io", Version::V4),
            ("v5.channel.k8s.io", Version::V5),
        ] {
            assert_eq!(Version::of(protocol), version, "{protocol}");
        }
    }
}
