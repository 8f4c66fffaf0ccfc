//! The ports for health and metrics.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

/// Connections at once; further ones wait in the kernel's queue.
const CONNECTIONS: usize = 16;
/// A connection ends after this time, so that an idle one does not keep others out.
const LIMIT: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_secs(1);

/// An answer to the path of a request; `None` for a path that there is not.
pub(super) type Answer = dyn Fn(&str) -> Option<(StatusCode, String)> + Send + Sync;

/// Listens, and serves for as long as the future is polled.
pub(super) async fn serve(
    address: SocketAddr,
    answer: Arc<Answer>,
) -> std::io::Result<impl Future<Output = ()> + use<>> {
    let listener = TcpListener::bind(address).await?;
    Ok(accept(listener, answer))
}

async fn accept(listener: TcpListener, answer: Arc<Answer>) {
    let connections = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(permit) = connections.clone().acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Most likely the process has no file descriptors left; an immediate retry would fail as well.
                warn!(%error, "cannot take a connection");
                sleep(PAUSE).await;
                continue;
            }
        };
        let answer = Arc::clone(&answer);
        tokio::spawn(async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let (status, text) = answer(request.uri().path())
                    .unwrap_or_else(|| (StatusCode::NOT_FOUND, "not found\n".to_owned()));
                let mut response = Response::new(Full::new(Bytes::from(text)));
                *response.status_mut() = status;
                async move { Ok::<_, Infallible>(response) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(LIMIT)
                .serve_connection(TokioIo::new(stream), service);
            if let Ok(Err(error)) = timeout(LIMIT, connection).await {
                debug!(%error, "a connection broke off");
            }
            drop(permit);
        });
    }
}
