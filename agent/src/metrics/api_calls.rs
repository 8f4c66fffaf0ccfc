//! Calls to the API server. The names are those of the kubelet.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;

use super::{Label, Metrics, histogram, observe};

const BUCKETS: [f64; 8] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 4.0, 15.0];

metrics! {
    pub(super) struct ApiCallMetrics {
        requests: Family<[(&'static str, String); 2], Counter> = Family::default(),
            "rest_client_requests", "Calls of the API server by method and answer";
        durations: Family<Label<String>, Histogram, fn() -> Histogram> =
            Family::new_with_constructor(|| histogram(&BUCKETS)),
            "rest_client_request_duration_seconds", "Time until the API server began to answer";
    }
}

impl Metrics {
    /// A call to the API server is over; `status` is `None` if no answer came.
    pub(crate) fn api_call(&self, method: &str, status: Option<u16>, took: Duration) {
        // The word for no answer is that of Kubernetes' client libraries.
        let code = status.map_or_else(|| "<error>".to_owned(), |status| status.to_string());
        let calls = &self.0.api_calls;
        calls.requests.get_or_create(&[("code", code), ("method", method.to_owned())]).inc();
        observe(&calls.durations.get_or_create(&[("verb", method.to_owned())]), took);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::tests::assert_lines;

    #[test]
    fn calls_are_counted_by_method_and_status_code() {
        let metrics = Metrics::new();
        metrics.api_call("GET", Some(200), Duration::from_millis(20));
        metrics.api_call("GET", Some(200), Duration::from_millis(300));
        metrics.api_call("GET", None, Duration::from_secs(20));
        assert_lines(
            &metrics,
            &[
                "rest_client_requests_total{code=\"200\",method=\"GET\"} 2",
                "rest_client_requests_total{code=\"<error>\",method=\"GET\"} 1",
                "rest_client_request_duration_seconds_bucket{le=\"0.025\",verb=\"GET\"} 1",
                "rest_client_request_duration_seconds_bucket{le=\"0.5\",verb=\"GET\"} 2",
                "rest_client_request_duration_seconds_bucket{le=\"+Inf\",verb=\"GET\"} 3",
                "rest_client_request_duration_seconds_count{verb=\"GET\"} 3",
            ],
        );
    }
}
