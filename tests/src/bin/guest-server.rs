//! A server for simulated guests: HTTP and gRPC health on one port, as files in `/private/tmp` say.
//!
//! Every argument `NAME[=TEXT]` is a file to start with. While `up` exists, port 8080 of the guest's address is open. A request
//! for `/NAME` is answered by what is in the file NAME, a status and perhaps the place of a redirect, or by 200 without one;
//! `grpc` has the number that the health protocol answers with. `asked` has the path of each request.

use std::convert::Infallible;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use futures::stream;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::StreamBody;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Bytes, Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::TcpListener;
use tokio::time::sleep;

const FILES: &str = "/private/tmp";
const PORT: u16 = 8080;
const LOOK_EVERY: Duration = Duration::from_millis(20);

type Body = UnsyncBoxBody<Bytes, Infallible>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    for file in std::env::args().skip(1) {
        let (name, text) = file.split_once('=').unwrap_or((&file, ""));
        std::fs::write(Path::new(FILES).join(name), text)?;
    }
    let address = std::env::var("TART_SIM_ADDRESS").context("this is no simulated guest")?;
    loop {
        if is_up() {
            tokio::select! {
                served = serve(&address) => served?,
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

async fn serve(address: &str) -> Result<()> {
    let listener = TcpListener::bind((address, PORT)).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(async move {
            let service = service_fn(async |request: Request<Incoming>| answer(request.uri().path()));
            let server = auto::Builder::new(TokioExecutor::new());
            // Whoever breaks off has heard enough.
            let _ = server.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

fn answer(path: &str) -> Result<Response<Body>> {
    let mut asked =
        std::fs::File::options().create(true).append(true).open(Path::new(FILES).join("asked"))?;
    writeln!(asked, "{path}")?;
    let text = |name: &str| std::fs::read_to_string(Path::new(FILES).join(name)).unwrap_or_default();
    if path == "/grpc.health.v1.Health/Check" {
        let status = text("grpc").trim().parse().unwrap_or(1);
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        // A message of two bytes: field 1 with the status.
        let message = Frame::data(Bytes::copy_from_slice(&[0, 0, 0, 0, 2, 8, status]));
        let frames = vec![message, Frame::trailers(trailers)];
        return Ok(Response::builder().header("content-type", "application/grpc").body(body(frames))?);
    }
    let text = text(path.trim_start_matches('/'));
    let mut words = text.split_whitespace();
    let status: u16 = words.next().map_or(Ok(200), str::parse)?;
    let mut response = Response::builder().status(status);
    if let Some(place) = words.next() {
        response = response.header("location", place);
    }
    Ok(response.body(body(vec![Frame::data(Bytes::from_static(b"words from the guest"))]))?)
}

fn body(frames: Vec<Frame<Bytes>>) -> Body {
    Body::new(StreamBody::new(stream::iter(frames.into_iter().map(Ok))))
}
