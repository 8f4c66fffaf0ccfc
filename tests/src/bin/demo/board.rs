//! Node, Pods and VMs side by side, a line for each change.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::Value;
use tart_kubelet_tests::mac::Mac;
use tokio::time::{MissedTickBehavior, interval};

const INTERVAL: Duration = Duration::from_millis(200);

/// What is shown, and where it comes from.
pub(crate) struct Board {
    nodes: Api<Node>,
    pods: Api<Pod>,
    mac: Mac,
    start: Instant,
}

impl Board {
    pub(crate) fn new(nodes: Api<Node>, pods: Api<Pod>, mac: Mac, start: Instant) -> Self {
        Self { nodes, pods, mac, start }
    }

    /// Shows every change, for as long as it is polled.
    pub(crate) async fn follow(&self) -> Infallible {
        let mut tick = interval(INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut shown = None;
        super::print(&line("", "NODE", "POD", "VM"));
        loop {
            tick.tick().await;
            // What cannot be read now is read at the next tick.
            let Some(row) = self.look().await else { continue };
            if shown.as_ref() != Some(&row) {
                let time = format!("{:6.1} s", self.start.elapsed().as_secs_f64());
                super::print(&line(&time, &row.0, &row.1, &row.2));
                shown = Some(row);
            }
        }
    }

    async fn look(&self) -> Option<(String, String, String)> {
        let nodes = self.nodes.list(&ListParams::default()).await.ok()?;
        let pods = self.pods.list(&ListParams::default()).await.ok()?;
        let list = self.mac.tart(["list", "--source", "local", "--format", "json"]).await.ok()?;
        let vms: Vec<Value> = serde_json::from_str(&list).ok()?;
        Some((
            join(nodes.iter().map(|node| {
                format!("{} {}", node.name_any(), if is_ready(node) { "Ready" } else { "NotReady" })
            })),
            join(pods.iter().map(|pod| format!("{} {}", pod.name_any(), describe(pod)))),
            join(vms.iter().filter(|vm| !is_base(vm)).filter_map(|vm| {
                Some(format!("{}… {}", vm["Name"].as_str()?.get(..11)?, vm["State"].as_str()?))
            })),
        ))
    }
}

/// Whether a Node is ready.
pub(crate) fn is_ready(node: &Node) -> bool {
    let mut conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// A Pod's phase, with what it waits for or where it is.
fn describe(pod: &Pod) -> String {
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref()).unwrap_or("Unknown");
    let container = status.and_then(|status| status.container_statuses.as_ref()).and_then(|all| all.first());
    let state = container.and_then(|container| container.state.as_ref());
    let waiting = state.and_then(|state| state.waiting.as_ref()).and_then(|waiting| waiting.reason.clone());
    let ended =
        state.and_then(|state| state.terminated.as_ref()).map(|end| format!("exit code {}", end.exit_code));
    let address = status.and_then(|status| status.pod_ip.clone());
    match waiting.or(ended).or(address) {
        Some(detail) => format!("{phase} ({detail})"),
        None => phase.to_owned(),
    }
}

fn join(parts: impl Iterator<Item = String>) -> String {
    let joined = parts.collect::<Vec<_>>().join(", ");
    if joined.is_empty() { "-".to_owned() } else { joined }
}

fn line(time: &str, node: &str, pod: &str, vm: &str) -> String {
    format!("{time:>9}  {node:<20}  {pod:<36}  {vm}\n")
}

/// Whether a VM is no Pod's, but what the VMs of Pods are cloned from.
fn is_base(vm: &Value) -> bool {
    vm["Name"].as_str().is_some_and(|name| name.starts_with("tk-base-"))
}
