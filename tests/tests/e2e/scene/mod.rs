//! What most tests start from: a Mac of their own, its agent, and a namespace.

mod api;
mod cluster;
mod pod_builder;
mod pod_view;
mod shims;
mod state_dir;
mod vms;
mod waits;

use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use serde_json::json;
use tart_kubelet_tests::agent::{Agent, RunningAgent};
use tart_kubelet_tests::control_plane::ControlPlane;
use tart_kubelet_tests::kubectl::Kubectl;
use tart_kubelet_tests::mac::Mac;
use tart_kubelet_tests::proxy::Proxy;

pub(crate) use self::api::ask;
pub(crate) use self::cluster::{NodeView, renew_time};
pub(crate) use self::pod_builder::{PodBuilder, every_second, exec};
pub(crate) use self::pod_view::{ContainerView, PodView};
pub(crate) use self::state_dir::until_empty;
pub(crate) use self::vms::base_of;
pub(crate) use self::waits::until_exists;

/// Generous: machines are shared and noisy. No test passes because of it.
pub(crate) const DEADLINE: Duration = Duration::from_mins(2);
/// An image that boots, and does nothing else.
pub(crate) const IMAGE: &str = "registry.test/macos/sequoia:15";
/// A command creates this file when it has set its signal handlers.
pub(crate) const UP: &str = "/private/tmp/up";
/// A script that ends when the test calls [`Scene::finish_command`].
pub(crate) const UNTIL_FINISHED: &str = "until [ -e /private/tmp/go ]; do sleep 0.05; done";
/// A command that never ends by itself.
pub(crate) const SLEEP: [&str; 2] = ["/bin/sleep", "1000"];

/// One Mac as a Node, and a namespace for Pods on it.
pub(crate) struct Scene {
    pub(crate) control_plane: &'static ControlPlane,
    pub(crate) mac: Mac,
    pub(crate) node: String,
    pub(crate) agent: Agent,
    pub(crate) pods: Api<Pod>,
    pub(crate) nodes: Api<Node>,
    pub(crate) kubectl: Kubectl,
}

impl Scene {
    /// A scene whose agent is not started yet.
    pub(crate) async fn new(name: &str) -> Result<Self> {
        let control_plane = ControlPlane::shared().await?;
        let namespace = control_plane.namespace(name).await?;
        // The namespace's name is unique, so the Node's is too.
        let node = format!("mac-{namespace}");
        let mac = Mac::new(control_plane.sandbox())?;
        if mac.is_simulated() {
            mac.add_image(IMAGE, &json!({}))?;
        }
        let kubeconfig = control_plane.node_kubeconfig(&node)?;
        let agent = Agent::new(&mac, &node, &kubeconfig)?.flag("--node-ip", "127.0.0.1");
        let client = control_plane.client().await?;
        Ok(Self {
            mac,
            agent,
            pods: Api::namespaced(client.clone(), &namespace),
            nodes: Api::all(client),
            kubectl: control_plane.kubectl().namespace(&namespace),
            control_plane,
            node,
        })
    }

    /// A scene with its agent running and its Node ready.
    pub(crate) async fn with_agent(name: &str) -> Result<(Self, RunningAgent)> {
        let scene = Self::new(name).await?;
        let running = scene.start(&scene.agent).await?;
        Ok((scene, running))
    }

    /// The same, with probes and hooks that may name this machine as their `host`: a test's own servers are there.
    pub(crate) async fn with_local_probe_hosts(name: &str) -> Result<(Self, RunningAgent)> {
        let mut scene = Self::new(name).await?;
        scene.agent = scene.agent.switch("--allow-local-probe-hosts");
        let running = scene.start(&scene.agent).await?;
        Ok((scene, running))
    }

    /// A scene with its agent running and its Node ready. The agent reaches the API server through a proxy that the test controls.
    pub(crate) async fn behind_proxy(name: &str) -> Result<(Self, Proxy, RunningAgent)> {
        let mut scene = Self::new(name).await?;
        let (proxy, agent) = scene.proxied(&scene.agent).await?;
        scene.agent = agent;
        let running = scene.start(&scene.agent).await?;
        Ok((scene, proxy, running))
    }

    /// The same agent behind a proxy to the API server.
    pub(crate) async fn proxied(&self, agent: &Agent) -> Result<(Proxy, Agent)> {
        let proxy = Proxy::start(self.control_plane).await?;
        let kubeconfig = proxy.kubeconfig(&self.control_plane.node_kubeconfig(&self.node)?)?;
        let agent = agent.clone().flag("--kubeconfig", &kubeconfig.display().to_string());
        Ok((proxy, agent))
    }

    /// Starts an agent and waits until its Node is ready.
    pub(crate) async fn start(&self, agent: &Agent) -> Result<RunningAgent> {
        let running = agent.start()?;
        self.node_ready(&running).await?;
        Ok(running)
    }

    /// The namespace of its Pods.
    pub(crate) fn namespace(&self) -> &str {
        self.pods.namespace().unwrap_or_default()
    }

    /// What the agent has logged, for a test that fails.
    pub(crate) fn agent_log(&self) -> String {
        let path = self.agent.state_dir().with_file_name("tart-kubelet.log");
        std::fs::read_to_string(path).unwrap_or_else(|error| error.to_string())
    }
}
