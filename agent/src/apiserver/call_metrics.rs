//! Counts the calls of the API server and the time that they take. Names are those of the kubelet.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http::{Request, Response};
use tower::{Layer, Service};

use crate::metrics::exposition::{Page, number};
use crate::metrics::histogram::Histogram;
use crate::metrics::lock;

const ENDS: [Duration; 8] = [
    Duration::from_millis(5),
    Duration::from_millis(25),
    Duration::from_millis(100),
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(4),
    Duration::from_secs(15),
];

/// The calls so far.
#[derive(Debug, Default)]
pub(crate) struct ApiCalls {
    answers: BTreeMap<(String, String), usize>,
    times: BTreeMap<String, Histogram>,
}

impl ApiCalls {
    /// One call has its answer: a status, or none at all.
    fn add(&mut self, method: &str, status: Option<u16>, took: Duration) {
        // Client libraries of Kubernetes say it in the same way.
        let code = status.map_or_else(|| "<error>".to_owned(), |status| status.to_string());
        *self.answers.entry((method.to_owned(), code)).or_default() += 1;
        self.times.entry(method.to_owned()).or_insert_with(|| Histogram::new(&ENDS)).add(took);
    }

    pub(crate) fn write(&self, page: &mut Page) {
        let total = "rest_client_requests_total";
        page.family(total, "counter", "Calls of the API server by method and answer.");
        for ((method, code), count) in &self.answers {
            page.sample(total, &[("code", code), ("method", method)], number(*count));
        }
        let name = "rest_client_request_duration_seconds";
        page.family(name, "histogram", "Time until the API server began to answer.");
        for (method, times) in &self.times {
            times.write(page, name, &[("verb", method)]);
        }
    }
}

/// Puts a counter around a client.
#[derive(Debug, Clone)]
pub(crate) struct CountCalls(Arc<Mutex<ApiCalls>>);

impl CountCalls {
    pub(crate) fn new(calls: Arc<Mutex<ApiCalls>>) -> Self {
        Self(calls)
    }
}

impl<S> Layer<S> for CountCalls {
    type Service = Counted<S>;

    fn layer(&self, inner: S) -> Counted<S> {
        Counted { inner, calls: self.0.clone() }
    }
}

/// A client whose calls are counted.
#[derive(Debug, Clone)]
pub(crate) struct Counted<S> {
    inner: S,
    calls: Arc<Mutex<ApiCalls>>,
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
        let calls = self.calls.clone();
        let begun = Instant::now();
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await;
            let status = answer.as_ref().ok().map(|response| response.status().as_u16());
            lock(&calls).add(&method, status, begun.elapsed());
            answer
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_by_method_and_answer() {
        let mut calls = ApiCalls::default();
        calls.add("GET", Some(200), Duration::from_millis(20));
        calls.add("GET", Some(200), Duration::from_millis(300));
        calls.add("GET", None, Duration::from_secs(20));
        let mut page = Page::default();
        calls.write(&mut page);
        let text = page.text();
        for line in [
            "rest_client_requests_total{code=\"200\",method=\"GET\"} 2\n",
            "rest_client_requests_total{code=\"<error>\",method=\"GET\"} 1\n",
            "rest_client_request_duration_seconds_bucket{verb=\"GET\",le=\"0.025\"} 1\n",
            "rest_client_request_duration_seconds_bucket{verb=\"GET\",le=\"0.5\"} 2\n",
            "rest_client_request_duration_seconds_bucket{verb=\"GET\",le=\"+Inf\"} 3\n",
            "rest_client_request_duration_seconds_count{verb=\"GET\"} 3\n",
        ] {
            assert!(text.contains(line), "{line} in\n{text}");
        }
    }
}
