//! Connections to ports of a guest: `kubectl port-forward`.

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;

use super::context::Context;
use super::path::PodPath;
use super::response::{self, Body};

/// Answers a request that is authenticated and authorized.
///
/// A handler that takes the connection over takes `hyper::upgrade::on(request)`, returns 101 and goes on in a task. The connection counts
/// until the upgraded stream is dropped.
#[expect(clippy::unused_async, reason = "the handler of a stream waits for the guest")]
pub(super) async fn handle(
    _request: Request<Incoming>,
    _target: &PodPath,
    _context: &Context,
) -> Response<Body> {
    response::failure(
        StatusCode::NOT_IMPLEMENTED,
        "NotImplemented",
        "tart-kubelet does not serve port-forward yet",
    )
}
