//! Hands a request to its handler, once it is authenticated and authorized.

use http::{Method, Request, Response, StatusCode};
use hyper::body::{Body as _, Incoming};

use super::auth::{Auth, PeerCertificates};
use super::context::Context;
use super::path::Route;
use super::response::{self, Body};
use super::{attach, exec, logs, port_forward, run};

/// No request of this API has a body, but some clients send an empty object.
const MAX_BODY: u64 = 64 << 10;

/// Answers one request; `admit` is called when the client may have an answer.
pub(super) async fn answer(
    request: Request<Incoming>,
    certificates: &PeerCertificates,
    auth: &Auth,
    context: &Context,
    admit: impl FnOnce() -> bool,
) -> Response<Body> {
    let (method, path) = (request.method(), request.uri().path());
    // Every path needs rights, also one that leads nowhere.
    if let Err(error) = auth.check(certificates, (method, path, request.headers())).await {
        return error.response();
    }
    if !admit() {
        return response::text(StatusCode::SERVICE_UNAVAILABLE, "too many connections; try again later");
    }
    if request.body().size_hint().lower() > MAX_BODY {
        return response::text(StatusCode::PAYLOAD_TOO_LARGE, "a request to a Node has no body");
    }
    let Some(route) = Route::parse(path) else {
        return response::text(StatusCode::NOT_FOUND, "404 page not found");
    };
    if !route.allows(method) {
        return response::text(StatusCode::METHOD_NOT_ALLOWED, "405: Method Not Allowed");
    }
    match route {
        Route::Healthz => response::text(StatusCode::OK, "ok"),
        Route::ContainerLogs(container) => logs::handle(request.uri().query(), &container, context).await,
        Route::Exec(container) => exec::handle(request, &container, context).await,
        Route::Attach(container) => attach::handle(request, &container, context).await,
        Route::Run(container) => run::handle(request, &container, context).await,
        Route::PortForward(pod) => port_forward::handle(request, &pod, context).await,
    }
}

impl Route {
    fn allows(&self, method: &Method) -> bool {
        match self {
            // A WebSocket begins with GET, SPDY with POST.
            Self::Exec(_) | Self::Attach(_) | Self::PortForward(_) => {
                [Method::GET, Method::POST].contains(method)
            }
            Self::Run(_) => *method == Method::POST,
            Self::Healthz | Self::ContainerLogs(_) => [Method::GET, Method::HEAD].contains(method),
        }
    }
}
