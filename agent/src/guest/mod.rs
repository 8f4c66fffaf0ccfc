//! The guest agent inside a VM: gRPC over the control socket that `tart run` opens.
//!
//! The guest is not trusted: messages are bounded, what it says is parsed, and callers set a deadline wherever an answer is
//! due. (The answer to a command is not: a silent one says nothing until it ends.)

mod messages;

pub(crate) mod script;

use std::net::IpAddr;
use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use futures::{Stream, StreamExt, stream};
use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use messages::{
    CommandMessage, ExecRequest, ExecResponse, IoChunk, ResolveIpRequest, ResolveIpResponse, exec_request,
    exec_response,
};
use tokio::net::UnixStream;
use tokio::time::timeout;
use tonic::Request;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;
use tower::service_fn;

/// How much standard input goes into one message.
const CHUNK: usize = 32 << 10;
/// How much of the guest agent's words is passed on.
const MAX_WORDS: usize = 300;

/// A connection to the guest agent of one VM.
#[derive(Debug, Clone)]
pub(crate) struct Guest(tonic::client::Grpc<Channel>);

/// A call to the guest agent that failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GuestError {
    /// Nobody answers on the control socket, yet or any more.
    #[error("the guest agent does not answer")]
    Unreachable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The guest agent refused the call.
    #[error("the guest agent refused: {0}")]
    Refused(String),
    /// The program did not end in time.
    #[error("it did not end within {} s", .0.as_secs())]
    Late(Duration),
    /// The guest agent broke its own protocol.
    #[error("the guest agent answered nonsense: {0}")]
    Nonsense(String),
}

/// A program to be run in the guest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Exec {
    /// The program and its arguments; everybody in the guest can read them.
    pub(crate) argv: Vec<String>,
    /// Variables. Guest agents before 0.10 ignore them without a word.
    pub(crate) env: Vec<(String, String)>,
    /// What it can read.
    pub(crate) stdin: Stdin,
    /// Whether it gets a terminal.
    pub(crate) tty: bool,
}

/// The standard input of a program in the guest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Stdin {
    /// Nothing at all.
    #[default]
    Empty,
    /// This, and then its end.
    Bytes(Vec<u8>),
    /// Nothing yet, but it stays open.
    Open,
}

/// What is known of a program that has run.
#[derive(Debug)]
pub(crate) struct Completed {
    /// Its exit code; -1 means that a signal killed it. Some guest agents break off at a program's very end, and others never run it.
    pub(crate) end: Result<i32, GuestError>,
    /// The beginning of what it wrote to either output.
    pub(crate) output: Vec<u8>,
}

/// One piece of what a command in the guest does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ExecEvent {
    /// It runs. Older guest agents do not say so.
    Started,
    /// Bytes from its standard output.
    Stdout(Vec<u8>),
    /// Bytes from its standard error.
    Stderr(Vec<u8>),
    /// It ended with this code; -1 means that a signal killed it.
    Exit(i32),
}

impl Guest {
    /// Connects to the control socket at `socket`; `tart run` accepts before the guest agent listens.
    pub(crate) async fn connect(socket: &Path) -> Result<Self, GuestError> {
        let socket = socket.to_owned();
        let connector = service_fn(move |_| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        });
        // The address is never looked up: the connector knows the way.
        let channel = Endpoint::from_static("http://guest")
            .connect_with_connector(connector)
            .await
            .map_err(|error| GuestError::Unreachable(error.into()))?;
        Ok(Self(tonic::client::Grpc::new(channel)))
    }

    /// Asks the guest for its own address.
    pub(crate) async fn address(&mut self) -> Result<IpAddr, GuestError> {
        self.ready().await?;
        let codec = ProstCodec::<ResolveIpRequest, ResolveIpResponse>::default();
        let path = PathAndQuery::from_static("/Agent/ResolveIP");
        let answer = self.0.unary(Request::new(ResolveIpRequest {}), path, codec).await;
        let text = answer.map_err(|status| GuestError::of(&status))?.into_inner().ip;
        let address: Result<IpAddr, _> = text.trim().parse();
        // An IPv4 address is not to pass for another one in the form that IPv6 has for it.
        address.map(|address| address.to_canonical()).map_err(|_| {
            let start: String = text.chars().take(MAX_WORDS).collect();
            GuestError::Nonsense(format!("{start:?} is no address"))
        })
    }

    /// Starts a program. The guest kills it when the returned stream is dropped.
    pub(crate) async fn exec(
        &mut self,
        exec: Exec,
    ) -> Result<impl Stream<Item = Result<ExecEvent, GuestError>> + Unpin + use<>, GuestError> {
        self.ready().await?;
        let codec = ProstCodec::<ExecRequest, ExecResponse>::default();
        let path = PathAndQuery::from_static("/Agent/Exec");
        let answer = self.0.streaming(Request::new(requests(exec)), path, codec).await;
        let responses = answer.map_err(|status| GuestError::of(&status))?.into_inner();
        Ok(responses.filter_map(|item| {
            std::future::ready(match item {
                Ok(response) => ExecEvent::read(response).map(Ok),
                Err(status) => Some(Err(GuestError::of(&status))),
            })
        }))
    }

    /// Runs a program to its end, keeping no more than `keep` bytes of what it writes.
    pub(crate) async fn run(&mut self, exec: Exec, limit: Duration, keep: usize) -> Completed {
        let mut output = Vec::new();
        let run = async {
            let mut events = self.exec(exec).await?;
            while let Some(event) = events.next().await {
                match event? {
                    ExecEvent::Started => {}
                    ExecEvent::Stdout(bytes) | ExecEvent::Stderr(bytes) => {
                        let room = keep.saturating_sub(output.len());
                        output.extend_from_slice(&bytes[..bytes.len().min(room)]);
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

/// The command, then its standard input. The stream of requests stays open: its end would be the command's.
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

impl GuestError {
    fn of(status: &tonic::Status) -> Self {
        use std::error::Error as _;
        match status.code() {
            tonic::Code::Unavailable | tonic::Code::DeadlineExceeded | tonic::Code::Cancelled => {
                Self::Unreachable(status.clone().into())
            }
            // What the guest agent says itself has no further cause.
            _ if status.source().is_some() => Self::Unreachable(status.clone().into()),
            _ => Self::Refused(status.message().chars().take(MAX_WORDS).collect()),
        }
    }
}

impl ExecEvent {
    /// What a message says, unless it is one that only a newer guest agent knows.
    fn read(response: ExecResponse) -> Option<Self> {
        Some(match response.r#type? {
            exec_response::Type::StandardOutput(chunk) => Self::Stdout(chunk.data),
            exec_response::Type::StandardError(chunk) => Self::Stderr(chunk.data),
            exec_response::Type::Exit(exit) => Self::Exit(exit.code),
            exec_response::Type::Started(_) => Self::Started,
        })
    }
}
