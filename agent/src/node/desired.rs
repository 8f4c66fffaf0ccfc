//! The Node object as this agent wants it, and what to do when the API server shows another one.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Node, NodeAddress, NodeCondition, NodeSpec, NodeStatus, NodeSystemInfo, Taint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

use super::NodeName;
use super::host::HostFacts;
use super::tart_check::Health;

/// The status is written at least this often, changed or not.
pub const STATUS_INTERVAL: Duration = Duration::from_mins(5);

/// What the Node is to be, apart from its health.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// Its name.
    pub name: NodeName,
    /// `spec.providerID`, when the operator gave one.
    pub provider_id: Option<String>,
    /// Labels that the operator gave.
    pub labels: BTreeMap<String, String>,
    /// Its address, when it has one.
    pub address: Option<IpAddr>,
    /// How many VMs may run at once.
    pub max_pods: u32,
    /// The machine.
    pub facts: HostFacts,
}

impl NodeConfig {
    /// The Node to register.
    pub fn node(&self, health: &Health, now: Timestamp) -> Node {
        let taint = Taint {
            key: "tuist.dev/macos".to_owned(),
            value: Some("true".to_owned()),
            effect: "NoSchedule".to_owned(),
            ..Taint::default()
        };
        Node {
            metadata: ObjectMeta {
                name: Some(self.name.to_string()),
                labels: Some(self.labels()),
                ..ObjectMeta::default()
            },
            spec: Some(NodeSpec {
                provider_id: self.provider_id.clone(),
                taints: Some(vec![taint]),
                ..NodeSpec::default()
            }),
            status: Some(self.status(health, None, now)),
        }
    }

    /// The labels that the Node must have.
    pub fn labels(&self) -> BTreeMap<String, String> {
        let own = [
            ("kubernetes.io/os", "darwin"),
            ("kubernetes.io/arch", "arm64"),
            ("kubernetes.io/hostname", &self.name.to_string()),
            ("tuist.dev/runtime", "tart"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()));
        self.labels.clone().into_iter().chain(own).collect()
    }

    /// The status to publish; transition times are kept from `before` for as long as nothing changes.
    pub fn status(&self, health: &Health, before: Option<&NodeStatus>, now: Timestamp) -> NodeStatus {
        let amounts = BTreeMap::from([
            ("cpu".to_owned(), Quantity(self.facts.cores.to_string())),
            ("memory".to_owned(), Quantity(format!("{}Ki", self.facts.memory >> 10))),
            ("pods".to_owned(), Quantity(self.max_pods.to_string())),
        ]);
        let address = |kind: &str, address: String| NodeAddress { type_: kind.to_owned(), address };
        let ip = self.address.map(|ip| address("InternalIP", ip.to_string()));
        NodeStatus {
            capacity: Some(amounts.clone()),
            allocatable: Some(amounts),
            addresses: Some(ip.into_iter().chain([address("Hostname", self.name.to_string())]).collect()),
            conditions: Some(vec![ready(health, before, now)]),
            node_info: Some(self.node_info(health)),
            ..NodeStatus::default()
        }
    }

    fn node_info(&self, health: &Health) -> NodeSystemInfo {
        let tart = health.tart_version.as_deref().unwrap_or("unknown");
        NodeSystemInfo {
            operating_system: "darwin".to_owned(),
            architecture: "arm64".to_owned(),
            os_image: self.facts.os_image.clone(),
            kernel_version: self.facts.kernel.clone(),
            boot_id: self.facts.boot_id.clone(),
            kubelet_version: format!("v{}-tart", env!("CARGO_PKG_VERSION")),
            container_runtime_version: format!("tart://{tart}"),
            ..NodeSystemInfo::default()
        }
    }
}

fn ready(health: &Health, before: Option<&NodeStatus>, now: Timestamp) -> NodeCondition {
    let status = if health.problem.is_none() { "True" } else { "False" };
    let (reason, message) = match &health.problem {
        None => ("TartReady", "VMs can start"),
        Some(problem) => (problem.reason, problem.message.as_str()),
    };
    let old = before
        .and_then(|status| status.conditions.as_ref())
        .and_then(|all| all.iter().find(|c| c.type_ == "Ready"));
    let since = old.filter(|old| old.status == status).and_then(|old| old.last_transition_time.clone());
    NodeCondition {
        type_: "Ready".to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_heartbeat_time: Some(Time(now)),
        last_transition_time: since.or(Some(Time(now))),
    }
}

/// What the API server shows of this Node.
#[derive(Debug, Clone, PartialEq)]
pub enum Registered {
    /// Nobody has looked yet.
    Unknown,
    /// There is no such Node.
    Absent,
    /// This one.
    Present(Box<Node>),
}

/// The next step for the Node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeDecision {
    /// Create it.
    Register,
    /// Add what is missing from its labels, or its empty providerID.
    Complete,
    /// Write its status.
    WriteStatus,
    /// Nothing to do.
    Rest,
}

/// The next step for the Node: registered when it is absent, written when it differs from what this agent says.
pub fn decide(
    config: &NodeConfig,
    health: &Health,
    shown: &Registered,
    written_at: Option<Timestamp>,
    now: Timestamp,
) -> NodeDecision {
    let node = match shown {
        Registered::Unknown => return NodeDecision::Rest,
        Registered::Absent => return NodeDecision::Register,
        Registered::Present(node) => node,
    };
    let labels = node.metadata.labels.clone().unwrap_or_default();
    let incomplete = config.labels().iter().any(|(key, value)| labels.get(key) != Some(value));
    let provider_id = node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()).unwrap_or_default();
    if incomplete || (provider_id.is_empty() && config.provider_id.is_some()) {
        return NodeDecision::Complete;
    }
    let due = written_at.is_none_or(|at| now >= at + STATUS_INTERVAL);
    if due || differs(&config.status(health, node.status.as_ref(), now), node.status.as_ref()) {
        return NodeDecision::WriteStatus;
    }
    NodeDecision::Rest
}

/// Whether the server shows something else than we say, the time of saying it apart.
fn differs(ours: &NodeStatus, theirs: Option<&NodeStatus>) -> bool {
    let Some(theirs) = theirs else { return true };
    let ready = |status: &NodeStatus| {
        let all = status.conditions.as_ref()?;
        let found = all.iter().find(|condition| condition.type_ == "Ready")?;
        Some((found.status.clone(), found.reason.clone(), found.message.clone()))
    };
    ready(ours) != ready(theirs)
        || ours.capacity != theirs.capacity
        || ours.allocatable != theirs.allocatable
        || ours.addresses != theirs.addresses
        || ours.node_info.as_ref().map(info_key) != theirs.node_info.as_ref().map(info_key)
}

fn info_key(info: &NodeSystemInfo) -> [&str; 4] {
    [&info.kubelet_version, &info.container_runtime_version, &info.os_image, &info.boot_id]
}

#[cfg(test)]
mod tests {
    use super::super::tart_check::Problem;
    use super::*;

    fn config() -> NodeConfig {
        NodeConfig {
            name: "mac-1".parse().unwrap(),
            provider_id: Some("scw-applesilicon://fr-par-3/1".to_owned()),
            labels: BTreeMap::from([("team".to_owned(), "ios".to_owned())]),
            address: Some("10.0.0.1".parse().unwrap()),
            max_pods: 2,
            facts: HostFacts {
                hostname: "mac".into(),
                cores: 8,
                memory: 16 << 30,
                os_image: "macOS 26".into(),
                kernel: "25".into(),
                boot_id: "1".into(),
            },
        }
    }

    fn well() -> Health {
        Health { tart_version: Some("2.32.1".into()), problem: None }
    }

    fn ill() -> Health {
        Health { problem: Some(Problem { reason: "TartMissing", message: "no tart".into() }), ..well() }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn shown(change: impl FnOnce(&mut Node)) -> Registered {
        let mut node = config().node(&well(), at(0));
        change(&mut node);
        Registered::Present(Box::new(node))
    }

    #[test]
    fn the_node_is_kept_as_it_should_be() {
        let decide =
            |health: &Health, shown: &Registered, now| decide(&config(), health, shown, Some(at(0)), at(now));
        assert_eq!(decide(&well(), &Registered::Unknown, 1), NodeDecision::Rest);
        assert_eq!(decide(&well(), &Registered::Absent, 1), NodeDecision::Register);
        assert_eq!(decide(&well(), &shown(|_| {}), 1), NodeDecision::Rest);
        assert_eq!(decide(&well(), &shown(|_| {}), 300), NodeDecision::WriteStatus);
        assert_eq!(decide(&ill(), &shown(|_| {}), 1), NodeDecision::WriteStatus);
        let unlabelled = shown(|node| node.metadata.labels = None);
        assert_eq!(decide(&well(), &unlabelled, 1), NodeDecision::Complete);
        let nameless = shown(|node| node.spec.as_mut().unwrap().provider_id = None);
        assert_eq!(decide(&well(), &nameless, 1), NodeDecision::Complete);
        let other = shown(|node| node.spec.as_mut().unwrap().provider_id = Some("other".into()));
        assert_eq!(decide(&well(), &other, 1), NodeDecision::Rest, "a providerID is never overwritten");
    }

    #[test]
    fn unknown_is_lifted() {
        let unknown = shown(|node| {
            let conditions = node.status.as_mut().unwrap().conditions.as_mut().unwrap();
            conditions[0].status = "Unknown".into();
        });
        assert_eq!(decide(&config(), &well(), &unknown, Some(at(0)), at(1)), NodeDecision::WriteStatus);
    }

    #[test]
    fn a_transition_time_moves_with_the_status_only() {
        let first = config().status(&well(), None, at(1));
        let time = |status: &NodeStatus| {
            status.conditions.as_ref().unwrap()[0].last_transition_time.clone().unwrap().0
        };
        assert_eq!(time(&config().status(&well(), Some(&first), at(9))), at(1));
        assert_eq!(time(&config().status(&ill(), Some(&first), at(9))), at(9));
    }

    #[test]
    fn labels_of_the_operator_do_not_hide_ours() {
        let mut config = config();
        config.labels.insert("kubernetes.io/os".into(), "linux".into());
        assert_eq!(config.labels()["kubernetes.io/os"], "darwin");
        assert_eq!(config.labels()["team"], "ios");
    }
}
