//! The server behind `--metrics-bind-address`.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use crate::metrics::{Check, Metrics};

/// Nobody needs more at once; the rest waits in the kernel's queue.
const CONNECTIONS: usize = 8;
/// A connection that is not used up by then is in the way of others.
const LIMIT: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_secs(1);

/// Listens, and returns the address with the server; it serves for as long as it is polled.
pub(crate) async fn serve(
    address: SocketAddr,
    metrics: Metrics,
) -> std::io::Result<(SocketAddr, impl Future<Output = ()>)> {
    let listener = TcpListener::bind(address).await?;
    let bound = listener.local_addr()?;
    Ok((bound, accept(listener, metrics)))
}

async fn accept(listener: TcpListener, metrics: Metrics) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of file descriptors, most likely: at once it would only fail again.
                warn!(%error, "cannot take a connection for metrics");
                sleep(PAUSE).await;
                continue;
            }
        };
        let metrics = metrics.clone();
        tokio::spawn(async move {
            let answer = service_fn(move |request: Request<Incoming>| {
                let answer = answer(&metrics, request.method(), request.uri().path());
                async move { Ok::<_, Infallible>(answer) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(LIMIT)
                .serve_connection(TokioIo::new(stream), answer);
            if let Ok(Err(error)) = timeout(LIMIT, connection).await {
                debug!(%error, "a connection for metrics broke off");
            }
            drop(place);
        });
    }
}

fn answer(metrics: &Metrics, method: &Method, path: &str) -> Response<Full<Bytes>> {
    let (status, text) = match (method, path) {
        (&Method::GET | &Method::HEAD, "/healthz") => verdict("healthz", &metrics.alive()),
        (&Method::GET | &Method::HEAD, "/readyz") => verdict("readyz", &metrics.ready()),
        (&Method::GET | &Method::HEAD, "/metrics") => (StatusCode::OK, metrics.page()),
        (&Method::GET | &Method::HEAD, _) => {
            (StatusCode::NOT_FOUND, "there are /healthz, /readyz and /metrics\n".to_owned())
        }
        _ => (StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are answered\n".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, plain);
    response
}

/// Checks as the components of Kubernetes show them.
fn verdict(name: &str, checks: &[Check]) -> (StatusCode, String) {
    let lines = checks.iter().map(|(check, result)| match result {
        Ok(()) => format!("[+]{check} ok\n"),
        Err(why) => format!("[-]{check} failed: {why}\n"),
    });
    let failed = checks.iter().any(|(_, result)| result.is_err());
    let (status, end) = if failed {
        (StatusCode::INTERNAL_SERVER_ERROR, format!("{name} check failed\n"))
    } else {
        (StatusCode::OK, format!("{name} check passed\n"))
    };
    (status, lines.collect::<String>() + &end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::watch;

    #[test]
    fn paths_and_methods_are_told_apart() {
        let (_health, seen) = watch::channel(None);
        let metrics = Metrics::new(seen);
        let table = [
            (Method::GET, "/healthz", 200),
            (Method::GET, "/readyz", 500),
            (Method::GET, "/metrics", 200),
            (Method::GET, "/", 404),
            (Method::POST, "/metrics", 405),
        ];
        for (method, path, status) in table {
            assert_eq!(answer(&metrics, &method, path).status().as_u16(), status, "{method} {path}");
        }
    }

    #[test]
    fn the_failing_check_is_named() {
        let (status, text) = verdict("readyz", &[("a", Ok(())), ("b", Err("no".into()))]);
        assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(text, "[+]a ok\n[-]b failed: no\nreadyz check failed\n");
    }
}
