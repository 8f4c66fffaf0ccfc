//! The real Cluster API core on the real control plane, with its webhooks.

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::{Engine, prelude::BASE64_STANDARD};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::control_plane::ControlPlane;
use crate::process::{self, Process};
use crate::programs;
use crate::wait::eventually;

const MODULE: &str = "sigs.k8s.io/cluster-api";
const START_DEADLINE: Duration = Duration::from_mins(2);
/// `go` may have to fetch the module.
const GO_DEADLINE: Duration = Duration::from_mins(5);

/// A running Cluster API core; dropping it kills it.
#[derive(Debug)]
pub struct ClusterApi {
    process: Process,
}

impl ClusterApi {
    /// The one that all tests of one process share, on the shared control plane.
    pub async fn shared() -> Result<&'static Self> {
        static SHARED: OnceCell<ClusterApi> = OnceCell::const_new();
        SHARED.get_or_try_init(async || Self::start(ControlPlane::shared().await?).await).await
    }

    /// Installs its kinds, starts it, and registers its webhooks.
    pub async fn start(control_plane: &ControlPlane) -> Result<Self> {
        let sandbox = control_plane.sandbox();
        let program = programs::control_plane(sandbox, &["cluster-api-core"]).await?.join("cluster-api-core");
        let config = module(control_plane).await?.join("core/config");
        let kubectl = control_plane.kubectl();
        let crds = config.join("crd/bases").display().to_string();
        kubectl.run(["apply", "--server-side", "-f", crds.as_str()]).await?;
        let established = ["wait", "--for=condition=Established", "--timeout=60s", "-f", crds.as_str()];
        kubectl.run(established).await?;

        let directory = sandbox.directory("cluster-api")?;
        let [webhook, health, diagnostics] = free_ports()?;
        let serving = control_plane.authority().server(&["127.0.0.1"])?;
        std::fs::write(directory.join("tls.crt"), &serving.certificate)?;
        std::fs::write(directory.join("tls.key"), &serving.key)?;
        let mut command = sandbox.command(program);
        command.arg("--kubeconfig").arg(control_plane.admin_kubeconfig());
        command.arg("--webhook-cert-dir").arg(&directory).arg(format!("--webhook-port={webhook}"));
        command.arg(format!("--health-addr=127.0.0.1:{health}"));
        command.arg(format!("--diagnostics-address=127.0.0.1:{diagnostics}")).arg("--insecure-diagnostics");
        let process = Process::start("cluster-api-core", &mut command, &directory.join("log"))?;
        eventually("Cluster API core to be ready", START_DEADLINE, async || {
            process.ensure_running()?;
            let answer = tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, webhook)).await;
            answer.map(drop).context("its webhooks do not listen")
        })
        .await?;

        let manifest = std::fs::read_to_string(config.join("webhook/manifests.yaml"))?;
        let authority = BASE64_STANDARD.encode(&control_plane.authority().pair().certificate);
        kubectl.apply(&with_url(&manifest, webhook, &authority)?).await?;
        Ok(Self { process })
    }

    /// Lets it look at the Nodes of a Cluster with the token that a Secret of the namespace has: a kubeconfig where Cluster API looks for one.
    pub async fn connect(
        control_plane: &ControlPlane,
        namespace: &str,
        cluster: &str,
        token: &str,
    ) -> Result<()> {
        let secrets = Api::<Secret>::namespaced(control_plane.client().await?, namespace);
        let token =
            eventually("the token with which Cluster API looks at Nodes", START_DEADLINE, async || {
                let secret = secrets.get(token).await?;
                let token = secret.data.and_then(|mut data| data.remove("token")).context("no token yet")?;
                Ok(String::from_utf8(token.0)?)
            })
            .await?;
        let authority = BASE64_STANDARD.encode(&control_plane.authority().pair().certificate);
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{ "name": "c", "cluster": { "server": control_plane.server(), "certificate-authority-data": authority } }],
            "users": [{ "name": "c", "user": { "token": token } }],
            "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "c" } }],
        });
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "cluster.x-k8s.io/secret",
            "metadata": { "name": format!("{cluster}-kubeconfig"), "labels": { "cluster.x-k8s.io/cluster-name": cluster } },
            "stringData": { "value": kubeconfig.to_string() },
        });
        control_plane.kubectl().namespace(namespace).apply(&secret.to_string()).await.map(drop)
    }

    /// An error with the end of its log, when it has died.
    pub fn ensure_running(&self) -> Result<()> {
        self.process.ensure_running()
    }

    /// What it has logged.
    pub fn log(&self) -> Result<String> {
        self.process.log()
    }
}

/// The source of Cluster API, which has its kinds and its webhooks.
async fn module(control_plane: &ControlPlane) -> Result<PathBuf> {
    let mut command = control_plane.sandbox().command("go");
    command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("control-plane"));
    command.args(["mod", "download", "-json", MODULE]);
    let printed = process::run(command, "", GO_DEADLINE).await?;
    let module: Value = serde_json::from_str(&printed)?;
    Ok(PathBuf::from(module["Dir"].as_str().context("go does not say where the module is")?))
}

/// The webhooks by URL: there is no Service in front of a process outside of the cluster.
fn with_url(manifest: &str, port: u16, authority: &str) -> Result<String> {
    let mut lines = Vec::new();
    for line in manifest.lines() {
        match line.trim() {
            "service:" | "name: webhook-service" | "namespace: system" => {}
            trimmed => match trimmed.strip_prefix("path: ") {
                Some(path) => {
                    let client =
                        json!({ "url": format!("https://127.0.0.1:{port}{path}"), "caBundle": authority });
                    let last: &mut String = lines.last_mut().context("a path without a client")?;
                    ensure!(last.trim() == "clientConfig:", "a path after {last}");
                    *last = format!("{last} {client}");
                }
                None => lines.push(line.to_owned()),
            },
        }
    }
    Ok(lines.join("\n"))
}

fn free_ports() -> Result<[u16; 3]> {
    let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port");
    // All are held at once, or the same port might come twice.
    let listeners = [bind()?, bind()?, bind()?];
    let mut ports = [0; 3];
    for (port, listener) in ports.iter_mut().zip(&listeners) {
        *port = listener.local_addr()?.port();
    }
    Ok(ports)
}
