//! The HTTP server.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

use crate::api::Request;
use crate::control;
use crate::error::ApiError;
use crate::fault::Effect;
use crate::world::{Settings, World};

/// A running simulated Scaleway. It ends with this value.
#[derive(Debug)]
pub struct Scaleway {
    address: SocketAddr,
    world: Arc<Mutex<World>>,
    task: AbortHandle,
}

/// The connection ends without an answer.
#[derive(Debug, thiserror::Error)]
#[error("the connection is cut")]
struct Cut;

impl Scaleway {
    /// Starts one on a free port of the loopback.
    pub async fn start(settings: Settings) -> io::Result<Self> {
        Self::listen((std::net::Ipv4Addr::LOCALHOST, 0).into(), settings).await
    }

    /// Starts one at this address.
    pub async fn listen(address: SocketAddr, settings: Settings) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let world = Arc::new(Mutex::new(World::new(settings)));
        let task = tokio::spawn(accept(listener, Arc::clone(&world))).abort_handle();
        Ok(Self { address, world, task })
    }

    /// What `SCW_API_URL` is to be.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The state, to look at or to change.
    pub fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a Mac behind a server's address: what connects to port 22 of it reaches the Mac's sshd. Needs root, for the port.
    pub async fn attach(&self, id: &str, mac: SocketAddr) -> Result<(), String> {
        control::attach(&self.world, id, mac).await
    }

    /// Waits until it ends, which it does not by itself.
    pub async fn wait(&self) -> Infallible {
        std::future::pending().await
    }
}

impl Drop for Scaleway {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, world: Arc<Mutex<World>>) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        connections.spawn(serve(stream, Arc::clone(&world)));
        while connections.try_join_next().is_some() {}
    }
}

async fn serve(stream: TcpStream, world: Arc<Mutex<World>>) {
    let service = service_fn(move |request| respond(request, Arc::clone(&world)));
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn respond(
    request: hyper::Request<Incoming>,
    world: Arc<Mutex<World>>,
) -> Result<Response<Full<Bytes>>, Cut> {
    let lock = || world.lock().unwrap_or_else(PoisonError::into_inner);
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(|_| Cut)?.to_bytes();
    if head.uri.path().starts_with("/simulator/") {
        let (status, value) = control::answer(&world, &head.method, head.uri.path(), &body).await;
        return Ok(json(status, &value));
    }
    let body = match body.as_ref() {
        b"" => Value::Null,
        bytes => match serde_json::from_slice(bytes) {
            Ok(value) => value,
            Err(_) => return Ok(refuse(&ApiError::invalid_argument("body", "not JSON"))),
        },
    };
    let request = Request {
        method: head.method,
        path: head.uri.path().to_owned(),
        query: form_urlencoded::parse(head.uri.query().unwrap_or_default().as_bytes()).into_owned().collect(),
        token: head.headers.get("X-Auth-Token").and_then(|token| token.to_str().ok()).map(str::to_owned),
        body,
    };
    let route = request.route();
    let effect = route.as_ref().and_then(|route| lock().arrive(route.call));
    let id = route.map(|route| route.id).unwrap_or_default();
    match effect {
        None => {}
        Some(Effect::Error(status)) => return Ok(refuse(&ApiError::of_status(status, &id))),
        Some(Effect::Throttle(seconds)) => {
            let mut response = refuse(&ApiError::of_status(StatusCode::TOO_MANY_REQUESTS, &id));
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
            return Ok(response);
        }
        Some(Effect::Gateway) => {
            let mut response = Response::new(Full::from("<html><h1>502 Bad Gateway</h1></html>"));
            *response.status_mut() = StatusCode::BAD_GATEWAY;
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html"));
            return Ok(response);
        }
        Some(Effect::Slow(time)) => tokio::time::sleep(time.min(Duration::from_mins(10))).await,
        Some(Effect::Lose) => return Err(Cut),
        Some(Effect::Hold) => {
            lock().hold(request);
            return Err(Cut);
        }
        Some(Effect::Cut) => {
            let _ = lock().answer(&request);
            return Err(Cut);
        }
    }
    let answer = lock().answer(&request);
    Ok(match answer {
        Ok((status, value)) => json(status, &value),
        Err(error) => refuse(&error),
    })
}

fn refuse(error: &ApiError) -> Response<Full<Bytes>> {
    json(error.status, &error.body)
}

fn json(status: StatusCode, value: &Value) -> Response<Full<Bytes>> {
    let body = if status == StatusCode::NO_CONTENT { String::new() } else { value.to_string() };
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
