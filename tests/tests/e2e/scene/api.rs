//! The agent's kubelet API, as the API server and others reach it.

use std::path::PathBuf;

use anyhow::{Context, Result};
use http::{Method, Request};
use kube::Client;
use tart_kubelet_tests::agent::RunningAgent;
use tart_kubelet_tests::kubeconfig::{self, Credentials};
use tart_kubelet_tests::process::Process;

use super::{DEADLINE, Scene};

impl Scene {
    /// A scene with its agent running, its Node ready, and a serving certificate that the API server accepts.
    pub(crate) async fn with_api(name: &str) -> Result<(Self, RunningAgent)> {
        let (scene, agent) = Self::with_agent(name).await?;
        scene.approve_serving_certificate(&agent).await?;
        Ok((scene, agent))
    }

    /// The same with an agent that does not declare that it takes `WebSockets`, as one of before 1.36.
    pub(crate) async fn without_declared_features(name: &str) -> Result<(Self, RunningAgent)> {
        let mut scene = Self::new(name).await?;
        scene.agent = scene.agent.clone().flag("--feature-gates", "ExtendWebSocketsToKubelet=false");
        let agent = scene.start(&scene.agent).await?;
        scene.approve_serving_certificate(&agent).await?;
        Ok((scene, agent))
    }

    /// Approves the agent's request for a serving certificate, and waits until the agent serves with it.
    pub(crate) async fn approve_serving_certificate(&self, agent: &RunningAgent) -> Result<()> {
        self.control_plane.approve_serving_certificate(&self.node, agent).await
    }

    /// Waits for the Node's only request for a serving certificate, apart from those that are known.
    pub(crate) async fn serving_request(&self, known: &[&str]) -> Result<String> {
        self.control_plane.serving_request(&self.node, known).await
    }

    /// The port that the Node publishes.
    pub(crate) async fn kubelet_port(&self) -> Result<u16> {
        let status = self.nodes.get(&self.node).await?.status.context("no status")?;
        let endpoint = status.daemon_endpoints.and_then(|all| all.kubelet_endpoint).context("no endpoint")?;
        Ok(endpoint.port.try_into()?)
    }

    /// A client of the kubelet API itself, with these credentials.
    pub(crate) async fn node_client(&self, credentials: &Credentials) -> Result<Client> {
        let server = format!("https://127.0.0.1:{}", self.kubelet_port().await?);
        let path = self.scratch_file("node.kubeconfig")?;
        let authority = &self.control_plane.authority().pair().certificate;
        kubeconfig::write(&path, &server, authority, credentials)?;
        kubeconfig::client(&path).await
    }

    /// A client of the kubelet API with the certificate of a user.
    pub(crate) async fn node_client_as(&self, user: &str) -> Result<Client> {
        let pair = self.control_plane.authority().client(user, None)?;
        self.node_client(&Credentials::Certificate(pair)).await
    }

    /// Lets a user, or a service account of the namespace, use subresources of Nodes.
    pub(crate) async fn allow(&self, subject: &str, verb: &str, resources: &[&str]) -> Result<()> {
        let name = format!("{}-{}", self.node, subject.replace([':', '='], "-").trim_matches('-'));
        let resources = format!("--resource={}", resources.join(","));
        let verb = format!("--verb={verb}");
        self.kubectl.run(["create", "clusterrole", &name, &verb, &resources]).await?;
        let role = format!("--clusterrole={name}");
        self.kubectl.run(["create", "clusterrolebinding", &name, &role, subject]).await.map(drop)
    }

    /// `kubectl logs`.
    pub(crate) async fn logs<const N: usize>(&self, arguments: [&str; N]) -> Result<String> {
        self.kubectl.run(["logs"].into_iter().chain(arguments)).await
    }

    /// `kubectl logs --follow` as a process, with what it says in its log.
    pub(crate) fn follow_logs<const N: usize>(&self, arguments: [&str; N]) -> Result<Process> {
        let mut command = self.kubectl.command();
        command.args(["logs", "--follow"]).args(arguments);
        Process::start("kubectl logs", &mut command, &self.scratch_file("followed")?)
    }

    fn scratch_file(&self, name: &str) -> Result<PathBuf> {
        Ok(self.control_plane.sandbox().directory("scratch")?.join(name))
    }
}

/// The status and the text of an answer of the kubelet API.
pub(crate) async fn ask(client: &Client, method: Method, path: &str) -> Result<(u16, String)> {
    let request = Request::builder().method(method).uri(path).body(kube::client::Body::empty())?;
    let answer = tokio::time::timeout(DEADLINE, client.send(request)).await.context("no answer")??;
    let status = answer.status().as_u16();
    let body = http_body_util::BodyExt::collect(answer.into_body()).await?.to_bytes();
    Ok((status, String::from_utf8_lossy(&body).into_owned()))
}
