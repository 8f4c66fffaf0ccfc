//! What the programs of the fleet count, and the Prometheus that keeps it.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use kube::ResourceExt as _;
use serde_json::{Value, json};
use tart_kubelet_tests::prometheus::Prometheus;
use tart_kubelet_tests::sandbox::Sandbox;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::world::{RELEASE, World};

const DEADLINE: Duration = Duration::from_secs(20);
const INTERVAL: Duration = Duration::from_secs(2);

/// The page of metrics at an address.
pub(crate) async fn page(address: &str) -> Result<String> {
    let ask = async {
        let mut stream = TcpStream::connect(address).await?;
        let request = format!("GET /metrics HTTP/1.0\r\nHost: {address}\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        anyhow::Ok(answer)
    };
    tokio::time::timeout(DEADLINE, ask).await.with_context(|| format!("{address} does not answer"))?
}

/// A Prometheus that scrapes the provider and, with a right of its own, the kubelet API of each Node.
pub(crate) struct Scraper {
    prometheus: Prometheus,
    nodes: PathBuf,
    provider: PathBuf,
    written: Vec<Value>,
}

impl Scraper {
    pub(crate) async fn start(world: &World, sandbox: &Sandbox) -> Result<Self> {
        let directory = sandbox.directory("scraper")?;
        let group = "rbac.authorization.k8s.io";
        let account = json!({ "apiVersion": "v1", "kind": "List", "items": [
            { "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "prometheus" } },
            { "apiVersion": format!("{group}/v1"), "kind": "ClusterRole", "metadata": { "name": "prometheus" },
              "rules": [{ "apiGroups": [""], "resources": ["nodes/metrics"], "verbs": ["get"] }] },
            { "apiVersion": format!("{group}/v1"), "kind": "ClusterRoleBinding", "metadata": { "name": "prometheus" },
              "subjects": [{ "kind": "ServiceAccount", "name": "prometheus", "namespace": RELEASE }],
              "roleRef": { "kind": "ClusterRole", "name": "prometheus", "apiGroup": group } },
        ] });
        let kubectl = world.kubectl();
        kubectl.apply(&account.to_string()).await?;
        let token = kubectl.run(["create", "token", "prometheus", "--duration=24h"]).await?;
        let [token_file, authority, nodes, provider] =
            ["token", "ca.crt", "nodes.json", "provider.json"].map(|name| directory.join(name));
        std::fs::write(&token_file, token.trim())?;
        std::fs::write(&authority, &world.control_plane.authority().pair().certificate)?;
        let job = |name: &str, file: &PathBuf| json!({ "job_name": name, "file_sd_configs": [{ "files": [file], "refresh_interval": "2s" }] });
        let mut kubelets = job("kubelet", &nodes);
        kubelets["scheme"] = json!("https");
        kubelets["authorization"] = json!({ "credentials_file": token_file });
        kubelets["tls_config"] = json!({ "ca_file": authority });
        let builder = Prometheus::builder().interval(INTERVAL);
        let prometheus = builder.job(kubelets).job(job("tart-provider", &provider)).start(sandbox)?;
        Ok(Self { prometheus, nodes, provider, written: Vec::new() })
    }

    /// Where Prometheus listens.
    pub(crate) fn port(&self) -> u16 {
        self.prometheus.client().port()
    }

    /// Tells Prometheus of Nodes and providers as they come and go, for as long as it is polled.
    pub(crate) async fn follow(&mut self, world: &World) -> std::convert::Infallible {
        let mut tick = tokio::time::interval(INTERVAL);
        loop {
            tick.tick().await;
            // What cannot be read or written now is at the next tick.
            let _ = self.tell(world).await;
        }
    }

    async fn tell(&mut self, world: &World) -> Result<()> {
        let nodes = world.nodes().await?;
        let targets = nodes.iter().filter_map(|node| {
            let status = node.status.as_ref()?;
            let addresses = status.addresses.as_ref()?;
            let address = &addresses.iter().find(|one| one.type_ == "InternalIP")?.address;
            let port = status.daemon_endpoints.as_ref()?.kubelet_endpoint.as_ref()?.port;
            let short = node.name_any();
            let short = short.strip_prefix("macs-tart-provider-").unwrap_or(&short).to_owned();
            Some(json!({ "targets": [format!("{address}:{port}")], "labels": { "instance": short } }))
        });
        let nodes: Value = targets.collect();
        let addresses = world.provider.lock().await.metrics_addresses();
        let replicas = (1..).zip(addresses).map(|(number, address)| {
            json!({ "targets": [address], "labels": { "instance": format!("tart-provider-{number}") } })
        });
        let wanted = vec![nodes, replicas.collect()];
        if self.written != wanted {
            for (file, content) in [&self.nodes, &self.provider].into_iter().zip(&wanted) {
                let new = file.with_extension("new");
                std::fs::write(&new, content.to_string())?;
                std::fs::rename(new, file)?;
            }
            self.written = wanted;
        }
        Ok(())
    }
}
