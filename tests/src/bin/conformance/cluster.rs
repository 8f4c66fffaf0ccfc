//! What the suite runs against: a control plane, and one simulated Mac with the agent.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use tart_kubelet_tests::agent::{Agent, RunningAgent};
use tart_kubelet_tests::control_plane::ControlPlane;
use tart_kubelet_tests::mac::{Fault, Mac};
use tart_kubelet_tests::sandbox::Sandbox;
use tart_kubelet_tests::wait;

use crate::image;
use crate::suite::Suite;

const NODE: &str = "conformance-mac";
const DEADLINE: Duration = Duration::from_mins(2);

/// More VMs than macOS allows: the suite asks for many Pods at once, and none of its specs is about that limit.
const VMS: &str = "20";

/// A cluster with one Node.
pub(crate) struct Cluster {
    control_plane: ControlPlane,
    agent: RunningAgent,
}

impl Cluster {
    /// Starts it, and waits until the Node takes Pods and the API server can reach the kubelet API.
    pub(crate) async fn start(sandbox: &Sandbox, suite: &Suite) -> Result<Self> {
        // Some of the suite's Pods ask for it.
        let builder = ControlPlane::builder().api_server_flag("--allow-privileged=true");
        let control_plane = builder.start(sandbox).await?;
        let mac = Mac::new(sandbox)?;
        mac.set_fault(Fault::OwnNetwork, "")?;
        mac.set_fault(Fault::VmLimit, VMS)?;
        image::add_all(&mac, suite).await?;
        let agent = Agent::new(&mac, NODE, &control_plane.node_kubeconfig(NODE)?)?
            // Guests without a network of their own have loopback addresses, and the suite's hooks name a neighbour's.
            .switch("--allow-local-probe-hosts")
            .flag("--node-ip", "127.0.0.1")
            .flag("--max-pods", VMS)
            // The suite's Pods tolerate nothing.
            .flag("--register-with-taints", "");
        let agent = agent.start()?;
        let nodes: Api<Node> = Api::all(control_plane.client().await?);
        let ready = wait::until(&nodes, NODE, "ready", DEADLINE, is_ready).await;
        ready.with_context(|| agent.process().last_lines())?;
        control_plane.approve_serving_certificate(NODE, &agent).await?;
        Ok(Self { control_plane, agent })
    }

    /// The kubeconfig of a user who may do everything.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.control_plane.admin_kubeconfig().to_owned()
    }

    /// Copies the agent's log, which would go with the sandbox.
    pub(crate) fn keep_logs(&self, directory: &Path) {
        let copied = std::fs::copy(self.agent.process().log_path(), directory.join("tart-kubelet.log"));
        if let Err(error) = copied {
            eprintln!("conformance: the agent's log is lost: {error}");
        }
    }
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
