//! A client of the guest agent, through a VM's control socket.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use nix::sys::socket::{MsgFlags, recv};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::{EXEC_PATH, ExecRequest, ExecResponse, RESOLVE_IP_PATH, ResolveIpRequest, ResolveIpResponse};

/// How long to wait before the next attempt to connect.
const RETRY_AFTER: Duration = Duration::from_millis(20);

/// The type byte of an HTTP/2 frame header, and the type that every server sends first.
const FRAME_TYPE: (usize, u8) = (3, 4);

/// A connection to a guest agent that answers.
#[derive(Debug)]
pub(crate) struct Client(tonic::client::Grpc<Channel>);

impl Client {
    /// Connects to the socket, trying again until the agent answers or the time is over.
    pub(crate) async fn connect(socket: &Path, patience: Duration) -> Option<Self> {
        let deadline = Instant::now() + patience;
        timeout_at(deadline, async {
            loop {
                match Self::attempt(socket).await {
                    Ok(client) => return client,
                    Err(_) => sleep(RETRY_AFTER).await,
                }
            }
        })
        .await
        .ok()
    }

    async fn attempt(socket: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(socket).await?;
        wait_for_server(&stream).await?;
        let mut stream = Some(TokioIo::new(stream));
        let channel = Endpoint::from_static("http://guest")
            .connect_with_connector(tower::service_fn(move |_| {
                std::future::ready(stream.take().ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected)))
            }))
            .await
            .map_err(io::Error::other)?;
        Ok(Self(tonic::client::Grpc::new(channel)))
    }

    /// Starts a command: the first request has to carry it.
    pub(crate) async fn exec(
        &mut self,
        requests: ReceiverStream<ExecRequest>,
    ) -> Result<Streaming<ExecResponse>, Status> {
        self.ready().await?;
        let path = PathAndQuery::from_static(EXEC_PATH);
        let response = self.0.streaming(Request::new(requests), path, ProstCodec::default()).await?;
        Ok(response.into_inner())
    }

    /// Asks for the guest's address.
    pub(crate) async fn resolve_ip(&mut self) -> Result<Ipv4Addr, Status> {
        self.ready().await?;
        let path = PathAndQuery::from_static(RESOLVE_IP_PATH);
        let codec = ProstCodec::<ResolveIpRequest, ResolveIpResponse>::default();
        let response = self.0.unary(Request::new(ResolveIpRequest {}), path, codec).await?;
        response.into_inner().ip.parse().map_err(|_| Status::internal("not an IPv4 address"))
    }

    async fn ready(&mut self) -> Result<(), Status> {
        self.0.ready().await.map_err(|error| Status::unavailable(error.to_string()))
    }
}

/// Waits until the server greets. The socket accepts before the agent answers, so a connection alone is no answer.
async fn wait_for_server(stream: &UnixStream) -> io::Result<()> {
    let mut greeting = [0; 9];
    let length = stream
        .async_io(Interest::READABLE, || Ok(recv(stream.as_raw_fd(), &mut greeting, MsgFlags::MSG_PEEK)?))
        .await?;
    if length == greeting.len() && greeting[FRAME_TYPE.0] == FRAME_TYPE.1 {
        Ok(())
    } else {
        Err(io::ErrorKind::InvalidData.into())
    }
}
