//! API clients that follow the agent's identity: after a rotation they use the new certificate.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response, StatusCode, Uri};
use http_body::{Frame, SizeHint};
use kube::client::Body;
use kube::{Client, Config};
use tokio::sync::watch;
use tower::{BoxError, Service};

use super::cluster::Cluster;
use super::connection;
use crate::metrics::Metrics;
use crate::mutex::lock;

/// How clients reach the API server.
#[derive(Debug, Clone)]
pub(crate) struct ApiAccess {
    current: watch::Receiver<Arc<Config>>,
    refusals: Refusals,
}

#[derive(Debug)]
pub(crate) struct AccessUpdater(watch::Sender<Arc<Config>>);

impl ApiAccess {
    pub(crate) fn new(config: Config) -> (Self, AccessUpdater) {
        let (sender, receiver) = watch::channel(Arc::new(config));
        (Self { current: receiver, refusals: Refusals::default() }, AccessUpdater(sender))
    }

    pub(crate) fn server(&self) -> Uri {
        self.current.borrow().cluster_url.clone()
    }

    /// The authorities in the kubeconfig, in DER; empty if the client trusts the system's authorities.
    pub(crate) fn authorities(&self) -> Vec<Vec<u8>> {
        self.current.borrow().root_cert.clone().unwrap_or_default()
    }

    pub(crate) fn cluster(&self) -> Cluster {
        Cluster::of(&self.current.borrow())
    }

    /// How long the API server has refused the agent's credentials in every answer, from the first to the last one.
    pub(super) fn refused_for(&self) -> Duration {
        let refused = *lock(&self.refusals.0);
        refused.map_or(Duration::ZERO, |(first, last)| last.duration_since(first))
    }

    /// A client on the runtime of the caller. `metrics` count its calls.
    pub(crate) fn client(&self, metrics: Option<Metrics>) -> Result<Client, kube::Error> {
        let (mut current, refusals) = (self.current.clone(), self.refusals.clone());
        let config = current.borrow_and_update().clone();
        let namespace = config.default_namespace.clone();
        let client = connection::client(&config)?;
        Ok(Client::new(CurrentClient { current, client, metrics, refusals }, namespace))
    }
}

impl AccessUpdater {
    /// Has every client send its next request with this configuration, on new connections.
    pub(super) fn change(&self, config: Config) {
        self.0.send_replace(Arc::new(config));
    }
}

/// The first and the last answer of those since the last accepted request that refuse the agent's credentials.
#[derive(Debug, Clone, Default)]
struct Refusals(Arc<Mutex<Option<(Instant, Instant)>>>);

impl Refusals {
    fn note(&self, status: StatusCode, now: Instant) {
        let mut refused = lock(&self.0);
        if status == StatusCode::UNAUTHORIZED {
            *refused = Some((refused.map_or(now, |(first, _)| first), now));
        } else if !status.is_server_error() && status != StatusCode::TOO_MANY_REQUESTS {
            // The API server answers so only to a user that it knows. An overloaded one, or a proxy, refuses before it looks.
            *refused = None;
        }
    }
}

/// Sends each request with a client of the current identity.
///
/// After a rotation it replaces the whole client, not the certificate in its TLS settings: pooled connections and TLS sessions of the
/// old client carry the old certificate, which the API server refuses after it has expired.
struct CurrentClient {
    current: watch::Receiver<Arc<Config>>,
    client: Client,
    metrics: Option<Metrics>,
    refusals: Refusals,
}

impl Service<Request<Body>> for CurrentClient {
    type Response = Response<ResponseBody<Body>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let begun = Instant::now();
        let mut renewed = Ok(());
        // Made here, and not by the updater, so that its tasks are on this client's runtime.
        if self.current.has_changed().unwrap_or(false) {
            let config = self.current.borrow_and_update().clone();
            renewed = connection::client(&config).map(|client| self.client = client);
        }
        let Self { current, client, metrics, refusals } = self;
        let (current, client, metrics) = (current.clone(), client.clone(), metrics.clone());
        let refusals = refusals.clone();
        Box::pin(async move {
            let (is_watch, method) = (is_watch(request.uri()), request.method().to_string());
            let response = match renewed {
                Ok(()) => client.send(request).await,
                Err(error) => Err(error),
            };
            if let Ok(response) = &response {
                refusals.note(response.status(), Instant::now());
            }
            if let Some(metrics) = metrics {
                let status = response.as_ref().ok().map(|response| response.status().as_u16());
                metrics.api_call(&method, status, begun.elapsed());
            }
            Ok(response?.map(|body| ResponseBody::new(body, is_watch.then_some(current))))
        })
    }
}

fn is_watch(uri: &Uri) -> bool {
    uri.query().is_some_and(|query| query.split('&').any(|pair| pair == "watch=true" || pair == "watch=1"))
}

/// The body of an answer. The body of a watch ends between two events when the identity changes: the watcher then resumes the watch with
/// the new identity.
struct ResponseBody<B> {
    body: B,
    changed: Option<BoxFuture<'static, ()>>,
    has_changed: bool,
    between_events: bool,
}

impl<B> ResponseBody<B> {
    fn new(body: B, current: Option<watch::Receiver<Arc<Config>>>) -> Self {
        let changed = current.map(|mut current| -> BoxFuture<'static, ()> {
            Box::pin(async move {
                if current.changed().await.is_err() {
                    // The updater is gone: the identity does not change any more.
                    std::future::pending::<()>().await;
                }
            })
        });
        Self { body, changed, has_changed: false, between_events: true }
    }
}

impl<B: http_body::Body<Data = Bytes> + Unpin> http_body::Body for ResponseBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Some(changed) = &mut self.changed
            && changed.as_mut().poll(context).is_ready()
        {
            self.changed = None;
            self.has_changed = true;
        }
        if self.has_changed && self.between_events {
            return Poll::Ready(None);
        }
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(last) = frame.data_ref().and_then(|data| data.last())
        {
            // Every event is a line.
            self.between_events = *last == b'\n';
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;
    use std::convert::Infallible;
    use std::task::Waker;

    use http_body::Body as _;

    /// A body that the test feeds.
    #[derive(Default)]
    struct TestBody(VecDeque<&'static str>);

    impl http_body::Body for TestBody {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            match self.0.pop_front() {
                Some(text) => Poll::Ready(Some(Ok(Frame::data(Bytes::from(text))))),
                None => Poll::Pending,
            }
        }
    }

    fn config() -> Config {
        Config::new(Uri::from_static("https://127.0.0.1:1"))
    }

    fn poll(body: &mut ResponseBody<TestBody>) -> Poll<Option<Bytes>> {
        let mut context = Context::from_waker(Waker::noop());
        let polled = Pin::new(body).poll_frame(&mut context);
        polled.map(|frame| frame.map(|frame| frame.unwrap().into_data().unwrap()))
    }

    #[test]
    fn a_watch_is_recognised_by_its_query() {
        assert!(is_watch(&Uri::from_static("/api/v1/pods?watch=true&resourceVersion=1")));
        assert!(is_watch(&Uri::from_static("/api/v1/pods?a=b&watch=1")));
        assert!(!is_watch(&Uri::from_static("/api/v1/pods?fieldSelector=watch%3Dtrue")));
        assert!(!is_watch(&Uri::from_static("/api/v1/pods")));
    }

    #[test]
    fn refusals_count_from_the_first_to_the_last_since_an_accepted_request() {
        let (access, _updater) = ApiAccess::new(config());
        let start = Instant::now();
        for (second, status, refused) in [
            (0, 200, 0),
            (10, 401, 0),
            // Time without an answer is no refusal.
            (40, 503, 0),
            (50, 401, 40),
            (55, 429, 40),
            (60, 401, 50),
            (61, 403, 0),
            (70, 401, 0),
            (75, 401, 5),
            (76, 404, 0),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            access.refusals.note(status, start + Duration::from_secs(second));
            assert_eq!(access.refused_for(), Duration::from_secs(refused), "{status} at {second}");
        }
    }

    #[test]
    fn a_watch_ends_between_two_events_when_the_identity_changes() {
        let (access, updater) = ApiAccess::new(config());
        let mut body = ResponseBody::new(TestBody::default(), Some(access.current));
        assert!(poll(&mut body).is_pending());
        body.body.0.push_back("{\"a\":");
        assert_eq!(poll(&mut body), Poll::Ready(Some(Bytes::from("{\"a\":"))));
        updater.change(config());
        assert!(poll(&mut body).is_pending(), "half an event was sent");
        body.body.0.push_back("1}\n");
        assert_eq!(poll(&mut body), Poll::Ready(Some(Bytes::from("1}\n"))));
        assert_eq!(poll(&mut body), Poll::Ready(None));
    }

    #[test]
    fn a_watch_continues_when_the_updater_is_gone() {
        let (access, updater) = ApiAccess::new(config());
        let mut body = ResponseBody::new(TestBody::default(), Some(access.current));
        drop(updater);
        assert!(poll(&mut body).is_pending());
        assert!(poll(&mut body).is_pending());
    }

    #[test]
    fn other_bodies_are_not_cut() {
        let (_access, updater) = ApiAccess::new(config());
        let mut body = ResponseBody::new(TestBody(["a", "b"].into()), None);
        updater.change(config());
        assert_eq!(poll(&mut body), Poll::Ready(Some(Bytes::from("a"))));
        assert_eq!(poll(&mut body), Poll::Ready(Some(Bytes::from("b"))));
    }
}
