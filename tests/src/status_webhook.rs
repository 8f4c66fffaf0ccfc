//! An admission webhook that refuses the final status of Pods, with any HTTP status code.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http_body_util::{BodyExt, Collected, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::api::{Api, PostParams};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::certificates::{Authority, Pair};
use crate::control_plane::ControlPlane;

/// The API server calls it for each status of a Pod in one namespace. It serves until it is dropped, on the runtime that started it.
#[derive(Debug)]
pub struct StatusWebhook {
    refusals: Arc<Refusals>,
    _tasks: JoinSet<()>,
}

#[derive(Debug, Default)]
struct Refusals {
    /// The status code of a refusal.
    code: AtomicU32,
    /// How many final statuses are still to be refused.
    left: AtomicU32,
    /// How often the API server has called.
    calls: AtomicU32,
}

impl StatusWebhook {
    /// Registers a webhook that refuses nothing yet.
    pub async fn start(control_plane: &ControlPlane, namespace: &str) -> Result<Self> {
        let authority = Authority::new("status-webhook")?;
        let acceptor = acceptor(&authority.server(&["127.0.0.1"])?)?;
        let listener = TcpListener::bind("127.0.0.1:0").await.context("no free port")?;
        let url = format!("https://{}/", listener.local_addr()?);
        let refusals = Arc::new(Refusals::default());
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(listener, acceptor, refusals.clone()));
        let configuration: ValidatingWebhookConfiguration = serde_json::from_value(json!({
            "metadata": {"name": format!("status-webhook-{namespace}")},
            "webhooks": [{
                "name": "status-webhook.tuist.dev",
                "clientConfig": {"url": url, "caBundle": BASE64_STANDARD.encode(&authority.pair().certificate)},
                "rules": [{
                    "apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["pods/status"],
                }],
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                "sideEffects": "None",
                "failurePolicy": "Ignore",
                "admissionReviewVersions": ["v1"],
            }],
        }))?;
        let all: Api<ValidatingWebhookConfiguration> = Api::all(control_plane.client().await?);
        all.create(&PostParams::default(), &configuration).await.context("cannot register the webhook")?;
        Ok(Self { refusals, _tasks: tasks })
    }

    /// Refuses the next `times` final statuses with a status code.
    pub fn refuse(&self, code: u16, times: u32) {
        self.refusals.code.store(code.into(), Ordering::SeqCst);
        self.refusals.left.store(times, Ordering::SeqCst);
    }

    /// How many final statuses it still has to refuse.
    pub fn refusals_left(&self) -> u32 {
        self.refusals.left.load(Ordering::SeqCst)
    }

    /// How often the API server has called it.
    pub fn calls(&self) -> u32 {
        self.refusals.calls.load(Ordering::SeqCst)
    }
}

fn acceptor(pair: &Pair) -> Result<TlsAcceptor> {
    let certificate = CertificateDer::from_pem_slice(pair.certificate.as_bytes())?;
    let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)?;
    Ok(Arc::new(config).into())
}

async fn serve(listener: TcpListener, acceptor: TlsAcceptor, refusals: Arc<Refusals>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let (acceptor, refusals) = (acceptor.clone(), refusals.clone());
        connections.spawn(async move {
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let service = service_fn(async |request: Request<Incoming>| {
                let asked = request.into_body().collect().await.map(Collected::to_bytes);
                let answer = refusals.answer(&asked.unwrap_or_default());
                let body = Full::new(Bytes::from(answer.to_string()));
                let response = Response::builder().header("Content-Type", "application/json").body(body);
                Ok::<_, Infallible>(response.unwrap_or_default())
            });
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

impl Refusals {
    fn answer(&self, asked: &[u8]) -> Value {
        let review: Value = serde_json::from_slice(asked).unwrap_or_default();
        let request = &review["request"];
        self.calls.fetch_add(1, Ordering::SeqCst);
        let is_final = matches!(request["object"]["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
        let less = |left: u32| left.checked_sub(1);
        let refuses = is_final && self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok();
        let code = self.code.load(Ordering::SeqCst);
        json!({
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "response": {
                "uid": request["uid"], "allowed": !refuses, "status": {"code": code, "message": "not now"},
            },
        })
    }
}
