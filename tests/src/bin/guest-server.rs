//! A server for simulated guests: HTTP and gRPC health on one port, as files in `/private/tmp` say.
//!
//! Every argument `NAME[=TEXT]` is a file to start with. While `up` exists, port 8080 of the guest's address is open, and 8443 with a
//! self-signed certificate. A request for `/NAME` is answered by what is in the file NAME, a status and perhaps the
//! place of a redirect, or by 200 without one, and never when it says `hang`; `grpc` has the number that the health protocol
//! answers with. `asked` has the path of each request, with the service of one for its health, `answered` the path and the status of
//! each answer; `headers` has the last request's headers.

use std::convert::Infallible;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use futures::stream;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tart_kubelet_tests::tls;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;

const FILES: &str = "/private/tmp";
const PORT: u16 = 8080;
const TLS_PORT: u16 = 8443;
const HEALTH: &str = "/grpc.health.v1.Health/Check";
const LOOK_EVERY: Duration = Duration::from_millis(20);

type Body = UnsyncBoxBody<Bytes, Infallible>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    for file in std::env::args().skip(1) {
        let (name, text) = file.split_once('=').unwrap_or((&file, ""));
        std::fs::write(Path::new(FILES).join(name), text)?;
    }
    let address = std::env::var("TART_SIM_ADDRESS").context("this is no simulated guest")?;
    let tls = tls::self_signed()?;
    loop {
        if is_up() {
            tokio::select! {
                served = serve(&address, &tls) => served?,
                () = down() => {}
            }
        }
        sleep(LOOK_EVERY).await;
    }
}

fn is_up() -> bool {
    Path::new(FILES).join("up").exists()
}

async fn down() {
    while is_up() {
        sleep(LOOK_EVERY).await;
    }
}

async fn serve(address: &str, tls: &TlsAcceptor) -> Result<()> {
    let plain = TcpListener::bind((address, PORT)).await?;
    let secure = TcpListener::bind((address, TLS_PORT)).await?;
    loop {
        tokio::select! {
            accepted = plain.accept() => drop(tokio::spawn(converse(accepted?.0))),
            accepted = secure.accept() => {
                let (stream, tls) = (accepted?.0, tls.clone());
                tokio::spawn(async move {
                    if let Ok(stream) = tls.accept(stream).await {
                        converse(stream).await;
                    }
                });
            }
        }
    }
}

async fn converse(stream: impl AsyncRead + AsyncWrite + Unpin + 'static) {
    let server = auto::Builder::new(TokioExecutor::new());
    // The client may close the connection at any time.
    let _ = server.serve_connection(TokioIo::new(stream), service_fn(answer)).await;
}

async fn answer(request: Request<Incoming>) -> Result<Response<Body>> {
    let (request, sent) = request.into_parts();
    let path = request.uri.path();
    let headers = request
        .headers
        .iter()
        .map(|(name, value)| format!("{name}: {}\n", String::from_utf8_lossy(value.as_bytes())));
    replace("headers", &headers.collect::<String>())?;
    let text = |name: &str| std::fs::read_to_string(Path::new(FILES).join(name)).unwrap_or_default();
    if path == HEALTH {
        // The service is the text behind the message's length, the tag and the text's length.
        let message = sent.collect().await?.to_bytes();
        let service = String::from_utf8_lossy(message.get(7..).unwrap_or_default()).into_owned();
        note("asked", &format!("{path} {service}"))?;
        let status = text("grpc").trim().parse().unwrap_or(1);
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        // A message of two bytes: field 1 with the status.
        let message = Frame::data(Bytes::copy_from_slice(&[0, 0, 0, 0, 2, 8, status]));
        let frames = vec![message, Frame::trailers(trailers)];
        return Ok(Response::builder().header("content-type", "application/grpc").body(body(frames))?);
    }
    note("asked", path)?;
    let text = text(path.trim_start_matches('/'));
    let mut words = text.split_whitespace().peekable();
    if words.peek() == Some(&"hang") {
        return std::future::pending().await;
    }
    let status: u16 = words.next().map_or(Ok(200), str::parse)?;
    note("answered", &format!("{path} {status}"))?;
    let mut response = Response::builder().status(status);
    if let Some(place) = words.next() {
        response = response.header("location", place);
    }
    Ok(response.body(body(vec![Frame::data(Bytes::from_static(b"words from the guest"))]))?)
}

/// Adds a line to a file.
fn note(name: &str, line: &str) -> Result<()> {
    let mut file = std::fs::File::options().create(true).append(true).open(Path::new(FILES).join(name))?;
    Ok(writeln!(file, "{line}")?)
}

/// Writes a file by rename, so that no reader sees half of it.
fn replace(name: &str, text: &str) -> Result<()> {
    let (written, target) = (Path::new(FILES).join(format!(".{name}")), Path::new(FILES).join(name));
    std::fs::write(&written, text)?;
    Ok(std::fs::rename(written, target)?)
}

fn body(frames: Vec<Frame<Bytes>>) -> Body {
    Body::new(StreamBody::new(stream::iter(frames.into_iter().map(Ok))))
}
