//! The kubelet API of a Node, spoken to directly with the API server's certificate, byte by byte.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::control_plane::ControlPlane;

const DEADLINE: Duration = Duration::from_mins(1);
const BUFFER: usize = 64 << 10;
const CLOSE: u8 = 8;

/// A client of one Node.
pub struct KubeletClient {
    port: u16,
    tls: TlsConnector,
}

impl fmt::Debug for KubeletClient {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("KubeletClient").field("port", &self.port).finish_non_exhaustive()
    }
}

impl KubeletClient {
    /// A client of the port that the Node publishes now.
    pub async fn new(control_plane: &ControlPlane, node: &str) -> Result<Self> {
        let nodes: Api<Node> = Api::all(control_plane.client().await?);
        let status = nodes.get(node).await?.status.context("no status")?;
        let endpoint = status.daemon_endpoints.and_then(|all| all.kubelet_endpoint).context("no endpoint")?;
        Ok(Self { port: endpoint.port.try_into()?, tls: connector(control_plane)? })
    }

    /// The answer to a GET, from the first byte of its body on. It ends with the connection.
    pub async fn get(&self, path: &str) -> Result<TlsStream<TcpStream>> {
        let head = format!("GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n");
        self.send(&head, "HTTP/1.1 200").await
    }

    /// Announces a body of so many bytes, sends none of it, and expects an answer with this status.
    pub async fn announce_body(&self, path: &str, length: usize, status: u16) -> Result<()> {
        let head = format!("GET {path} HTTP/1.1\r\nHost: node\r\nContent-Length: {length}\r\n\r\n");
        self.send(&head, &format!("HTTP/1.1 {status}")).await.map(drop)
    }

    /// A `WebSocket` with this protocol of Kubernetes.
    pub async fn web_socket(&self, path: &str, protocol: &str) -> Result<WebSocket> {
        let head = format!(
            "GET {path} HTTP/1.1\r\nHost: node\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
             Sec-WebSocket-Protocol: {protocol}\r\n\r\n"
        );
        let stream = self.send(&head, "HTTP/1.1 101").await?;
        Ok(WebSocket { stream: BufReader::with_capacity(BUFFER, stream), message: Vec::new() })
    }

    /// A connection that goes on as SPDY/3.1 with this protocol of Kubernetes.
    pub async fn spdy(&self, path: &str, protocol: &str) -> Result<TlsStream<TcpStream>> {
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: node\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\
             X-Stream-Protocol-Version: {protocol}\r\nContent-Length: 0\r\n\r\n"
        );
        self.send(&head, "HTTP/1.1 101").await
    }

    async fn send(&self, request: &str, expected: &str) -> Result<TlsStream<TcpStream>> {
        let send = async {
            let tcp = TcpStream::connect(("127.0.0.1", self.port)).await?;
            let mut stream = self.tls.connect(ServerName::try_from("127.0.0.1")?, tcp).await?;
            stream.write_all(request.as_bytes()).await?;
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                match stream.read_u8().await {
                    Ok(byte) => head.push(byte),
                    Err(error) => bail!("{error} after {}", String::from_utf8_lossy(&head)),
                }
            }
            let head = String::from_utf8_lossy(&head);
            ensure!(head.starts_with(expected), "{head}");
            Ok(stream)
        };
        timeout(DEADLINE, send).await.context("the kubelet API does not answer")?
    }
}

/// A `WebSocket` to a Node. It is read only.
#[derive(Debug)]
pub struct WebSocket {
    stream: BufReader<TlsStream<TcpStream>>,
    message: Vec<u8>,
}

impl WebSocket {
    /// The next message with data, with the byte of its channel; `None` when the Node has closed the connection.
    pub async fn next(&mut self) -> Result<Option<&[u8]>> {
        loop {
            let kind = self.stream.read_u8().await? & 0x0f;
            let length = match self.stream.read_u8().await? {
                126 => u64::from(self.stream.read_u16().await?),
                127 => self.stream.read_u64().await?,
                short => u64::from(short),
            };
            self.message.resize(length.try_into()?, 0);
            self.stream.read_exact(&mut self.message).await?;
            match kind {
                // Text and binary.
                1 | 2 => break,
                CLOSE => {
                    let code = self.message.get(..2).map(|code| u16::from_be_bytes([code[0], code[1]]));
                    ensure!(code == Some(1000), "closed with {code:?}");
                    return Ok(None);
                }
                _ => {}
            }
        }
        Ok(Some(&self.message))
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
