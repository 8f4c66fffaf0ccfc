//! `grpc`: the standard health protocol, `grpc.health.v1.Health`, without TLS.

use std::time::Duration;

use http::uri::PathAndQuery;
use tokio::time::{Instant, sleep, timeout_at};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use super::result::ProbeResult;
use super::tcp::address;
use crate::backoff::GRPC_PROBE;
use crate::error_chain::chain;

/// An answer is one number.
const MAX_MESSAGE: usize = 10 << 10;

#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckResponse {
    #[prost(enumeration = "ServingStatus", tag = "1")]
    status: i32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
enum ServingStatus {
    Unknown = 0,
    Serving = 1,
    NotServing = 2,
    ServiceUnknown = 3,
}

impl ServingStatus {
    fn name(self) -> &'static str {
        match self {
            Self::Unknown => "UNKNOWN",
            Self::Serving => "SERVING",
            Self::NotServing => "NOT_SERVING",
            Self::ServiceUnknown => "SERVICE_UNKNOWN",
        }
    }
}

/// Asks the server at a port how a service is.
pub(super) async fn probe(host: &str, port: u16, service: &str, limit: Duration) -> ProbeResult {
    let deadline = Instant::now() + limit;
    let place = address(host, port);
    let endpoint =
        Endpoint::from_shared(format!("http://{place}")).and_then(|to| to.user_agent("kube-probe/1.36"));
    let endpoint = match endpoint {
        Ok(endpoint) => endpoint,
        Err(error) => {
            let why = chain(&error);
            return ProbeResult::Failed(format!("error: failed to connect service at \"{place}\": {why}"));
        }
    };
    let Ok(channel) = timeout_at(deadline, connect(&endpoint)).await else {
        return ProbeResult::Failed(format!(
            "timeout: failed to connect service \"{place}\" within {limit:?}: context deadline exceeded"
        ));
    };
    match timeout_at(deadline, check(channel, service)).await {
        Ok(Ok(ServingStatus::Serving)) => ProbeResult::Passed,
        Ok(Ok(status)) => {
            ProbeResult::Failed(format!("service unhealthy (responded with \"{}\")", status.name()))
        }
        Ok(Err(status)) => ProbeResult::Failed(describe(&status)),
        Err(_) => ProbeResult::Failed(format!("timeout: health rpc did not complete within {limit:?}")),
    }
}

/// Connects, with retries: as in the kubelet, a server may start to listen before the time-out.
async fn connect(endpoint: &Endpoint) -> Channel {
    let mut delays = GRPC_PROBE.delays();
    loop {
        if let Ok(channel) = endpoint.connect().await {
            return channel;
        }
        sleep(delays.next()).await;
    }
}

async fn check(channel: Channel, service: &str) -> Result<ServingStatus, Status> {
    let mut client = tonic::client::Grpc::new(channel).max_decoding_message_size(MAX_MESSAGE);
    client.ready().await.map_err(|error| Status::unavailable(chain(&error)))?;
    let codec = ProstCodec::<HealthCheckRequest, HealthCheckResponse>::default();
    let path = PathAndQuery::from_static("/grpc.health.v1.Health/Check");
    let request = Request::new(HealthCheckRequest { service: service.to_owned() });
    Ok(client.unary(request, path, codec).await?.into_inner().status())
}

fn describe(status: &Status) -> String {
    let message: String = status.message().chars().take(300).collect();
    if status.code() == Code::Unimplemented {
        return format!(
            "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {message}"
        );
    }
    format!("error: health rpc probe failed: rpc error: code = {:?} desc = {message}", status.code())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::{BodyExt as _, StreamBody};
    use hyper::body::{Bytes, Frame, Incoming};
    use hyper::service::service_fn;
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use tokio::net::{TcpListener, TcpSocket, TcpStream};

    const LIMIT: Duration = Duration::from_secs(20);

    /// A server that answers with a gRPC code and, when that is 0, with the status of the service that is named after it.
    async fn server(code: &'static str) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        serve(listener, code);
        port
    }

    fn serve(listener: TcpListener, code: &'static str) {
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let answer = service_fn(move |request: http::Request<Incoming>| async move {
                    assert_eq!(request.uri().path(), "/grpc.health.v1.Health/Check");
                    let agent = request.headers()["user-agent"].to_str().unwrap();
                    assert_eq!(agent.split(' ').next(), Some("kube-probe/1.36"));
                    let asked = request.into_body().collect().await.unwrap().to_bytes();
                    // The service is the text behind the message's length, the tag and the text's length.
                    let status = match asked.get(7..).unwrap_or_default() {
                        b"well" => 1,
                        b"ill" => 2,
                        b"odd" => 9,
                        _ => 3,
                    };
                    let data = Bytes::copy_from_slice(&[0, 0, 0, 0, 2, 8, status]);
                    let mut trailers = http::HeaderMap::new();
                    trailers.insert("grpc-status", http::HeaderValue::from_static(code));
                    let frames = [Ok::<_, hyper::Error>(Frame::data(data)), Ok(Frame::trailers(trailers))];
                    let body = StreamBody::new(futures::stream::iter(frames));
                    Ok::<_, hyper::Error>(
                        http::Response::builder()
                            .header("content-type", "application/grpc")
                            .body(body)
                            .unwrap(),
                    )
                });
                let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                tokio::spawn(connection.serve_connection(TokioIo::new(stream), answer));
            }
        });
    }

    #[tokio::test]
    async fn the_service_status_is_the_result() {
        let port = server("0").await;
        let unhealthy = |said| ProbeResult::Failed(format!("service unhealthy (responded with \"{said}\")"));
        let table = [
            ("well", ProbeResult::Passed),
            ("ill", unhealthy("NOT_SERVING")),
            ("", unhealthy("SERVICE_UNKNOWN")),
            ("odd", unhealthy("UNKNOWN")),
        ];
        for (service, finding) in table {
            assert_eq!(probe("127.0.0.1", port, service, LIMIT).await, finding, "{service}");
        }
    }

    #[tokio::test]
    async fn a_server_without_the_protocol_is_told_apart() {
        let words = |finding| match finding {
            ProbeResult::Failed(why) => why,
            other => panic!("{other:?}"),
        };
        let why = words(probe("127.0.0.1", server("12").await, "well", LIMIT).await);
        assert!(why.starts_with("error: this server does not implement the grpc health protocol"), "{why}");
        let why = words(probe("127.0.0.1", server("13").await, "well", LIMIT).await);
        assert!(why.starts_with("error: health rpc probe failed: rpc error: code = Internal"), "{why}");
    }

    #[tokio::test]
    async fn a_closed_port_and_a_server_that_hangs_are_failures() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let hangs = probe("127.0.0.1", port, "", Duration::from_millis(50)).await;
        assert_eq!(hangs.passed(), Some(false), "{hangs:?}");
        drop(listener);
        let words = format!(
            "timeout: failed to connect service \"127.0.0.1:{port}\" within 50ms: context deadline exceeded"
        );
        let closed = probe("127.0.0.1", port, "", Duration::from_millis(50)).await;
        assert_eq!(closed, ProbeResult::Failed(words));
    }

    #[tokio::test]
    async fn a_server_that_comes_in_time_is_waited_for() {
        // The port is reserved, and nothing listens yet.
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let port = socket.local_addr().unwrap().port();
        let asked = tokio::spawn(async move { probe("127.0.0.1", port, "well", LIMIT).await });
        // Time enough for a first attempt, which is refused at once.
        for _ in 0..100 {
            TcpStream::connect(("127.0.0.1", port)).await.unwrap_err();
        }
        serve(socket.listen(8).unwrap(), "0");
        assert_eq!(asked.await.unwrap(), ProbeResult::Passed);
    }
}
