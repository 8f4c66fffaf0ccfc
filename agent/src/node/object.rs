//! The Node object as this agent wants it, and the next step towards it.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    DaemonEndpoint, Node, NodeAddress, NodeDaemonEndpoints, NodeSpec, NodeStatus, NodeSystemInfo,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::capacity::{Resources, same};
use super::conditions::{conditions, differ};
use super::health::NodeHealth;
use super::images;
use super::labels::{self, Labels};
use super::taints::Taints;
use crate::names::NodeName;
use crate::os::host::HostFacts;

/// The agent writes the status at least this often, changed or not; the kubelet's interval.
pub(super) const STATUS_INTERVAL: Duration = Duration::from_mins(5);

/// The Kubernetes whose API this agent is written for. Tools that upgrade clusters compare it with the control plane's version.
const KUBERNETES: &str = "1.36.0";

/// What the Node object is made from, apart from health.
#[derive(Debug, Clone)]
pub(crate) struct NodeConfig {
    pub(crate) name: NodeName,
    pub(crate) provider_id: Option<String>,
    /// Of `--node-labels`.
    pub(crate) labels: Labels,
    /// For a Node that the agent creates.
    pub(crate) taints: Taints,
    pub(crate) resources: Resources,
    pub(crate) facts: HostFacts,
    pub(crate) ports: OwnPorts,
    /// Features of the kubelet that the API server is to know of, in order.
    pub(crate) features: Vec<String>,
}

/// The ports at which the agent itself listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct OwnPorts {
    /// Of the kubelet API, where the API server and scrapers expect it.
    pub(crate) kubelet: u16,
    /// Of health and metrics.
    pub(crate) local: Option<u16>,
}

impl NodeConfig {
    /// The Node to register; `last` is the spec of the one that was deleted while the agent ran. What users did with that one stays: a
    /// Node that was cordoned comes back cordoned.
    pub(super) fn node(&self, health: &NodeHealth, last: Option<&NodeSpec>, now: Timestamp) -> Node {
        let wanted = self.labels(health);
        let taints = match last {
            None => self.taints.0.clone(),
            // The control plane sets these by the Node's conditions.
            Some(last) => {
                let kept = last.taints.iter().flatten();
                kept.filter(|taint| !taint.key.starts_with("node.kubernetes.io/")).cloned().collect()
            }
        };
        Node {
            metadata: ObjectMeta {
                name: Some(self.name.to_string()),
                annotations: Some(BTreeMap::from([(labels::OWNED.to_owned(), labels::owned(&wanted))])),
                labels: Some(wanted),
                ..ObjectMeta::default()
            },
            spec: Some(NodeSpec {
                provider_id: self.provider_id.clone(),
                taints: (!taints.is_empty()).then_some(taints),
                unschedulable: last.and_then(|last| last.unschedulable),
                ..NodeSpec::default()
            }),
            status: Some(self.status(health, None, now)),
        }
    }

    /// The fixed labels, and one for each image on this host.
    pub(super) fn labels(&self, health: &NodeHealth) -> Labels {
        let mut all = images::labels(&health.images);
        all.extend(self.fixed_labels());
        all
    }

    /// The labels that do not change while the agent runs. A label of `--node-labels` replaces one that the agent found out.
    pub(super) fn fixed_labels(&self) -> Labels {
        let found = [
            (labels::INSTANCE_TYPE, labels::value_of(&self.facts.model)),
            (labels::MACOS_VERSION, labels::value_of(&self.facts.os_version)),
        ];
        let fixed = [
            (labels::OS, "darwin".to_owned()),
            (labels::ARCH, "arm64".to_owned()),
            // A Node's name can be longer than the value of a label.
            (labels::HOSTNAME, labels::value_of(&self.name.to_string()).unwrap_or_default()),
            (labels::RUNTIME, "tart".to_owned()),
        ];
        let mut all: Labels =
            found.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect();
        all.extend(self.labels.clone());
        all.extend(fixed.map(|(key, value)| (key.to_owned(), value)));
        all
    }

    /// The status to write after `before`.
    pub(super) fn status(
        &self,
        health: &NodeHealth,
        before: Option<&NodeStatus>,
        now: Timestamp,
    ) -> NodeStatus {
        let address = |kind: &str, address: String| NodeAddress { type_: kind.to_owned(), address };
        let ip = health.address.map(|ip| address("InternalIP", ip.to_string()));
        NodeStatus {
            capacity: Some(self.resources.capacity.clone()),
            allocatable: Some(self.resources.allocatable.clone()),
            addresses: Some(ip.into_iter().chain([address("Hostname", self.name.to_string())]).collect()),
            conditions: Some(conditions(health, before, now)),
            node_info: Some(self.node_info(health)),
            daemon_endpoints: Some(NodeDaemonEndpoints {
                kubelet_endpoint: Some(DaemonEndpoint { port: self.ports.kubelet.into() }),
            }),
            images: Some(images::status(&health.images)),
            // An API server that does not know the field drops it.
            declared_features: Some(self.features.clone()),
            ..NodeStatus::default()
        }
    }

    fn node_info(&self, health: &NodeHealth) -> NodeSystemInfo {
        let tart = health.tart_version.as_deref().unwrap_or("unknown");
        NodeSystemInfo {
            operating_system: "darwin".to_owned(),
            architecture: "arm64".to_owned(),
            os_image: self.facts.os_image.clone(),
            kernel_version: self.facts.kernel.clone(),
            boot_id: self.facts.boot_id.clone(),
            machine_id: self.facts.machine_id.clone(),
            system_uuid: self.facts.system_uuid.clone(),
            kubelet_version: format!("v{KUBERNETES}+tart-kubelet.{}", env!("CARGO_PKG_VERSION")),
            container_runtime_version: format!("tart://{tart}"),
            ..NodeSystemInfo::default()
        }
    }
}

/// This Node as the API server last showed it.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Registered {
    /// The API server has not answered yet.
    Unknown,
    Absent,
    Present(Box<Node>),
}

impl Registered {
    pub(super) fn node(&self) -> Option<&Node> {
        match self {
            Self::Present(node) => Some(node),
            Self::Absent | Self::Unknown => None,
        }
    }
}

/// The next step for the Node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NodeDecision {
    Register,
    /// Correct its labels, or set its empty providerID.
    Complete,
    WriteStatus,
    /// Renew the heartbeat times of its conditions.
    Confirm,
    Rest,
}

/// The next step for the Node, `age` after the agent last wrote its status. The age is by a clock that is never set: `now` is what users see.
pub(super) fn decide(
    config: &NodeConfig,
    health: &NodeHealth,
    shown: &Registered,
    age: Option<Duration>,
    now: Timestamp,
) -> NodeDecision {
    let node = match shown {
        Registered::Unknown => return NodeDecision::Rest,
        Registered::Absent => return NodeDecision::Register,
        Registered::Present(node) => node,
    };
    let wanted = config.labels(health);
    let (labels, annotations) = (&node.metadata.labels, &node.metadata.annotations);
    let label = |key: &str| labels.as_ref().and_then(|labels| labels.get(key));
    let owned = annotations.as_ref().and_then(|annotations| annotations.get(labels::OWNED));
    let incomplete = wanted.iter().any(|(key, value)| label(key) != Some(value))
        || owned != Some(&labels::owned(&wanted))
        || !labels::stale(node, &wanted).is_empty();
    if incomplete || (provider_id(node).is_none() && config.provider_id.is_some()) {
        return NodeDecision::Complete;
    }
    // A new agent writes the whole status once, whatever an earlier agent wrote.
    let Some(age) = age else { return NodeDecision::WriteStatus };
    if differs(&config.status(health, node.status.as_ref(), now), node.status.as_ref()) {
        return NodeDecision::WriteStatus;
    }
    if age >= STATUS_INTERVAL { NodeDecision::Confirm } else { NodeDecision::Rest }
}

/// The providerID of a Node; `None` if it is empty.
pub(super) fn provider_id(node: &Node) -> Option<&str> {
    node.spec.as_ref()?.provider_id.as_deref().filter(|id| !id.is_empty())
}

/// Whether the API server shows another status than the agent's, times apart.
fn differs(ours: &NodeStatus, theirs: Option<&NodeStatus>) -> bool {
    let Some(theirs) = theirs else { return true };
    differ(ours, theirs)
        || !same(ours.capacity.as_ref(), theirs.capacity.as_ref())
        || !same(ours.allocatable.as_ref(), theirs.allocatable.as_ref())
        || ours.addresses != theirs.addresses
        || ours.daemon_endpoints != theirs.daemon_endpoints
        // The API server omits an empty list.
        || ours.images.as_deref().unwrap_or_default() != theirs.images.as_deref().unwrap_or_default()
        || ours.node_info.as_ref().map(info_key) != theirs.node_info.as_ref().map(info_key)
}

fn info_key(info: &NodeSystemInfo) -> [&str; 7] {
    [
        &info.kubelet_version,
        &info.container_runtime_version,
        &info.os_image,
        &info.kernel_version,
        &info.boot_id,
        &info.machine_id,
        &info.system_uuid,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::capacity::{CapacityOverrides, Machine, Reserved};
    use crate::node::health::{HealthProblem, NotReadyReason};
    use crate::node::signals::thresholds::Thresholds;
    use crate::node::taints;
    use crate::testing::at;
    use k8s_openapi::api::core::v1::Taint;

    const AGE: Option<Duration> = Some(Duration::from_secs(1));

    fn config() -> NodeConfig {
        let machine = Machine { cores: 8, memory: 16 << 30, storage: None };
        let overrides = CapacityOverrides { cores: None, memory_mib: None, pods: 2 };
        NodeConfig {
            name: "mac-1".parse().unwrap(),
            provider_id: Some("scw-applesilicon://fr-par-3/1".to_owned()),
            labels: BTreeMap::from([("team".to_owned(), "ios".to_owned())]),
            taints: taints::parse(taints::DEFAULT).unwrap(),
            resources: Resources::new(machine, Reserved::default(), &Thresholds::default(), overrides)
                .unwrap(),
            facts: HostFacts { os_version: "26.1".into(), model: "Mac16,10".into(), ..HostFacts::default() },
            ports: OwnPorts { kubelet: 10250, local: Some(10248) },
            features: vec!["ExtendWebSocketsToKubelet".to_owned()],
        }
    }

    fn healthy() -> NodeHealth {
        NodeHealth { address: Some("10.0.0.1".parse().unwrap()), ..NodeHealth::default() }
    }

    fn unhealthy() -> NodeHealth {
        NodeHealth {
            problem: Some(HealthProblem { reason: NotReadyReason::TartMissing, message: "no tart".into() }),
            ..healthy()
        }
    }

    fn shown(change: impl FnOnce(&mut Node)) -> Registered {
        let mut node = config().node(&healthy(), None, at(0));
        change(&mut node);
        Registered::Present(Box::new(node))
    }

    #[test]
    fn the_next_step_depends_on_what_the_api_server_shows() {
        let spec = |change: fn(&mut NodeSpec)| shown(|node| change(node.spec.as_mut().unwrap()));
        let labelled = |key: &str| {
            shown(|node| drop(node.metadata.labels.as_mut().unwrap().insert(key.into(), "b".into())))
        };
        let mut stale = labelled("old");
        if let Registered::Present(node) = &mut stale {
            node.metadata.annotations.as_mut().unwrap().get_mut(labels::OWNED).unwrap().push_str(",old");
        }
        let same = || shown(|_| {});
        let unlabelled = shown(|node| node.metadata.labels = None);
        let closed = shown(|node| node.status.as_mut().unwrap().daemon_endpoints = None);
        let (nameless, tainted) = (spec(|spec| spec.provider_id = None), spec(|spec| spec.taints = None));
        let other = spec(|spec| spec.provider_id = Some("other".into()));
        for (health, shown, now, expected, why) in [
            (healthy(), Registered::Unknown, 1, NodeDecision::Rest, "the API server has not answered"),
            (healthy(), Registered::Absent, 1, NodeDecision::Register, "there is no Node"),
            (healthy(), same(), 1, NodeDecision::Rest, "all is as it should be"),
            (healthy(), same(), 299, NodeDecision::Rest, "the status is not due"),
            (healthy(), same(), 300, NodeDecision::Confirm, "the status is due"),
            (unhealthy(), same(), 1, NodeDecision::WriteStatus, "no VM can start"),
            (unhealthy(), same(), 300, NodeDecision::WriteStatus, "a change comes before a confirmation"),
            (healthy(), closed, 1, NodeDecision::WriteStatus, "the port is missing"),
            (healthy(), unlabelled, 1, NodeDecision::Complete, "labels are missing"),
            (healthy(), nameless, 1, NodeDecision::Complete, "the providerID is missing"),
            (healthy(), other, 1, NodeDecision::Rest, "a providerID is never overwritten"),
            (healthy(), tainted, 1, NodeDecision::Rest, "taints are set at creation only"),
            (healthy(), labelled("a"), 1, NodeDecision::Rest, "labels that users set stay"),
            (healthy(), stale, 1, NodeDecision::Complete, "a label is no longer wanted"),
        ] {
            let age = Some(Duration::from_secs(now));
            // The wall clock may be set by an hour at any time.
            for jump in [0, -3600, 3600] {
                let wall = at(i64::try_from(now).unwrap() + jump);
                assert_eq!(decide(&config(), &health, &shown, age, wall), expected, "{why}, {jump}");
            }
        }
    }

    #[test]
    fn labels_and_status_follow_the_images_of_the_host() {
        let digest =
            crate::names::ImageDigest::parse(&format!("r.test/macos@sha256:{}", "a".repeat(64))).unwrap();
        let tags = vec!["r.test/macos:15".to_owned()];
        let image = crate::tart::CachedImage { digest, tags, bytes: 7 };
        let with_image = NodeHealth { images: std::sync::Arc::new(vec![image]), ..healthy() };
        let decide = |health: &NodeHealth, node: &Node| {
            decide(&config(), health, &Registered::Present(Box::new(node.clone())), AGE, at(1))
        };
        let mut node = config().node(&healthy(), None, at(0));
        assert_eq!(decide(&with_image, &node), NodeDecision::Complete, "a label is missing");
        node.metadata = config().node(&with_image, None, at(0)).metadata;
        assert_eq!(decide(&with_image, &node), NodeDecision::WriteStatus);
        node.status = config().node(&with_image, None, at(0)).status;
        assert_eq!(decide(&with_image, &node), NodeDecision::Rest);
        assert_eq!(decide(&healthy(), &node), NodeDecision::Complete, "a label names an image that is gone");
        node.metadata = config().node(&healthy(), None, at(0)).metadata;
        assert_eq!(decide(&healthy(), &node), NodeDecision::WriteStatus);
        node.status.as_mut().unwrap().images = None;
        assert_eq!(decide(&healthy(), &node), NodeDecision::Rest);
    }

    #[test]
    fn a_node_that_is_registered_again_is_as_users_left_it() {
        let taint = |key: &str| Taint { key: key.into(), effect: "NoSchedule".into(), ..Taint::default() };
        let keys = |node: &Node| -> Vec<String> {
            let taints = node.spec.as_ref().unwrap().taints.iter().flatten();
            taints.map(|taint| taint.key.clone()).collect()
        };
        let fresh = config().node(&healthy(), None, at(0));
        assert_eq!(keys(&fresh), ["tuist.dev/macos"]);
        assert_eq!(fresh.spec.as_ref().unwrap().unschedulable, None);
        let last = NodeSpec {
            unschedulable: Some(true),
            taints: Some(vec![taint("node.kubernetes.io/unschedulable"), taint("team")]),
            ..NodeSpec::default()
        };
        let again = config().node(&healthy(), Some(&last), at(0));
        assert_eq!(keys(&again), ["team"]);
        assert_eq!(again.spec.unwrap().unschedulable, Some(true));
        let bare = config().node(&healthy(), Some(&NodeSpec::default()), at(0));
        assert_eq!(keys(&bare), [""; 0], "a user has removed the taint");
    }

    #[test]
    fn conditions_that_are_unknown_are_written_again() {
        let unknown = shown(|node| {
            for condition in node.status.as_mut().unwrap().conditions.iter_mut().flatten() {
                condition.status = "Unknown".into();
            }
        });
        assert_eq!(decide(&config(), &healthy(), &unknown, AGE, at(1)), NodeDecision::WriteStatus);
    }

    #[test]
    fn a_label_of_the_user_replaces_one_that_the_agent_found_out() {
        let mut config = config();
        assert_eq!(config.fixed_labels()[labels::INSTANCE_TYPE], "Mac16-10");
        assert_eq!(config.fixed_labels()[labels::MACOS_VERSION], "26.1");
        config.labels.insert(labels::INSTANCE_TYPE.into(), "M4-S".into());
        config.labels.insert(labels::OS.into(), "linux".into());
        assert_eq!(config.fixed_labels()[labels::INSTANCE_TYPE], "M4-S");
        assert_eq!(
            (config.fixed_labels()[labels::OS].as_str(), config.fixed_labels()["team"].as_str()),
            ("darwin", "ios")
        );
    }
}
