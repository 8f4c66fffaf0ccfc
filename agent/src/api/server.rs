//! The server of the kubelet API: HTTPS on a thread and a runtime of its own, so that no flood of requests delays Pods or the heartbeat.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use http::{Request, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::server::{NoServerSessionStorage, ResolvesServerCert};
use tokio::net::TcpStream;
use tokio::time::{interval, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tracing::{debug, info, warn};

use super::auth::{AskForCertificate, Auth, ClientCa};
use super::context::ApiContext;
use super::http::connections::{Connection, Connections, Counted, watch_peer};
use super::http::head::MAX_HEAD;
use super::http::path::Route;
use super::router;
use crate::error_chain::chain;
use crate::identity::ApiAccess;

/// The limit of a TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// The limit of a request's head, and of a connection without a request. Scrapers that come every 15 s keep theirs.
const HEAD: Duration = Duration::from_secs(30);
/// How often the file of the clients' authority is read; the kubelet's interval.
const RELOAD: Duration = Duration::from_mins(1);
const PAUSE: Duration = Duration::from_secs(1);
/// Threads for files. A disk that hangs blocks them, and with them only requests for files.
const FILE_THREADS: usize = 8;

/// What the server is made from.
#[derive(Debug)]
pub(crate) struct ApiServer {
    pub(crate) listener: TcpListener,
    /// For the server's own connection to the API server.
    pub(crate) access: ApiAccess,
    pub(crate) certificate: Arc<dyn ResolvesServerCert>,
    pub(crate) client_ca: ClientCa,
    pub(crate) context: ApiContext,
}

/// Listens at an address. Connections wait in the kernel's queue until the server is spawned.
pub(crate) fn bind(address: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let bound = listener.local_addr()?;
    Ok((listener, bound))
}

impl ApiServer {
    /// Starts the thread that serves until the process ends.
    pub(crate) fn spawn(self) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(FILE_THREADS)
            .build()?;
        let tls = Arc::new(self.tls().map_err(io::Error::other)?);
        thread::Builder::new().name("api".to_owned()).spawn(move || runtime.block_on(self.serve(tls)))?;
        Ok(())
    }

    fn tls(&self) -> Result<ServerConfig, rustls::Error> {
        let provider = Arc::new(ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(Arc::new(AskForCertificate::new(provider)))
            .with_cert_resolver(self.certificate.clone());
        // Streams are taken over from HTTP/1.1.
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        // A resumed session would have the certificate of the old one.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }

    async fn serve(self, tls: Arc<ServerConfig>) {
        let Self { listener, access, client_ca, context, .. } = self;
        let client_ca = Arc::new(client_ca);
        let client = match access.client(Some(context.local.metrics.clone())) {
            Ok(client) => client,
            Err(error) => {
                warn!(error = chain(&error), "the kubelet API is not served: the API client cannot be made");
                return;
            }
        };
        let auth = Auth::new(client_ca.clone(), client, context.node.clone());
        let listener = match tokio::net::TcpListener::from_std(listener) {
            Ok(listener) => listener,
            Err(error) => {
                warn!(%error, "the kubelet API is not served");
                return;
            }
        };
        tokio::spawn(reload(client_ca));
        let shared = Arc::new(Shared { auth, context, tls: TlsAcceptor::from(tls) });
        let connections = Connections::new();
        info!("serving the kubelet API");
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => {
                    let (shared, connection) = (shared.clone(), connections.enter());
                    let task = tokio::spawn(converse(stream, peer, shared, connection.clone()));
                    connection.can_be_ended_by(task.abort_handle());
                }
                Err(error) => {
                    // Most likely the process has no file descriptors left; an immediate retry would fail as well.
                    warn!(%error, "cannot take a connection to the kubelet API");
                    sleep(PAUSE).await;
                }
            }
        }
    }
}

/// What all connections share.
struct Shared {
    auth: Auth,
    context: ApiContext,
    tls: TlsAcceptor,
}

/// Serves one connection until it ends, or until a handler takes it over.
async fn converse(stream: TcpStream, peer: SocketAddr, shared: Arc<Shared>, connection: Connection) {
    watch_peer(&stream);
    let stream = match timeout(HANDSHAKE, shared.tls.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            debug!(%peer, error = chain(&error), "a TLS handshake with the kubelet API failed");
            return;
        }
        Err(_) => return,
    };
    let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let certificates = Arc::new(certificates.iter().map(|one| one.clone().into_owned()).collect::<Vec<_>>());
    let answer = service_fn({
        let connection = connection.clone();
        move |request: Request<Incoming>| {
            let (shared, certificates, connection) =
                (shared.clone(), certificates.clone(), connection.clone());
            async move {
                let Shared { auth, context, .. } = &*shared;
                let is_log = matches!(Route::parse(request.uri().path()), Some(Route::ContainerLogs(_)));
                let answer =
                    router::answer(request, &certificates, auth, context, || connection.admit()).await;
                connection.set_may_pause(is_log || answer.status() == StatusCode::SWITCHING_PROTOCOLS);
                Ok::<_, Infallible>(answer)
            }
        }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(Counted::new(stream, connection)), answer)
        .with_upgrades();
    if let Err(error) = served.await {
        debug!(%peer, error = chain(&error), "a connection to the kubelet API broke off");
    }
}

async fn reload(client_ca: Arc<ClientCa>) {
    let mut tick = interval(RELOAD);
    loop {
        tick.tick().await;
        let client_ca = client_ca.clone();
        // A disk that hangs must not stop the server.
        let _ = tokio::task::spawn_blocking(move || client_ca.reload()).await;
    }
}
