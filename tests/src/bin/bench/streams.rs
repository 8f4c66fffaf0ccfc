//! What open streams of the kubelet API cost.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::Node;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tart_kubelet_tests::agent::RunningAgent;
use tart_kubelet_tests::control_plane::ControlPlane;
use tart_kubelet_tests::wait::eventually;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::NODE;

const DEADLINE: Duration = Duration::from_mins(1);

/// A client of the agent's kubelet API, with the API server's certificate.
pub(crate) struct KubeletClient {
    port: u16,
    tls: TlsConnector,
}

/// A stream that stays open until it is dropped.
pub(crate) struct OpenStream(#[expect(dead_code, reason = "held")] TlsStream<TcpStream>);

impl KubeletClient {
    /// Approves the agent's serving certificate, and waits until it serves with it.
    pub(crate) async fn new(control_plane: &ControlPlane, agent: &RunningAgent) -> Result<Self> {
        let client = control_plane.client().await?;
        let requests: Api<CertificateSigningRequest> = Api::all(client.clone());
        let user = format!("system:node:{NODE}");
        let request = eventually("a request for a serving certificate", DEADLINE, async || {
            let all = requests.list(&ListParams::default()).await?;
            let is_ours = |one: &&CertificateSigningRequest| {
                one.spec.username.as_deref() == Some(&user)
                    && one.spec.signer_name == "kubernetes.io/kubelet-serving"
            };
            all.iter().find(is_ours).map(ResourceExt::name_any).context("there is none")
        })
        .await?;
        control_plane.kubectl().run(["certificate", "approve", &request]).await?;
        eventually("a certificate of the cluster", DEADLINE, async || {
            let log = agent.log()?;
            ensure!(log.contains("the kubelet API has a certificate of the cluster"), "{log}");
            Ok(())
        })
        .await?;
        let nodes: Api<Node> = Api::all(client);
        let status = nodes.get(NODE).await?.status.context("no status")?;
        let endpoint = status.daemon_endpoints.and_then(|all| all.kubelet_endpoint).context("no endpoint")?;
        Ok(Self { port: endpoint.port.try_into()?, tls: connector(control_plane)? })
    }

    /// Follows the log of a container.
    pub(crate) async fn follow_log(&self, namespace: &str, pod: &str) -> Result<OpenStream> {
        let path = format!("/containerLogs/{namespace}/{pod}/main?follow=true");
        self.open(&format!("GET {path} HTTP/1.1\r\nHost: node\r\n\r\n"), "HTTP/1.1 200").await
    }

    /// Runs a command that lasts in a container, over a `WebSocket`.
    pub(crate) async fn exec(&self, namespace: &str, pod: &str) -> Result<OpenStream> {
        let path = format!("/exec/{namespace}/{pod}/main?command=sleep&command=1000&input=1&output=1");
        let head = format!(
            "GET {path} HTTP/1.1\r\nHost: node\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
             Sec-WebSocket-Protocol: v5.channel.k8s.io\r\n\r\n"
        );
        self.open(&head, "HTTP/1.1 101").await
    }

    async fn open(&self, request: &str, expected: &str) -> Result<OpenStream> {
        let open = async {
            let tcp = TcpStream::connect(("127.0.0.1", self.port)).await?;
            let name = ServerName::try_from("127.0.0.1")?;
            let mut stream = self.tls.connect(name, tcp).await?;
            stream.write_all(request.as_bytes()).await?;
            let mut head = Vec::new();
            while !head.windows(4).any(|window| window == b"\r\n\r\n") {
                match stream.read_u8().await {
                    Ok(byte) => head.push(byte),
                    Err(error) => bail!("{error} after {}", String::from_utf8_lossy(&head)),
                }
            }
            let head = String::from_utf8_lossy(&head);
            ensure!(head.starts_with(expected), "{head}");
            Ok(OpenStream(stream))
        };
        timeout(DEADLINE, open).await.context("the kubelet API does not answer")?
    }
}

fn connector(control_plane: &ControlPlane) -> Result<TlsConnector> {
    let certificate = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes());
    let mut roots = RootCertStore::empty();
    roots.add(certificate(&control_plane.authority().pair().certificate)?)?;
    let pair = control_plane.kubelet_client();
    let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_client_auth_cert(vec![certificate(&pair.certificate)?], key)?;
    Ok(Arc::new(config).into())
}
