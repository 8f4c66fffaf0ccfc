//! API clients that follow the agent's identity: when the certificate changes, they change over to it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response, Uri};
use http_body::{Frame, SizeHint};
use kube::client::Body;
use kube::{Client, Config};
use tokio::sync::watch;
use tower::{BoxError, Layer, Service};

use super::cluster::Cluster;
use super::connection;

/// How the API server is reached; good for any number of clients.
#[derive(Debug, Clone)]
pub(crate) struct ApiAccess(watch::Receiver<Arc<Config>>);

/// Changes how the API server is reached.
#[derive(Debug)]
pub(crate) struct Changer(watch::Sender<Arc<Config>>);

impl ApiAccess {
    /// Access by these means, until the changer says otherwise.
    pub(crate) fn new(config: Config) -> (Self, Changer) {
        let (sender, receiver) = watch::channel(Arc::new(config));
        (Self(receiver), Changer(sender))
    }

    /// The API server's address.
    pub(crate) fn server(&self) -> Uri {
        self.0.borrow().cluster_url.clone()
    }

    /// The cluster that it leads to.
    pub(crate) fn cluster(&self) -> Cluster {
        Cluster::of(&self.0.borrow())
    }

    /// A client that belongs to the runtime of the caller, with something around it that sees every call.
    pub(crate) fn client<L>(&self, layer: &L) -> Result<Client, kube::Error>
    where
        L: Layer<Switch>,
        L::Service:
            Service<Request<Body>, Response = Response<Passing<Body>>, Error = BoxError> + Send + 'static,
        <L::Service as Service<Request<Body>>>::Future: Send,
    {
        let mut current = self.0.clone();
        let config = current.borrow_and_update().clone();
        let namespace = config.default_namespace.clone();
        let client = connection::client(&config)?;
        Ok(Client::new(layer.layer(Switch { current, client }), namespace))
    }
}

impl Changer {
    /// From now on every request goes out by these means, on connections of its own.
    pub(crate) fn change(&self, config: Config) {
        self.0.send_replace(Arc::new(config));
    }
}

/// Sends each request with the client for the current identity.
///
/// A whole client is replaced, not the certificate in its TLS settings: its pool holds connections, and its TLS sessions can
/// be resumed, in the name of the old certificate, which the API server turns away once that has ended.
pub(crate) struct Switch {
    current: watch::Receiver<Arc<Config>>,
    client: Client,
}

impl Service<Request<Body>> for Switch {
    type Response = Response<Passing<Body>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        // Made here, and not by whoever brought the change, so that its tasks are on this client's runtime.
        if self.current.has_changed().unwrap_or(false) {
            let config = self.current.borrow_and_update().clone();
            match connection::client(&config) {
                Ok(client) => self.client = client,
                Err(error) => return Box::pin(async { Err(error.into()) }),
            }
        }
        let client = self.client.clone();
        let current = self.current.clone();
        Box::pin(async move {
            let is_watch = is_watch(request.uri());
            let response = client.send(request).await?;
            Ok(response.map(|body| Passing::new(body, is_watch.then_some(current))))
        })
    }
}

fn is_watch(uri: &Uri) -> bool {
    uri.query().is_some_and(|query| query.split('&').any(|pair| pair == "watch=true" || pair == "watch=1"))
}

/// An answer's body. That of a watch ends, between two events, when the identity changes: the watch is then taken up
/// again with the new one, from where it was.
pub(crate) struct Passing<B> {
    body: B,
    changed: Option<BoxFuture<'static, ()>>,
    has_changed: bool,
    between_events: bool,
}

impl<B> Passing<B> {
    fn new(body: B, current: Option<watch::Receiver<Arc<Config>>>) -> Self {
        let changed = current.map(|mut current| -> BoxFuture<'static, ()> {
            Box::pin(async move {
                if current.changed().await.is_err() {
                    // Nobody is left who could change it.
                    std::future::pending::<()>().await;
                }
            })
        });
        Self { body, changed, has_changed: false, between_events: true }
    }
}

impl<B: http_body::Body<Data = Bytes> + Unpin> http_body::Body for Passing<B> {
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

    /// A body that is fed by hand.
    #[derive(Default)]
    struct Fed(VecDeque<&'static str>);

    impl http_body::Body for Fed {
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

    fn poll(body: &mut Passing<Fed>) -> Poll<Option<Bytes>> {
        let mut context = Context::from_waker(Waker::noop());
        let polled = Pin::new(body).poll_frame(&mut context);
        polled.map(|frame| frame.map(|frame| frame.unwrap().into_data().unwrap()))
    }

    #[test]
    fn only_a_watch_is_cut_short() {
        assert!(is_watch(&Uri::from_static("/api/v1/pods?watch=true&resourceVersion=1")));
        assert!(is_watch(&Uri::from_static("/api/v1/pods?a=b&watch=1")));
        assert!(!is_watch(&Uri::from_static("/api/v1/pods?fieldSelector=watch%3Dtrue")));
        assert!(!is_watch(&Uri::from_static("/api/v1/pods")));
    }

    #[test]
    fn a_watch_ends_between_two_events() {
        let (access, changer) = ApiAccess::new(config());
        let mut body = Passing::new(Fed::default(), Some(access.0));
        assert!(poll(&mut body).is_pending());
        body.body.0.push_back("{\"a\":");
        assert_eq!(poll(&mut body), Poll::Ready(Some(Bytes::from("{\"a\":"))));
        changer.change(config());
        assert!(poll(&mut body).is_pending(), "half an event is out");
        body.body.0.push_back("1}\n");
        assert_eq!(poll(&mut body), Poll::Ready(Some(Bytes::from("1}\n"))));
        assert_eq!(poll(&mut body), Poll::Ready(None));
    }

    #[test]
    fn a_watch_goes_on_when_nobody_can_change_anything() {
        let (access, changer) = ApiAccess::new(config());
        let mut body = Passing::new(Fed::default(), Some(access.0));
        drop(changer);
        assert!(poll(&mut body).is_pending());
        assert!(poll(&mut body).is_pending());
    }

    #[test]
    fn other_bodies_pass_whole() {
        let (_access, changer) = ApiAccess::new(config());
        let mut body = Passing::new(Fed(["a", "b"].into()), None);
        changer.change(config());
        assert_eq!(poll(&mut body), Poll::Ready(Some(Bytes::from("a"))));
        assert_eq!(poll(&mut body), Poll::Ready(Some(Bytes::from("b"))));
    }
}
