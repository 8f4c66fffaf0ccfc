//! The server of the guest agent, on a unix socket.

use std::convert::Infallible;
use std::future::Future;
use std::os::unix::net::UnixListener;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_stream::Stream;
use tonic::body::Body;
use tonic::codegen::http;
use tonic::server::Grpc;
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;
use tower::Service;

use super::{EXEC_PATH, ExecRequest, ExecResponse, RESOLVE_IP_PATH, ResolveIpRequest, ResolveIpResponse};

/// How much input one command may have waiting, and the most that HTTP/2 can let all commands have.
const STREAM_WINDOW: u32 = 64 << 10;
const MAX_WINDOW: u32 = (1 << 31) - 1;

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

type Answer = Result<ExecResponse, Status>;

/// The guest's side of a running command.
pub(crate) struct Responses {
    first: Option<Answer>,
    rest: mpsc::Receiver<Answer>,
}

impl Responses {
    /// Waits for the first response: a gRPC server in Go sends not even headers before it, so a client must not take a silent
    /// command for one that has not started.
    pub(crate) async fn begin(mut rest: mpsc::Receiver<Answer>) -> Self {
        Self { first: rest.recv().await, rest }
    }
}

impl Stream for Responses {
    type Item = Answer;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Answer>> {
        match self.first.take() {
            Some(first) => Poll::Ready(Some(first)),
            None => self.rest.poll_recv(context),
        }
    }
}

/// What a guest agent can do.
pub(crate) trait Agent: Send + Sync + 'static {
    /// Runs a command. It ends with the stream of responses.
    fn exec(
        &self,
        requests: Streaming<ExecRequest>,
    ) -> impl Future<Output = Result<Responses, Status>> + Send;

    /// The guest's address.
    fn resolve_ip(&self) -> Result<String, Status>;
}

/// The first and the longest pause between two looks for a new connection.
const ACCEPT_PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));

/// Answers every connection of the listener, for ever.
///
/// The real agent's listener is non-blocking, and its server takes the lack of a connection for a failure that passes: it looks
/// again after a pause that doubles from 5 ms to 1 s. So an agent that has been idle for a while answers a new connection up to a
/// second late.
pub(crate) async fn serve<A: Agent>(listener: UnixListener, agent: A) {
    // Fails for no socket.
    let _ = listener.set_nonblocking(true);
    let agent = Arc::new(agent);
    let mut pause = Duration::ZERO;
    loop {
        let accepted = listener.accept().and_then(|(stream, _)| {
            stream.set_nonblocking(true)?;
            UnixStream::from_std(stream)
        });
        let Ok(stream) = accepted else {
            pause = longer(pause);
            sleep(pause).await;
            continue;
        };
        pause = Duration::ZERO;
        let router = TowerToHyperService::new(Router(Arc::clone(&agent)));
        tokio::spawn(async move {
            let mut builder = auto::Builder::new(TokioExecutor::new()).http2_only();
            // As gRPC for Go: a command that does not read its input holds up no other command.
            builder
                .http2()
                .initial_stream_window_size(STREAM_WINDOW)
                .initial_connection_window_size(MAX_WINDOW);
            // The client notices a connection that breaks.
            let _ = builder.serve_connection(TokioIo::new(stream), router).await;
        });
    }
}

/// The pause after this one, if there is still no connection.
fn longer(pause: Duration) -> Duration {
    (pause * 2).clamp(ACCEPT_PAUSES.0, ACCEPT_PAUSES.1)
}

/// Chooses the call by the request's path.
struct Router<A>(Arc<A>);

impl<A> Clone for Router<A> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<A: Agent, B> Service<http::Request<B>> for Router<A>
where
    B: tonic::codegen::Body + Send + 'static,
    B::Error: Into<tonic::codegen::StdError> + Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let agent = Arc::clone(&self.0);
        Box::pin(async move {
            Ok(match request.uri().path() {
                EXEC_PATH => Grpc::new(ProstCodec::default()).streaming(Exec(agent), request).await,
                RESOLVE_IP_PATH => Grpc::new(ProstCodec::default()).unary(ResolveIp(agent), request).await,
                path => Status::unimplemented(format!("unknown method {path}")).into_http(),
            })
        })
    }
}

struct Exec<A>(Arc<A>);

impl<A: Agent> Service<Request<Streaming<ExecRequest>>> for Exec<A> {
    type Response = Response<Responses>;
    type Error = Status;
    type Future = BoxFuture<Result<Self::Response, Status>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Streaming<ExecRequest>>) -> Self::Future {
        let agent = Arc::clone(&self.0);
        Box::pin(async move { agent.exec(request.into_inner()).await.map(Response::new) })
    }
}

struct ResolveIp<A>(Arc<A>);

impl<A: Agent> Service<Request<ResolveIpRequest>> for ResolveIp<A> {
    type Response = Response<ResolveIpResponse>;
    type Error = Status;
    type Future = std::future::Ready<Result<Self::Response, Status>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<ResolveIpRequest>) -> Self::Future {
        std::future::ready(self.0.resolve_ip().map(|ip| Response::new(ResolveIpResponse { ip })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_agent_looks_for_a_connection_once_a_second() {
        let pauses = std::iter::successors(Some(longer(Duration::ZERO)), |pause| Some(longer(*pause)));
        let milliseconds: Vec<_> = pauses.take(10).map(|pause| pause.as_millis()).collect();
        assert_eq!(milliseconds, [5, 10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
    }
}
