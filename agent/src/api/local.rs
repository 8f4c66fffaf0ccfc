//! The server behind `--metrics-bind-address`: `/healthz`, `/readyz` and `/metrics`.

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
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use crate::metrics::{self, Metrics};
use crate::node::conditions::{ConditionStatus, statuses};
use crate::node::health::NodeHealth;
use crate::node::lease;

/// Connections at once; further ones wait in the kernel's queue.
const CONNECTIONS: usize = 8;
/// A connection ends after this time, so that an idle one does not keep others out.
const LIMIT: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_secs(1);
/// The heartbeat's loop runs at least every ten seconds; one that has not for this long is stuck.
const STUCK: Duration = Duration::from_mins(1);

/// Listens, and returns the address with the server; it serves for as long as it is polled.
pub(crate) async fn serve(
    address: SocketAddr,
    source: Source,
) -> std::io::Result<(SocketAddr, impl Future<Output = ()>)> {
    let listener = TcpListener::bind(address).await?;
    let bound = listener.local_addr()?;
    Ok((bound, accept(listener, source)))
}

async fn accept(listener: TcpListener, source: Source) {
    let connections = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(permit) = connections.clone().acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Most likely the process has no file descriptors left; an immediate retry would fail as well.
                warn!(%error, "cannot take a connection for metrics");
                sleep(PAUSE).await;
                continue;
            }
        };
        let source = source.clone();
        tokio::spawn(async move {
            let answer = service_fn(move |request: Request<Incoming>| {
                let answer = source.answer(request.method(), request.uri().path());
                async move { Ok::<_, Infallible>(answer) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(LIMIT)
                .serve_connection(TokioIo::new(stream), answer);
            if let Ok(Err(error)) = timeout(LIMIT, connection).await {
                debug!(%error, "a connection for metrics broke off");
            }
            drop(permit);
        });
    }
}

/// What the server's answers are gathered from.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    pub(crate) metrics: Metrics,
    /// `None` until tart has answered for the first time.
    pub(crate) health: watch::Receiver<Option<NodeHealth>>,
}

/// One thing that must hold, and why it does not.
pub(super) type Check = (&'static str, Result<(), String>);

impl Source {
    fn answer(&self, method: &Method, path: &str) -> Response<Full<Bytes>> {
        let plain = "text/plain; charset=utf-8";
        let (status, content_type, text) = match (method, path) {
            (&Method::GET | &Method::HEAD, "/healthz") => report("healthz", &self.alive()),
            (&Method::GET | &Method::HEAD, "/readyz") => report("readyz", &self.ready()),
            (&Method::GET | &Method::HEAD, "/metrics") => {
                (StatusCode::OK, metrics::CONTENT_TYPE, self.metrics())
            }
            (&Method::GET | &Method::HEAD, _) => {
                (StatusCode::NOT_FOUND, plain, "there are /healthz, /readyz and /metrics\n".to_owned())
            }
            _ => (StatusCode::METHOD_NOT_ALLOWED, plain, "only GET and HEAD are answered\n".to_owned()),
        };
        let mut response = Response::new(Full::new(Bytes::from(text)));
        *response.status_mut() = status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        response
    }

    /// Fails only for what a restart of the agent could cure.
    pub(super) fn alive(&self) -> Vec<Check> {
        let stuck = self.metrics.heartbeat().looped.map(|at| at.elapsed()).filter(|age| *age > STUCK);
        let result =
            stuck.map_or(Ok(()), |age| Err(format!("has not looked at the clock for {} s", age.as_secs())));
        vec![("heartbeat-loop", result)]
    }

    /// Fails if the API server may take the Node for dead, or if no VM can start on it.
    fn ready(&self) -> Vec<Check> {
        let renewed = match self.metrics.heartbeat().renewed {
            None => Err("the Node's Lease was not renewed yet".to_owned()),
            Some(at) if at.elapsed() > lease::DURATION => {
                Err(format!("the Node's Lease was last renewed {} s ago", at.elapsed().as_secs()))
            }
            Some(_) => Ok(()),
        };
        let vms = match self.health.borrow().as_ref().map(|health| &health.problem) {
            None => Err("tart has not answered yet".to_owned()),
            Some(Some(problem)) => Err(format!("{}: {}", problem.reason, problem.message)),
            Some(None) => Ok(()),
        };
        let mut checks = self.alive();
        checks.extend([("heartbeat", renewed), ("vms", vms)]);
        checks
    }

    pub(super) fn metrics(&self) -> String {
        if let Some(health) = self.health.borrow().as_ref() {
            let conditions =
                statuses(health).map(|(kind, status)| (kind.as_str(), status == ConditionStatus::True));
            self.metrics.node_conditions(conditions);
        }
        self.metrics.text()
    }
}

/// Checks in the format of Kubernetes' own components.
pub(super) fn report(name: &str, checks: &[Check]) -> (StatusCode, &'static str, String) {
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
    (status, "text/plain; charset=utf-8", lines.collect::<String>() + &end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::health::{HealthProblem, NotReadyReason};

    fn source() -> (watch::Sender<Option<NodeHealth>>, Source) {
        let (sender, health) = watch::channel(None);
        (sender, Source { metrics: Metrics::new(), health })
    }

    fn failing(checks: Vec<Check>) -> Vec<&'static str> {
        checks.into_iter().filter(|(_, check)| check.is_err()).map(|(name, _)| name).collect()
    }

    #[test]
    fn readyz_names_the_failing_checks() {
        let (health, source) = source();
        assert_eq!(failing(source.alive()), Vec::<&str>::new());
        assert_eq!(failing(source.ready()), ["heartbeat", "vms"]);
        source.metrics.lease_renewed();
        health.send_replace(Some(NodeHealth::default()));
        assert_eq!(failing(source.ready()), Vec::<&str>::new());
        let problem = HealthProblem { reason: NotReadyReason::TartMissing, message: "no tart".into() };
        let mut unhealthy = NodeHealth::default();
        unhealthy.problem = Some(problem);
        health.send_replace(Some(unhealthy));
        assert_eq!(failing(source.ready()), ["vms"]);
        let text = source.metrics();
        for line in [
            "tart_kubelet_node_condition{condition=\"Ready\",status=\"False\"} 1\n",
            "tart_kubelet_node_condition{condition=\"Ready\",status=\"True\"} 0\n",
            "tart_kubelet_pods_waiting 0\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }

    #[test]
    fn the_server_answers_by_method_and_path() {
        let (_health, source) = source();
        let table = [
            (Method::GET, "/healthz", 200, "text/plain; charset=utf-8"),
            (Method::GET, "/readyz", 500, "text/plain; charset=utf-8"),
            (Method::GET, "/metrics", 200, "application/openmetrics-text; version=1.0.0; charset=utf-8"),
            (Method::GET, "/", 404, "text/plain; charset=utf-8"),
            (Method::POST, "/metrics", 405, "text/plain; charset=utf-8"),
        ];
        for (method, path, status, content_type) in table {
            let answer = source.answer(&method, path);
            assert_eq!(answer.status().as_u16(), status, "{method} {path}");
            assert_eq!(answer.headers()[CONTENT_TYPE], content_type, "{method} {path}");
        }
    }

    #[test]
    fn a_report_names_the_failing_check() {
        let (status, _, text) = report("readyz", &[("a", Ok(())), ("b", Err("no".into()))]);
        assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(text, "[+]a ok\n[-]b failed: no\nreadyz check failed\n");
    }
}
