//! The connection to the API server.
//!
//! It is HTTP/2: the heartbeat sends the same headers every ten seconds, and in HTTP/1.1 they would be half of the agent's traffic.
//! One connection then carries everything, and a request that is cancelled does not close it. So keep-alive pings detect a dead
//! connection.

use std::time::Duration;

use hyper_rustls::HttpsConnectorBuilder;
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::Builder;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::retry::RetryPolicy;
use kube::client::{Body, ConfigExt};
use kube::{Client, Config};
use tower::retry::RetryLayer;
use tower::util::option_layer;
use tower::{BoxError, Layer, ServiceExt};

/// The client sends a ping after this time without data, while a request waits for its answer.
const PING_INTERVAL: Duration = Duration::from_secs(10);
/// The connection is dead if the ping is not answered within this time. Both together are shorter than the heartbeat's deadline.
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// A client with a connection of its own, on the runtime of the caller.
pub(super) fn client(config: &Config) -> Result<Client, kube::Error> {
    if config.proxy_url.is_some() || config.tls_server_name.is_some() {
        // Only kube's own client supports these. It speaks HTTP/1.1.
        return Client::try_from(config.clone());
    }
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    // Many small requests are under way at once: none must wait for the acknowledgement of another.
    tcp.set_nodelay(true);
    let tls = HttpsConnectorBuilder::new().with_tls_config(config.rustls_client_config()?).https_or_http();
    let mut connector = TimeoutConnector::new(tls.enable_all_versions().wrap_connector(tcp));
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    let connection = Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .http2_keep_alive_interval(PING_INTERVAL)
        .http2_keep_alive_timeout(PING_TIMEOUT)
        .build::<_, Body>(connector)
        .map_err(BoxError::from);

    // As in kube's own client, from the inside out.
    let with_headers = config.extra_headers_layer()?.layer(connection);
    let with_identity = option_layer(config.auth_layer()?).layer(with_headers);
    let retry = config.default_retry.then(|| RetryLayer::new(RetryPolicy::server_retry()));
    let patient = option_layer(retry).layer(with_identity);
    Ok(Client::new(config.base_uri_layer().layer(patient), config.default_namespace.clone()))
}
