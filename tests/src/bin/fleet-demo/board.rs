//! Macs, machines, Nodes, Pods and VMs side by side, a line for each Mac of which something has changed.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use anyhow::Result;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt as _;
use kube::api::ListParams;
use serde_json::Value;
use tart_kubelet_tests::mac_host::MacHost;
use tokio::time::{MissedTickBehavior, interval};

use super::kinds::{self, PROVIDER_MACHINE};
use super::print::print;
use super::world::{FULL_NAME, World};

const INTERVAL: Duration = Duration::from_millis(500);
/// Where the tart of a Mac's user keeps its VMs.
const VMS: &str = "/Users/m1/.tart/vms";
/// How much of the digest of a host's configuration tells two of them apart.
const DIGEST: usize = 6;

/// What is shown of one Mac, and of what waits for one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Row {
    mac: String,
    host: String,
    machine: String,
    node: String,
    pods: String,
    vms: String,
}

/// What was shown last.
pub(crate) struct Board<'a> {
    world: &'a World,
    start: Instant,
    /// The servers, in the order in which they were seen first.
    servers: Vec<String>,
    shown: Vec<Row>,
}

impl<'a> Board<'a> {
    pub(crate) fn new(world: &'a World, start: Instant) -> Self {
        Self { world, start, servers: Vec::new(), shown: Vec::new() }
    }

    /// Shows every change, for as long as it is polled.
    pub(crate) async fn follow(&mut self) -> Infallible {
        let mut tick = interval(INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let head = ["MAC", "ITS NAME AT SCALEWAY", "MACHINE", "NODE", "PODS", "VMS"];
        print(&line("", &head.map(str::to_owned)));
        loop {
            tick.tick().await;
            // What cannot be read now is read at the next tick.
            let Ok(rows) = self.look().await else { continue };
            let time = format!("{:6.1} s", self.start.elapsed().as_secs_f64());
            for row in rows.iter().filter(|row| !self.shown.contains(row)) {
                let Row { mac, host, machine, node, pods, vms } = row.clone();
                print(&line(&time, &[mac, host, machine, node, pods, vms]));
            }
            self.shown = rows;
        }
    }

    async fn look(&mut self) -> Result<Vec<Row>> {
        let machines = self.world.all(PROVIDER_MACHINE).await?;
        let nodes = self.world.nodes().await?;
        let pods = self.world.pods().list(&ListParams::default()).await?.items;
        let macs = self.world.pool.all();
        let servers: Vec<(String, String)> = {
            let mut scaleway = self.world.pool.scaleway().world();
            scaleway.servers().iter().map(|server| (server.id.clone(), server.name.clone())).collect()
        };
        for (id, _) in &servers {
            if !self.servers.contains(id) {
                self.servers.push(id.clone());
            }
        }
        let mut rows = Vec::new();
        for (number, id) in (1..).zip(&self.servers) {
            let mac = macs.iter().find(|(known, _)| known == id).map(|(_, mac)| mac);
            let host = servers.iter().find(|(known, _)| known == id).map(|(_, name)| name.as_str());
            let machine = machines.iter().find(|machine| machine["status"]["serverID"] == id.as_str());
            let mut row = row(host.unwrap_or("(gone)"), machine, &nodes, &pods);
            row.mac = format!("mac-{number}");
            row.vms = mac.map_or_else(|| "-".to_owned(), |mac| vms(mac));
            rows.push(row);
        }
        let waiting = machines.iter().filter(|machine| machine["status"]["serverID"].as_str().is_none());
        rows.extend(waiting.map(|machine| {
            let mut row = row("(none)", Some(machine), &nodes, &pods);
            row.host = short(&kinds::name(machine));
            row
        }));
        let unbound = |pod: &&Pod| pod.spec.as_ref().is_none_or(|spec| spec.node_name.is_none());
        let pending: Vec<String> = pods.iter().filter(unbound).map(describe).collect();
        if !pending.is_empty() {
            rows.push(Row { pods: pending.join(", "), ..Row::default() });
        }
        Ok(rows)
    }
}

fn row(host: &str, machine: Option<&Value>, nodes: &[Node], pods: &[Pod]) -> Row {
    let name = machine.map(kinds::name);
    let node = nodes.iter().find(|node| Some(node.name_any()) == name);
    let is_on =
        |pod: &&Pod| name.is_some() && pod.spec.as_ref().and_then(|spec| spec.node_name.clone()) == name;
    Row {
        host: short(host),
        machine: machine.map(describe_machine).unwrap_or_default(),
        node: node
            .map(|node| if is_ready(node) { "Ready" } else { "NotReady" })
            .unwrap_or_default()
            .to_owned(),
        pods: pods.iter().filter(is_on).map(describe).collect::<Vec<_>>().join(", "),
        ..Row::default()
    }
}

/// A name without what all have in common.
fn short(name: &str) -> String {
    let name = name.strip_prefix(FULL_NAME).map_or(name, |rest| rest.trim_start_matches('-'));
    name.chars().take(26).collect()
}

/// The phase of a machine, or what it waits for, and which configuration its host has.
fn describe_machine(machine: &Value) -> String {
    let status = &machine["status"];
    let digest =
        status["hostConfigHash"].as_str().and_then(|hash| hash.trim_start_matches("sha256:").get(..DIGEST));
    let phase = status["phase"].as_str().unwrap_or("new");
    let waits = kinds::condition(machine, "Provisioned").filter(|(_, reason)| *reason == "NoAvailableHost");
    match (digest, waits) {
        _ if machine["metadata"]["deletionTimestamp"].is_string() => "is deleted".to_owned(),
        (_, Some((_, reason))) => reason.to_owned(),
        (Some(digest), None) => format!("{phase} {digest}"),
        (None, None) => phase.to_owned(),
    }
}

/// Whether a Node is ready.
pub(crate) fn is_ready(node: &Node) -> bool {
    let mut conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// A Pod's short name and its phase, or what it waits for.
fn describe(pod: &Pod) -> String {
    let name = pod.name_any();
    // A Deployment's Pod is DEPLOYMENT-HASH-SUFFIX.
    let parts: Vec<&str> = name.split('-').collect();
    let short =
        if let [deployment, _, suffix] = parts[..] { format!("{deployment}-{suffix}") } else { name.clone() };
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref()).unwrap_or("Unknown");
    let state = status
        .and_then(|status| status.container_statuses.as_ref())
        .and_then(|all| all.first()?.state.clone());
    let waiting = state.as_ref().and_then(|state| state.waiting.as_ref()?.reason.clone());
    let code = state.as_ref().and_then(|state| state.terminated.as_ref().map(|end| end.exit_code));
    let phase = if pod.metadata.deletion_timestamp.is_some() { "Terminating" } else { phase };
    match (waiting, code) {
        (Some(reason), _) => format!("{short} {reason}"),
        (_, Some(code)) => format!("{short} {phase}({code})"),
        _ => format!("{short} {phase}"),
    }
}

/// The VMs on a Mac without those that others are cloned from.
fn vms(mac: &MacHost) -> String {
    let all: Vec<String> = running_vms(mac)
        .into_iter()
        .map(|(name, is_running)| {
            let name: String = name.chars().take(11).collect();
            if is_running { name } else { format!("{name}(off)") }
        })
        .collect();
    if all.is_empty() { "-".to_owned() } else { all.join(" ") }
}

/// The VMs on a Mac by name, and whether they run: tart has a socket to a VM that does.
pub(crate) fn running_vms(mac: &MacHost) -> Vec<(String, bool)> {
    let entries = std::fs::read_dir(mac.path(VMS)).into_iter().flatten().flatten();
    let mut all: Vec<(String, bool)> = entries
        .map(|entry| {
            (entry.file_name().to_string_lossy().into_owned(), entry.path().join("control.sock").exists())
        })
        .filter(|(name, _)| !name.starts_with("tk-base-") && !name.starts_with('.'))
        .collect();
    all.sort();
    all
}

fn line(time: &str, cells: &[String; 6]) -> String {
    let [mac, host, machine, node, pods, vms] = cells;
    let line = format!("{time:>9}  {mac:<5}  {host:<26}  {machine:<22}  {node:<8}  {pods:<50}  {vms}");
    format!("{}\n", line.trim_end())
}
