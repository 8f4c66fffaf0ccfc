//! The guest agent inside a VM: gRPC over the control socket that `tart run` opens.
//!
//! The guest is not trusted: messages are bounded, answers are parsed, and callers set a deadline. Only the container's command has none:
//! a silent one sends nothing until it ends.

pub(crate) mod connections;
mod messages;

pub(crate) mod script;

use std::net::IpAddr;
use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use messages::{
    CommandMessage, ExecRequest, ExecResponse, IoChunk, ResolveIpRequest, ResolveIpResponse, TerminalSize,
    exec_request, exec_response,
};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tonic::Request;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;
use tower::service_fn;

/// The name of the socket in a VM's directory that `tart run` forwards to the guest agent.
pub(crate) const CONTROL_SOCKET: &str = "control.sock";
/// Standard input in one message.
const CHUNK: usize = 32 << 10;
/// How much of one command's output waits for the agent to take it, and how much of all commands'. A client that does not read holds up its
/// own command only.
const STREAM_WINDOW: u32 = 128 << 10;
const CONNECTION_WINDOW: u32 = 16 << 20;
/// How much more than it keeps the host reads of a command's output. A guest that writes without end would cost the agent a core.
const MAX_DRAINED: usize = 1 << 20;
/// How much of the guest agent's words an error quotes.
const MAX_QUOTE: usize = 300;

/// A connection to the guest agent of one VM.
#[derive(Debug, Clone)]
pub(crate) struct Guest(tonic::client::Grpc<Channel>);

#[derive(Debug, thiserror::Error)]
pub(crate) enum GuestError {
    /// The guest agent does not answer on the control socket.
    #[error("the guest agent does not answer")]
    Unreachable(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the guest agent refused: {0}")]
    Refused(String),
    #[error("it did not end within {} s", .0.as_secs())]
    Late(Duration),
    #[error("it wrote more than {} MiB, and was ended", .0 >> 20)]
    Flood(usize),
    #[error("the guest agent answered nonsense: {0}")]
    Nonsense(String),
}

/// A program to be run in the guest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Exec {
    /// The program and its arguments; every user of the guest can read them.
    pub(crate) argv: Vec<String>,
    /// Guest agents before 0.10 ignore them silently.
    pub(crate) env: Vec<(String, String)>,
    pub(crate) stdin: Stdin,
    pub(crate) tty: bool,
}

/// The standard input of a program in the guest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Stdin {
    #[default]
    Empty,
    /// These bytes, then the end.
    Bytes(Vec<u8>),
    /// No bytes, but it stays open.
    Open,
}

/// What a program in the guest is given while it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ExecInput {
    /// A part of its standard input.
    Stdin(Bytes),
    /// The end of its standard input; a terminal is sent the character for it.
    EndOfStdin,
    /// The size of its terminal.
    Resize { rows: u16, columns: u16 },
}

/// The end of a program.
#[derive(Debug)]
pub(crate) struct Completed {
    /// Its exit code; -1 after a signal. Some guest agents close the connection as a program ends, and lose its exit code.
    pub(crate) end: Result<i32, GuestError>,
    /// The beginning of its output, stdout and stderr.
    pub(crate) output: Vec<u8>,
}

/// A message about a command in the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ExecEvent {
    /// Older guest agents do not send it.
    Started,
    Stdout(Vec<u8>),
    Stderr(Vec<u8>),
    /// The exit code; -1 after a signal.
    Exit(i32),
}

impl Guest {
    /// Connects to the control socket at `socket`; `tart run` accepts before the guest agent listens.
    pub(crate) async fn connect(socket: &Path) -> Result<Self, GuestError> {
        let channel = endpoint()
            .connect_with_connector(connector(socket))
            .await
            .map_err(|error| GuestError::Unreachable(error.into()))?;
        Ok(Self(tonic::client::Grpc::new(channel)))
    }

    /// A guest that is connected to by the first call, and again by the first call after the connection broke.
    pub(crate) fn new(socket: &Path) -> Self {
        Self(tonic::client::Grpc::new(endpoint().connect_with_connector_lazy(connector(socket))))
    }

    /// The address that the guest says it has.
    pub(crate) async fn address(&mut self) -> Result<IpAddr, GuestError> {
        self.ready().await?;
        let codec = ProstCodec::<ResolveIpRequest, ResolveIpResponse>::default();
        let path = PathAndQuery::from_static("/Agent/ResolveIP");
        let answer = self.0.unary(Request::new(ResolveIpRequest {}), path, codec).await;
        let text = answer.map_err(|status| GuestError::of(&status))?.into_inner().ip;
        let address: Result<IpAddr, _> = text.trim().parse();
        // An IPv4 address must not pass as a different one in its IPv6 form.
        address.map(|address| address.to_canonical()).map_err(|_| {
            let start: String = text.chars().take(MAX_QUOTE).collect();
            GuestError::Nonsense(format!("{start:?} is no address"))
        })
    }

    /// Starts a program. The guest kills it when the returned stream is dropped.
    pub(crate) async fn exec(
        &mut self,
        exec: Exec,
    ) -> Result<impl Stream<Item = Result<ExecEvent, GuestError>> + Unpin + use<>, GuestError> {
        self.start(requests(exec)).await
    }

    /// Starts a program that is given what `inputs` has, besides what `stdin` of it says. It returns only with the program's first message,
    /// and the program may wait for input before that.
    pub(crate) async fn exec_interactively(
        &mut self,
        exec: Exec,
        inputs: mpsc::Receiver<ExecInput>,
    ) -> Result<impl Stream<Item = Result<ExecEvent, GuestError>> + Unpin + use<>, GuestError> {
        let interactive = exec.stdin != Stdin::Empty;
        let command = exec_request::Type::Command(CommandMessage::new(exec, interactive));
        let inputs = stream::unfold(inputs, async |mut inputs| Some((inputs.recv().await?.into(), inputs)));
        let types = stream::iter([command]).chain(inputs).chain(stream::pending());
        self.start(types.map(|part| ExecRequest { r#type: Some(part) }).boxed()).await
    }

    async fn start(
        &mut self,
        requests: Pin<Box<dyn Stream<Item = ExecRequest> + Send>>,
    ) -> Result<impl Stream<Item = Result<ExecEvent, GuestError>> + Unpin + use<>, GuestError> {
        self.ready().await?;
        let codec = ProstCodec::<ExecRequest, ExecResponse>::default();
        let path = PathAndQuery::from_static("/Agent/Exec");
        let answer = self.0.streaming(Request::new(requests), path, codec).await;
        let responses = answer.map_err(|status| GuestError::of(&status))?.into_inner();
        Ok(responses.filter_map(|item| {
            std::future::ready(match item {
                Ok(response) => ExecEvent::read(response).map(Ok),
                Err(status) => Some(Err(GuestError::of(&status))),
            })
        }))
    }

    /// Runs a program to its end, and keeps at most `keep` bytes of its output. One that writes 1 MiB more is ended.
    pub(crate) async fn run(&mut self, exec: Exec, limit: Duration, keep: usize) -> Completed {
        self.run_and_drain(exec, limit, keep, MAX_DRAINED).await
    }

    /// The same with another bound: a program that writes `drain` bytes more than are kept is ended.
    pub(crate) async fn run_and_drain(
        &mut self,
        exec: Exec,
        limit: Duration,
        keep: usize,
        drain: usize,
    ) -> Completed {
        let (mut output, mut drained) = (Vec::new(), 0);
        let run = async {
            let mut events = self.exec(exec).await?;
            while let Some(event) = events.next().await {
                match event? {
                    ExecEvent::Started => {}
                    ExecEvent::Stdout(bytes) | ExecEvent::Stderr(bytes) => {
                        let (kept, rest) = bytes.split_at(bytes.len().min(keep.saturating_sub(output.len())));
                        output.extend_from_slice(kept);
                        drained += rest.len();
                        if drained > drain {
                            return Err(GuestError::Flood(drain));
                        }
                    }
                    ExecEvent::Exit(code) => return Ok(code),
                }
            }
            Err(GuestError::Nonsense("a command without an end".to_owned()))
        };
        let end = timeout(limit, run).await.unwrap_or(Err(GuestError::Late(limit)));
        Completed { end, output }
    }

    async fn ready(&mut self) -> Result<(), GuestError> {
        self.0.ready().await.map_err(|error| GuestError::Unreachable(error.into()))
    }
}

/// The connector ignores the address.
fn endpoint() -> Endpoint {
    Endpoint::from_static("http://guest")
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
}

fn connector(
    socket: &Path,
) -> impl tower::Service<http::Uri, Response = TokioIo<UnixStream>, Error = std::io::Error, Future: Send>
+ Send
+ use<> {
    let socket = socket.to_owned();
    service_fn(move |_| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    })
}

/// The command, then its standard input. The stream stays open: the guest agent would kill the command at its end.
fn requests(exec: Exec) -> Pin<Box<dyn Stream<Item = ExecRequest> + Send>> {
    let interactive = exec.stdin != Stdin::Empty;
    let bytes = match &exec.stdin {
        Stdin::Bytes(bytes) => Some(bytes.clone()),
        Stdin::Empty | Stdin::Open => None,
    };
    let request = |part| ExecRequest { r#type: Some(part) };
    let mut first = vec![request(exec_request::Type::Command(CommandMessage::new(exec, interactive)))];
    if let Some(bytes) = bytes {
        let chunks = bytes.chunks(CHUNK).map(<[u8]>::to_vec);
        // An empty chunk is the end of the input.
        first.extend(
            chunks
                .chain([Vec::new()])
                .map(|data| request(exec_request::Type::StandardInput(IoChunk { data }))),
        );
    }
    stream::iter(first).chain(stream::pending()).boxed()
}

impl From<ExecInput> for exec_request::Type {
    fn from(input: ExecInput) -> Self {
        match input {
            ExecInput::Stdin(bytes) => Self::StandardInput(IoChunk { data: bytes.into() }),
            // An empty chunk is the end of the input.
            ExecInput::EndOfStdin => Self::StandardInput(IoChunk { data: Vec::new() }),
            ExecInput::Resize { rows, columns } => {
                Self::TerminalResize(TerminalSize { rows: rows.into(), cols: columns.into() })
            }
        }
    }
}

impl GuestError {
    fn of(status: &tonic::Status) -> Self {
        use std::error::Error as _;
        match status.code() {
            tonic::Code::Unavailable | tonic::Code::DeadlineExceeded | tonic::Code::Cancelled => {
                Self::Unreachable(status.clone().into())
            }
            // An answer of the guest agent itself has no source.
            _ if status.source().is_some() => Self::Unreachable(status.clone().into()),
            _ => Self::Refused(status.message().chars().take(MAX_QUOTE).collect()),
        }
    }
}

impl ExecEvent {
    /// `None` for a message that only a newer guest agent knows.
    fn read(response: ExecResponse) -> Option<Self> {
        Some(match response.r#type? {
            exec_response::Type::StandardOutput(chunk) => Self::Stdout(chunk.data),
            exec_response::Type::StandardError(chunk) => Self::Stderr(chunk.data),
            exec_response::Type::Exit(exit) => Self::Exit(exit.code),
            exec_response::Type::Started(_) => Self::Started,
        })
    }
}
