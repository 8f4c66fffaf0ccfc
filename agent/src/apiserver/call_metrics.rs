//! Records every call to the API server in the metrics.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use http::{Request, Response};
use tower::{Layer, Service};

use crate::metrics::Metrics;

/// A layer that counts the calls of the client that it is put around.
#[derive(Debug, Clone)]
pub(crate) struct CountCalls(pub(crate) Metrics);

impl<S> Layer<S> for CountCalls {
    type Service = Counted<S>;

    fn layer(&self, inner: S) -> Counted<S> {
        Counted { inner, metrics: self.0.clone() }
    }
}

/// A client whose calls are counted.
#[derive(Debug, Clone)]
pub(crate) struct Counted<S> {
    inner: S,
    metrics: Metrics,
}

impl<S, A, B> Service<Request<A>> for Counted<S>
where
    S: Service<Request<A>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<B>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let method = request.method().to_string();
        let metrics = self.metrics.clone();
        let begun = Instant::now();
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await;
            let status = answer.as_ref().ok().map(|response| response.status().as_u16());
            metrics.api_call(&method, status, begun.elapsed());
            answer
        })
    }
}
