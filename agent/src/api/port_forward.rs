//! Connections to ports of a guest: `kubectl port-forward`.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::debug;

use super::context::ApiContext;
use super::http::connections::{ForwardPlaces, watch_peer};
use super::http::path::PodPath;
use super::http::response::{self, Body};
use super::http::upgrade::{self, Protocol, Protocols};
use super::running_container::{find_pod, find_vm};
use super::stream::forwarded_ports::{
    ForwardedConnection, ForwardedPorts, SPDY_PROTOCOLS, WEB_SOCKET_PROTOCOLS, parse_ports,
};
use super::stream::{Gone, Input, MAX_CHUNK, Output};
use crate::names::PodUid;
use crate::state::StateDir;

const PROTOCOLS: Protocols = Protocols { spdy: SPDY_PROTOCOLS, web_socket: WEB_SOCKET_PROTOCOLS };
/// How long a connection to the guest may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(30);

/// Looks up the address of the Pod's VM; words when it has none.
type Lookup = Arc<dyn Fn() -> BoxFuture<'static, Result<IpAddr, String>> + Send + Sync>;

/// The Pod that ports are forwarded to.
#[derive(Clone)]
struct Target {
    pod: String,
    uid: String,
    /// Done for each connection: the Pod may have another VM by then, and another Pod its address.
    address: Lookup,
    places: ForwardPlaces,
}

/// Answers a request that is authenticated and authorized, and goes on in a task.
pub(super) async fn handle(
    mut request: Request<Incoming>,
    target: &PodPath,
    context: &ApiContext,
) -> Response<Body> {
    let target = match find(target, context).await {
        Ok(target) => target,
        Err(answer) => return answer,
    };
    let ports = {
        let query = form_urlencoded::parse(request.uri().query().unwrap_or_default().as_bytes());
        let values: Vec<_> = query.filter(|(name, _)| name == "port").map(|(_, value)| value).collect();
        parse_ports(values.iter().map(AsRef::as_ref))
    };
    let (upgrade, answer) = match upgrade::accept(&mut request, PROTOCOLS) {
        Ok(accepted) => accepted,
        Err(answer) => return answer,
    };
    let protocol = upgrade.protocol;
    let ports = match (protocol, ports) {
        (_, Ok(ports)) => ports,
        (Protocol::WebSocket(protocol), Err(words)) if ForwardedPorts::needs_ports(protocol) => {
            return response::refusal(StatusCode::BAD_REQUEST, words);
        }
        (_, Err(_)) => Vec::new(),
    };
    tokio::spawn(async move {
        let Some(connection) = upgrade.connection().await else { return };
        let forwarded = match protocol {
            Protocol::Spdy(_) => ForwardedPorts::over_spdy(connection),
            Protocol::WebSocket(protocol) => {
                ForwardedPorts::over_web_socket(connection, protocol, &ports).await
            }
        };
        serve(forwarded, &target).await;
    });
    answer
}

async fn find(path: &PodPath, context: &ApiContext) -> Result<Target, Response<Body>> {
    let (uid, _) = find_pod(path, context)?;
    let (pod, state, places) = (path.name.clone(), context.state.clone(), context.forward_places.clone());
    let address: Lookup = {
        let (pod, uid) = (pod.clone(), uid.clone());
        Arc::new(move || address(pod.clone(), uid.clone(), state.clone()).boxed())
    };
    if let Err(words) = address().await {
        let words = format!("unable to forward port because {words}");
        return Err(response::refusal(StatusCode::INTERNAL_SERVER_ERROR, words));
    }
    Ok(Target { pod, uid: uid.to_string(), address, places })
}

async fn address(pod: String, uid: PodUid, state: StateDir) -> Result<IpAddr, String> {
    let vm = find_vm(uid, state).await?;
    let address = vm.and_then(|(_, view, _)| view.progress?.stage.address());
    // The kubelet's words.
    address.ok_or_else(|| format!("pod is not running: {pod} has no address yet, or no more"))
}

/// Serves all connections of a client; they end with it.
async fn serve(mut forwarded: ForwardedPorts, target: &Target) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            connection = forwarded.accept() => match connection {
                Some(connection) => drop(connections.spawn(forward(connection, target.clone()))),
                None => return,
            },
            Some(_) = connections.join_next() => {
                if connections.is_empty() && forwarded.is_exhausted() {
                    return forwarded.close().await;
                }
            }
        }
    }
}

/// Copies both directions of one connection, and tells the client why it failed.
async fn forward(connection: ForwardedConnection, target: Target) {
    let ForwardedConnection { port, input, output, mut error, half_close } = connection;
    let Target { pod, uid, address, places } = &target;
    let result = match places.take() {
        Some(_place) => match address().await {
            Ok(address) => copy((input, output), SocketAddr::new(address, port), half_close).await,
            Err(words) => Err(Failure::Guest(words)),
        },
        None => Err(Failure::Guest(ForwardPlaces::REFUSAL.to_owned())),
    };
    if let Err(Failure::Guest(reason)) = result {
        // The kubelet's words.
        let words = format!("error forwarding port {port} to pod {pod}, uid {uid}: {reason}");
        debug!(words, "a connection could not be forwarded");
        // A client that is gone does not read them.
        let _ = error.write(words.into()).await;
    }
    // kubectl waits for the end of this stream.
    let _ = error.end().await;
}

enum Failure {
    /// The client is gone, or has reset the connection.
    Gone,
    Guest(String),
}

impl From<Gone> for Failure {
    fn from(_: Gone) -> Self {
        Self::Gone
    }
}

async fn copy(
    (input, output): (Input, Output),
    address: SocketAddr,
    half_close: bool,
) -> Result<(), Failure> {
    let connected = timeout(CONNECT_LIMIT, TcpStream::connect(address)).await;
    let failed =
        |words: String| Failure::Guest(format!("failed to connect to {address} in the guest: {words}"));
    let stream = match connected {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Err(failed(error.to_string())),
        Err(_) => return Err(failed(format!("no answer within {} s", CONNECT_LIMIT.as_secs()))),
    };
    // Interactive protocols do not wait for full packets, and a guest that is gone does not say so.
    watch_peer(&stream);
    let (from_guest, to_guest) = stream.into_split();
    let (sent, received) = (send(input, to_guest), receive(from_guest, output));
    if half_close {
        // A client that is gone ends the connection at once, also while its server is silent.
        return tokio::try_join!(sent, received).map(drop);
    }
    tokio::select! {
        result = received => result,
        Err(failure) = sent => Err(failure),
    }
}

/// Copies what the client sends, and its end.
async fn send(mut input: Input, mut guest: OwnedWriteHalf) -> Result<(), Failure> {
    while let Some(bytes) = input.recv().await? {
        if guest.write_all(&bytes).await.is_err() {
            // The server has closed its side. What it had to say goes the other way.
            return Ok(());
        }
    }
    let _ = guest.shutdown().await;
    Ok(())
}

/// Copies what the server sends, and its end.
async fn receive(mut guest: OwnedReadHalf, mut output: Output) -> Result<(), Failure> {
    let broken = |error: io::Error| Failure::Guest(format!("the connection in the guest broke: {error}"));
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(MAX_CHUNK);
        if guest.read_buf(&mut buffer).await.map_err(broken)? == 0 {
            output.end().await?;
            return Ok(());
        }
        let bytes: Bytes = buffer.split().freeze();
        output.write(bytes).await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::DuplexStream;
    use tokio::net::TcpListener;

    const LIMIT: Duration = Duration::from_mins(1);

    #[tokio::test]
    async fn a_client_that_resets_its_stream_ends_the_connection_though_the_guest_is_silent() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (output, _transport) = Output::to_nowhere();
        let streams = (Input::of_reset_stream(), output);
        let copied = timeout(LIMIT, copy(streams, listener.local_addr().unwrap(), true)).await;
        assert!(matches!(copied, Ok(Err(Failure::Gone))));
        let (mut guest, _) = listener.accept().await.unwrap();
        assert_eq!(guest.read(&mut [0]).await.unwrap(), 0);
    }

    /// A client of the channels of a WebSocket, which forwards `ports`.
    async fn forwarded(
        ports: &[u16],
        places: ForwardPlaces,
    ) -> (DuplexStream, impl Future<Output = ()> + use<>) {
        let (client, server) = tokio::io::duplex(64 << 10);
        let forwarded = ForwardedPorts::over_web_socket(server, Some("v4.channel.k8s.io"), ports).await;
        let address: Lookup = Arc::new(|| std::future::ready(Ok([127, 0, 0, 1].into())).boxed());
        let target = Target { pod: "p".to_owned(), uid: "u".to_owned(), address, places };
        (client, async move { serve(forwarded, &target).await })
    }

    /// All that the agent sends until it closes the connection.
    async fn read_all(mut client: DuplexStream) -> String {
        let mut all = Vec::new();
        let mut piece = [0; 1024];
        // The message that says goodbye without an error.
        while !all.windows(4).any(|bytes| bytes == [0x88, 2, 3, 0xe8]) {
            let length = timeout(LIMIT, client.read(&mut piece)).await.expect("an end").unwrap();
            assert!(length > 0, "a goodbye");
            all.extend_from_slice(&piece[..length]);
        }
        String::from_utf8_lossy(&all).into_owned()
    }

    #[tokio::test]
    async fn a_web_socket_is_closed_when_the_servers_of_all_its_ports_have_closed() {
        let (first, second) = (
            TcpListener::bind("127.0.0.1:0").await.unwrap(),
            TcpListener::bind("127.0.0.1:0").await.unwrap(),
        );
        let ports = [&first, &second].map(|listener| listener.local_addr().unwrap().port());
        let (client, served) = forwarded(&ports, ForwardPlaces::default()).await;
        let served = tokio::spawn(served);
        let reads = tokio::spawn(read_all(client));
        for (listener, words) in [(first, "from the first"), (second, "from the second")] {
            assert!(!reads.is_finished());
            let (mut guest, _) = listener.accept().await.unwrap();
            guest.write_all(words.as_bytes()).await.unwrap();
        }
        let said = reads.await.unwrap();
        assert!(said.contains("from the first") && said.contains("from the second"), "{said}");
        served.await.unwrap();
    }

    #[tokio::test]
    async fn the_address_is_looked_up_for_each_connection() {
        let (client, server) = tokio::io::duplex(64 << 10);
        let forwarded = ForwardedPorts::over_web_socket(server, Some("v4.channel.k8s.io"), &[80]).await;
        let address: Lookup = Arc::new(|| std::future::ready(Err("it is gone".to_owned())).boxed());
        let places = ForwardPlaces::default();
        let target = Target { pod: "p".to_owned(), uid: "u".to_owned(), address, places };
        let (said, ()) = tokio::join!(read_all(client), serve(forwarded, &target));
        assert!(said.contains("error forwarding port 80 to pod p, uid u: it is gone"), "{said}");
    }

    #[tokio::test]
    async fn a_connection_beyond_the_limit_is_refused_in_words() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let places = ForwardPlaces::default();
        let taken: Vec<_> = std::iter::from_fn(|| places.take()).collect();
        assert_eq!(taken.len(), 1024);
        let port = listener.local_addr().unwrap().port();
        let (client, served) = forwarded(&[port], places).await;
        let (said, ()) = tokio::join!(read_all(client), served);
        let words = format!("error forwarding port {port} to pod p, uid u: {}", ForwardPlaces::REFUSAL);
        assert!(said.contains(&words), "{said}");
    }
}
