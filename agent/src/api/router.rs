//! Hands a request to its handler, once it is authenticated and authorized.

use http::{Method, Request, Response, StatusCode};
use hyper::body::{Body as _, Incoming};
use tracing::warn;

use super::auth::{Auth, PeerCertificates};
use super::context::ApiContext;
use super::http::head;
use super::http::path::Route;
use super::http::response::{self, Body};
use super::stats::{Sample, exposition, summary};
use super::{attach, exec, local, logs, pods, port_forward, run};
use crate::error_chain::chain;
use crate::metrics;
use crate::names::PodUid;

/// No request of this API has a body, but some clients send an empty object.
const MAX_BODY: u64 = 64 << 10;

/// Answers one request; `admit` is called when the client may have an answer.
pub(super) async fn answer(
    request: Request<Incoming>,
    certificates: &PeerCertificates,
    auth: &Auth,
    context: &ApiContext,
    admit: impl FnOnce() -> bool,
) -> Response<Body> {
    if head::is_too_large(&request) {
        return response::text(
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            "URL and headers have more than 128 KiB",
        );
    }
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
        Route::Healthz => healthz(context),
        Route::Configz => json(&context.settings.render()),
        Route::Pods => json(&pods::all(context.pods.pods())),
        Route::RunningPods => with_sample(context, running_pods).await,
        Route::StatsSummary => with_sample(context, summary).await,
        Route::Metrics => metrics(context.local.metrics()),
        Route::ResourceMetrics => {
            with_sample(context, |_, sample| metrics(exposition::resource(sample))).await
        }
        Route::CadvisorMetrics => {
            let text = |context: &ApiContext, sample: &_| exposition::cadvisor(sample, context.facts.cores);
            with_sample(context, |context, sample| metrics(text(context, sample))).await
        }
        Route::ProbeMetrics => metrics(context.local.metrics.probes_text()),
        Route::ContainerLogs(container) => logs::handle(request.uri().query(), &container, context).await,
        Route::Exec(container) => exec::handle(request, &container, context).await,
        Route::Attach(container) => attach::handle(request, &container, context).await,
        Route::Run(container) => run::handle(request, &container, context).await,
        Route::PortForward(pod) => port_forward::handle(request, &pod, context).await,
    }
}

/// As the kubelet: one word while all is well.
fn healthz(context: &ApiContext) -> Response<Body> {
    let checks = context.local.alive();
    if checks.iter().all(|(_, result)| result.is_ok()) {
        return response::text(StatusCode::OK, "ok");
    }
    let (status, content_type, text) = local::report("healthz", &checks);
    response::content(status, content_type, text)
}

fn json(value: &serde_json::Value) -> Response<Body> {
    response::content(StatusCode::OK, "application/json", value.to_string())
}

fn metrics(text: String) -> Response<Body> {
    response::content(StatusCode::OK, metrics::CONTENT_TYPE, text)
}

fn summary(context: &ApiContext, sample: &Sample) -> Response<Body> {
    json(&summary::render(&context.node.to_string(), sample, context.facts.max_pids))
}

fn running_pods(context: &ApiContext, sample: &Sample) -> Response<Body> {
    let is_running = |uid: &PodUid| sample.vms.iter().any(|vm| vm.uid == *uid);
    json(&pods::running(context.pods.pods(), is_running))
}

async fn with_sample(
    context: &ApiContext,
    answer: impl FnOnce(&ApiContext, &Sample) -> Response<Body>,
) -> Response<Body> {
    match context.sampler.sample().await {
        Ok(sample) => answer(context, &sample),
        Err(error) => {
            warn!(error = chain(&error), "cannot measure what VMs use");
            response::text(StatusCode::INTERNAL_SERVER_ERROR, chain(&error))
        }
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
            _ => [Method::GET, Method::HEAD].contains(method),
        }
    }
}
