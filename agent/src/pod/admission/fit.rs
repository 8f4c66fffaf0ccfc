//! Whether a Pod fits beside the Pods that the Node already has. The checks, their order and their words are the kubelet's. Advice
//! follows where there is any.

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, Taint, Toleration};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::{Refusal, RefusalReason, affinity};
use crate::node::node_info::NodeInfo;
use crate::node::object::OwnPorts;
use crate::quantity;

/// Advice: the agent does not admit a refused Pod later.
const NO_PLACE: &str = "; macOS runs two VMs at a time: when a Pod of this Node has ended or is deleted, create this one again, or add a Mac";

/// What a Pod asks for of its Node: thousandths of a core, bytes, and ports.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ResourceRequests {
    cpu_milli: u64,
    pub(crate) memory: u64,
    pub(crate) storage: u64,
    ports: Vec<Port>,
}

/// A port of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Port {
    protocol: String,
    /// `None` for all addresses.
    address: Option<String>,
    number: i32,
}

impl ResourceRequests {
    pub(crate) fn of(pod: &Pod) -> Self {
        let Some(spec) = &pod.spec else { return Self::default() };
        Self {
            cpu_milli: request(spec, "cpu", quantity::milli),
            memory: request(spec, "memory", quantity::whole),
            storage: request(spec, "ephemeral-storage", quantity::whole),
            ports: spec.containers.iter().flat_map(ports).collect(),
        }
    }
}

/// The sum of what containers request at the same time. Init containers run before the others, except sidecars.
fn request(spec: &PodSpec, name: &str, read: fn(&Quantity) -> Option<u64>) -> u64 {
    // An amount that overflows is more than any Node has.
    let amount =
        |quantity: Option<&Quantity>| quantity.map_or(0, |quantity| read(quantity).unwrap_or(u64::MAX));
    let of = |container: &Container| {
        let resources = container.resources.as_ref();
        amount(resources.and_then(|resources| resources.requests.as_ref()?.get(name)))
    };
    let (mut staying, mut most) = (0u64, 0);
    for container in spec.init_containers.iter().flatten() {
        most = most.max(staying.saturating_add(of(container)));
        if container.restart_policy.as_deref() == Some("Always") {
            staying = staying.saturating_add(of(container));
        }
    }
    let together = spec.containers.iter().map(of).fold(staying, u64::saturating_add);
    let overhead = amount(spec.overhead.as_ref().and_then(|overhead| overhead.get(name)));
    most.max(together).saturating_add(overhead)
}

fn ports(container: &Container) -> impl Iterator<Item = Port> + '_ {
    let any = |address: &String| !address.is_empty() && address != "0.0.0.0";
    container.ports.iter().flatten().filter_map(move |port| {
        Some(Port {
            protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
            address: port.host_ip.clone().filter(any),
            number: port.host_port.filter(|number| *number > 0)?,
        })
    })
}

impl Port {
    fn is_taken_by(&self, other: &Self) -> bool {
        let same_address = match (&self.address, &other.address) {
            (Some(ours), Some(theirs)) => ours == theirs,
            _ => true,
        };
        self.protocol == other.protocol && self.number == other.number && same_address
    }

    fn is_agents(&self, own: OwnPorts) -> bool {
        let is_own =
            [Some(own.kubelet), own.local].into_iter().flatten().any(|port| i32::from(port) == self.number);
        self.protocol == "TCP" && is_own
    }
}

/// Whether a Pod fits on a Node beside `others`.
pub(crate) fn fits(pod: &Pod, offer: &NodeInfo, others: &[&ResourceRequests]) -> Result<(), Refusal> {
    let claim = ResourceRequests::of(pod);
    let spec = pod.spec.clone().unwrap_or_default();
    let pods = u64::try_from(others.len()).unwrap_or(u64::MAX);
    enough(RefusalReason::OutOfPods, 1, pods, Some(offer.pods))?;
    let used = |part: fn(&ResourceRequests) -> u64| {
        others.iter().map(|other| part(other)).fold(0, u64::saturating_add)
    };
    enough(RefusalReason::OutOfCpu, claim.cpu_milli, used(|c| c.cpu_milli), Some(offer.cpu_milli))?;
    enough(RefusalReason::OutOfMemory, claim.memory, used(|c| c.memory), Some(offer.memory))?;
    enough(RefusalReason::OutOfEphemeralStorage, claim.storage, used(|c| c.storage), offer.storage)?;
    if !affinity::wants(&spec, &offer.name, &offer.labels) {
        return Err(failed(RefusalReason::NodeAffinity, "node(s) didn't match Pod's node affinity/selector"));
    }
    if let Some(port) = claim.ports.iter().find(|port| port.is_agents(offer.own_ports)) {
        // At any address: macOS gives connections to the listener with the most specific one, and the Node's users trust this port.
        let why = format!("hostPort {} is a port of the Node's agent; choose another one", port.number);
        return Err(failed(RefusalReason::NodePorts, &why));
    }
    let taken =
        |port: &Port| others.iter().any(|other| other.ports.iter().any(|held| port.is_taken_by(held)));
    if claim.ports.iter().any(taken) {
        let why = "node(s) didn't have free ports for the requested pod ports";
        return Err(failed(RefusalReason::NodePorts, why));
    }
    // As in the kubelet: `NoSchedule` is the scheduler's business, `NoExecute` is the agent's.
    let tolerations = spec.tolerations.unwrap_or_default();
    let mut lethal = offer.taints.iter().filter(|taint| taint.effect == "NoExecute");
    if lethal.any(|taint| !tolerations.iter().any(|toleration| tolerates(toleration, taint))) {
        let why = "node(s) had taints that the pod didn't tolerate";
        return Err(failed(RefusalReason::TaintToleration, why));
    }
    Ok(())
}

/// Amounts are in thousandths of a core, in bytes, and in Pods. A resource of unknown amount refuses no Pod.
fn enough(reason: RefusalReason, requested: u64, used: u64, capacity: Option<u64>) -> Result<(), Refusal> {
    let Some(capacity) = capacity else { return Ok(()) };
    if requested == 0 || requested <= capacity.saturating_sub(used) {
        return Ok(());
    }
    // A Pod that does not fit an empty Node will not fit later.
    let advice = if reason == RefusalReason::OutOfPods {
        NO_PLACE
    } else if requested > capacity {
        "; request less, or choose a larger Node: this one has less in all"
    } else {
        ""
    };
    // The kubelet's reason is the resource's name after `OutOf`.
    let name = reason.as_str().trim_start_matches("OutOf");
    let message = format!(
        "Node didn't have enough resource: {name}, requested: {requested}, used: {used}, capacity: {capacity}{advice}"
    );
    Err(Refusal { reason, message })
}

fn failed(predicate: RefusalReason, why: &str) -> Refusal {
    Refusal { reason: predicate, message: format!("Predicate {predicate} failed: {why}") }
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let unset_or = |field: &Option<String>, value: &str| {
        field.as_deref().is_none_or(|field| field.is_empty() || field == value)
    };
    if !unset_or(&toleration.effect, &taint.effect) || !unset_or(&toleration.key, &taint.key) {
        return false;
    }
    match toleration.operator.as_deref().unwrap_or_default() {
        "Exists" => true,
        "" | "Equal" => {
            toleration.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default()
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{from_json, merged};
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn offer() -> NodeInfo {
        let taint = |key: &str, effect: &str| Taint {
            key: key.into(),
            effect: effect.into(),
            value: Some("yes".into()),
            ..Taint::default()
        };
        NodeInfo {
            name: "mac-1".into(),
            labels: [("disk".to_owned(), "ssd".to_owned())].into(),
            taints: vec![taint("macos", "NoSchedule"), taint("lethal", "NoExecute")],
            pods: 2,
            cpu_milli: 8000,
            memory: 16 << 30,
            storage: Some(100 << 30),
            own_ports: OwnPorts { kubelet: 10250, local: Some(10248) },
        }
    }

    fn pod(spec: &Value) -> Pod {
        let tolerations = json!([{"key": "lethal", "operator": "Exists"}]);
        let usual = json!({"containers": [{"name": "main"}], "tolerations": tolerations});
        from_json(json!({"spec": merged(&usual, spec)}))
    }

    fn requesting(requests: &Value) -> Pod {
        pod(&json!({"containers": [{"name": "main", "resources": {"requests": requests}}]}))
    }

    fn on_port(port: &Value) -> Pod {
        pod(&json!({"containers": [{"name": "main", "ports": [port]}]}))
    }

    #[test]
    fn each_refusal_uses_the_kubelets_words() {
        let other = json!({"cpu": "6", "memory": "10Gi", "ephemeral-storage": "60Gi"});
        let other = ResourceRequests::of(&requesting(&other));
        let web = ResourceRequests::of(&on_port(&json!({"containerPort": 80, "hostPort": 8080})));
        let both = [&other, &web];
        let table = vec![
            (
                pod(&json!({})),
                &both[..],
                "OutOfpods",
                "Node didn't have enough resource: pods, requested: 1, used: 2, capacity: 2; macOS runs two VMs at a time: when a Pod of this \
                 Node has ended or is deleted, create this one again, or add a Mac",
            ),
            (
                requesting(&json!({"cpu": "2500m"})),
                &both[..1],
                "OutOfcpu",
                "Node didn't have enough resource: cpu, requested: 2500, used: 6000, capacity: 8000",
            ),
            (
                requesting(&json!({"memory": "7Gi"})),
                &both[..1],
                "OutOfmemory",
                "Node didn't have enough resource: memory, requested: 7516192768, used: 10737418240, capacity: 17179869184",
            ),
            (
                requesting(&json!({"memory": "1Ti"})),
                &[],
                "OutOfmemory",
                "Node didn't have enough resource: memory, requested: 1099511627776, used: 0, capacity: 17179869184; request less, \
                 or choose a larger Node: this one has less in all",
            ),
            (
                requesting(&json!({"ephemeral-storage": "50Gi"})),
                &both[..1],
                "OutOfephemeral-storage",
                "Node didn't have enough resource: ephemeral-storage, requested: 53687091200, used: 64424509440, capacity: \
                 107374182400",
            ),
            (
                pod(&json!({"nodeSelector": {"disk": "hdd"}})),
                &[],
                "NodeAffinity",
                "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
            ),
            (
                on_port(&json!({"containerPort": 1, "hostPort": 8080, "hostIP": "10.0.0.1"})),
                &both[1..],
                "NodePorts",
                "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports",
            ),
            (
                on_port(&json!({"containerPort": 1, "hostPort": 10250, "hostIP": "10.0.0.1"})),
                &[],
                "NodePorts",
                "Predicate NodePorts failed: hostPort 10250 is a port of the Node's agent; choose another one",
            ),
            (
                on_port(&json!({"containerPort": 1, "hostPort": 10248})),
                &[],
                "NodePorts",
                "Predicate NodePorts failed: hostPort 10248 is a port of the Node's agent; choose another one",
            ),
            (
                pod(&json!({"tolerations": []})),
                &[],
                "TaintToleration",
                "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate",
            ),
        ];
        for (pod, others, reason, message) in table {
            let refusal = fits(&pod, &offer(), others).unwrap_err();
            assert_eq!((refusal.reason.as_str(), refusal.message.as_str()), (reason, message));
        }
    }

    #[test]
    fn a_pod_that_takes_exactly_the_rest_is_admitted() {
        let other = ResourceRequests::of(&requesting(&json!({"cpu": "6", "memory": "10Gi"})));
        let web = json!({"containerPort": 80, "hostPort": 8080, "hostIP": "10.0.0.1"});
        let web = ResourceRequests::of(&on_port(&web));
        for (pod, other) in [
            (requesting(&json!({"cpu": "2", "memory": "6Gi", "example.org/gpu": "1"})), &other),
            (on_port(&json!({"containerPort": 80, "hostPort": 8081})), &web),
            (on_port(&json!({"containerPort": 80, "hostPort": 8080, "protocol": "UDP"})), &web),
            (on_port(&json!({"containerPort": 80, "hostPort": 8080, "hostIP": "10.0.0.2"})), &web),
            (on_port(&json!({"containerPort": 8080})), &web),
            (on_port(&json!({"containerPort": 10250, "hostPort": 10250, "protocol": "UDP"})), &web),
        ] {
            assert_eq!(fits(&pod, &offer(), &[other]), Ok(()), "{pod:?}");
        }
        let unknown = NodeInfo { storage: None, ..offer() };
        assert_eq!(fits(&requesting(&json!({"ephemeral-storage": "1E"})), &unknown, &[]), Ok(()));
    }

    #[test]
    fn requests_of_init_containers_add_up_only_for_sidecars() {
        let container = |cpu: &str| json!({"name": "a", "resources": {"requests": {"cpu": cpu}}});
        let mut sidecar = container("1");
        sidecar["restartPolicy"] = json!("Always");
        let spec = json!({
            "initContainers": [container("3"), sidecar, container("4")],
            "containers": [container("2")],
            "overhead": {"cpu": "500m"},
        });
        assert_eq!(ResourceRequests::of(&pod(&spec)).cpu_milli, 5500);
        assert_eq!(ResourceRequests::of(&requesting(&json!({"cpu": "nonsense"}))).cpu_milli, u64::MAX);
    }

    #[test]
    fn tolerations_match_taints_as_in_the_scheduler() {
        let table = [
            (json!({"operator": "Exists"}), true),
            (json!({"key": "lethal", "value": "yes"}), true),
            (json!({"key": "lethal", "operator": "Equal", "value": "yes", "effect": "NoExecute"}), true),
            (json!({"key": "lethal", "value": "no"}), false),
            (json!({"key": "lethal", "operator": "Exists", "effect": "NoSchedule"}), false),
            (json!({"key": "other", "operator": "Exists"}), false),
        ];
        for (toleration, expected) in table {
            let fit = fits(&pod(&json!({"tolerations": [toleration]})), &offer(), &[]).is_ok();
            assert_eq!(fit, expected, "{toleration}");
        }
    }

    proptest! {
        /// In every order of arrival, admitted Pods never request more than the Node has.
        #[test]
        fn admitted_pods_never_exceed_the_node(asked in proptest::collection::vec((0u64..9000, 0u64..20), 0..12)) {
            let mut inside: Vec<ResourceRequests> = Vec::new();
            let offer = NodeInfo { pods: 4, ..offer() };
            for (cpu, memory) in asked {
                let pod = requesting(&json!({"cpu": format!("{cpu}m"), "memory": format!("{memory}Gi")}));
                let others: Vec<&ResourceRequests> = inside.iter().collect();
                if fits(&pod, &offer, &others).is_ok() {
                    inside.push(ResourceRequests::of(&pod));
                }
            }
            prop_assert!(inside.len() <= 4);
            prop_assert!(inside.iter().map(|c| c.cpu_milli).sum::<u64>() <= offer.cpu_milli);
            prop_assert!(inside.iter().map(|c| c.memory).sum::<u64>() <= offer.memory);
        }
    }
}
