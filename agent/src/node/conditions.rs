//! The Node's conditions, and the Events about their changes.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{NodeCondition, NodeStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::health::NodeHealth;
use crate::apiserver::events::LastReported;

words! {
    /// All types but the fourth are the kubelet's.
    pub(crate) enum ConditionType {
        MemoryPressure = "MemoryPressure",
        DiskPressure = "DiskPressure",
        PidPressure = "PIDPressure",
        DhcpLeasesLow = "DHCPLeasesLow",
        Ready = "Ready",
    }
}

words! {
    /// `Unknown` is written by the node lifecycle controller only.
    pub(crate) enum ConditionStatus {
        True = "True",
        False = "False",
    }
}

/// The words are the kubelet's, and some of this agent.
impl ConditionType {
    const ALL: [Self; 5] =
        [Self::MemoryPressure, Self::DiskPressure, Self::PidPressure, Self::DhcpLeasesLow, Self::Ready];

    /// VMs can start on a healthy Node.
    fn status(self, is_healthy: bool) -> ConditionStatus {
        if is_healthy == (self == Self::Ready) { ConditionStatus::True } else { ConditionStatus::False }
    }

    /// The reason and the message on a healthy Node.
    fn healthy(self) -> (&'static str, &'static str) {
        match self {
            Self::MemoryPressure => ("KubeletHasSufficientMemory", "the host has no MemoryPressure"),
            Self::DiskPressure => ("KubeletHasNoDiskPressure", "the host has no DiskPressure"),
            Self::PidPressure => ("KubeletHasSufficientPID", "the host has no PIDPressure"),
            Self::DhcpLeasesLow => ("EnoughAddressesLeft", "the host has addresses for VMs"),
            Self::Ready => ("TartReady", "VMs can start"),
        }
    }

    /// The reason and the message on a Node that is not healthy.
    fn problem(self, health: &NodeHealth) -> Option<(&'static str, &str)> {
        let shortages = &health.shortages;
        let (reason, shortage) = match self {
            Self::MemoryPressure => ("KubeletHasInsufficientMemory", &shortages.memory),
            Self::DiskPressure => ("KubeletHasDiskPressure", &shortages.disk),
            Self::PidPressure => ("KubeletHasInsufficientPID", &shortages.pid),
            Self::DhcpLeasesLow => ("FewAddressesLeft", &shortages.addresses),
            Self::Ready => {
                let problem = health.problem.as_ref()?;
                return Some((problem.reason.as_str(), &problem.message));
            }
        };
        Some((reason, shortage.as_deref()?))
    }

    /// The reason of the Event about a change.
    fn event_reason(self, is_healthy: bool) -> &'static str {
        let (healthy, unhealthy) = match self {
            Self::MemoryPressure => ("NodeHasSufficientMemory", "NodeHasInsufficientMemory"),
            Self::DiskPressure => ("NodeHasNoDiskPressure", "NodeHasDiskPressure"),
            Self::PidPressure => ("NodeHasSufficientPID", "NodeHasInsufficientPID"),
            Self::DhcpLeasesLow => ("DHCPLeasesEnough", "DHCPLeasesLow"),
            Self::Ready => ("NodeReady", "NodeNotReady"),
        };
        if is_healthy { healthy } else { unhealthy }
    }
}

/// The type and status of each condition.
pub(crate) fn statuses(health: &NodeHealth) -> [(ConditionType, ConditionStatus); 5] {
    ConditionType::ALL.map(|kind| (kind, kind.status(kind.problem(health).is_none())))
}

/// The conditions as the API has them. A transition time is kept from `before` while the status stays the same.
pub(super) fn conditions(
    health: &NodeHealth,
    before: Option<&NodeStatus>,
    now: Timestamp,
) -> Vec<NodeCondition> {
    let condition = |(kind, status): (ConditionType, ConditionStatus)| {
        let old = before.and_then(|before| find(before, kind)).filter(|old| old.status == status.as_str());
        let (reason, message) = kind.problem(health).unwrap_or_else(|| kind.healthy());
        NodeCondition {
            type_: kind.to_string(),
            status: status.to_string(),
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()),
            last_heartbeat_time: Some(Time(now)),
            last_transition_time: old.and_then(|old| old.last_transition_time.clone()).or(Some(Time(now))),
        }
    };
    statuses(health).map(condition).to_vec()
}

/// A patch that confirms all conditions: their heartbeat times alone, because the API server has the rest.
pub(super) fn confirmation(now: Timestamp) -> Value {
    json!(ConditionType::ALL.map(|kind| json!({"type": kind.as_str(), "lastHeartbeatTime": Time(now)})))
}

/// Whether the API server shows other conditions than the agent's, times apart.
pub(super) fn differ(ours: &NodeStatus, theirs: &NodeStatus) -> bool {
    let key = |c: &NodeCondition| (c.status.clone(), c.reason.clone(), c.message.clone());
    ConditionType::ALL.into_iter().any(|kind| find(ours, kind).map(key) != find(theirs, kind).map(key))
}

/// An Event about the change of a condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConditionEvent {
    pub(super) warns: bool,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// The Events about the change from the status that the API server showed to the one that the agent wrote. A Node that begins healthy
/// has none.
pub(super) fn events(before: Option<&NodeStatus>, after: &NodeStatus) -> Vec<ConditionEvent> {
    let event = |kind: ConditionType| {
        let condition = find(after, kind)?;
        let old = before.and_then(|before| find(before, kind));
        let healthy = kind.status(true).as_str();
        if !LastReported::after(old.map_or(healthy, |old| &old.status)).is_new(&condition.status) {
            return None;
        }
        let is_healthy = condition.status == healthy;
        let reason = condition.reason.as_deref().unwrap_or_default();
        let message = condition.message.as_deref().unwrap_or_default();
        Some(ConditionEvent {
            warns: !is_healthy,
            reason: kind.event_reason(is_healthy),
            message: format!("{reason}: {message}"),
        })
    };
    ConditionType::ALL.into_iter().filter_map(event).collect()
}

fn find(status: &NodeStatus, kind: ConditionType) -> Option<&NodeCondition> {
    status.conditions.iter().flatten().find(|condition| condition.type_ == kind.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::health::{HealthProblem, NotReadyReason, Shortages};
    use crate::testing::at;

    fn status(health: &NodeHealth, before: Option<&NodeStatus>, second: i64) -> NodeStatus {
        NodeStatus { conditions: Some(conditions(health, before, at(second))), ..NodeStatus::default() }
    }

    fn unhealthy() -> NodeHealth {
        NodeHealth {
            problem: Some(HealthProblem { reason: NotReadyReason::TartMissing, message: "no tart".into() }),
            shortages: Shortages { disk: Some("full".into()), ..Shortages::default() },
            ..NodeHealth::default()
        }
    }

    #[test]
    fn a_transition_time_changes_with_the_status_only() {
        let first = status(&NodeHealth::default(), None, 1);
        let time =
            |status: &NodeStatus, kind| find(status, kind).unwrap().last_transition_time.clone().unwrap().0;
        let second = status(&unhealthy(), Some(&first), 9);
        assert_eq!(time(&status(&NodeHealth::default(), Some(&first), 9), ConditionType::Ready), at(1));
        assert_eq!(time(&second, ConditionType::Ready), at(9));
        assert_eq!(time(&second, ConditionType::DiskPressure), at(9));
        assert_eq!(time(&second, ConditionType::MemoryPressure), at(1));
        assert!(differ(&second, &first) && !differ(&second, &second));
        let mut foreign = second.clone();
        let other = NodeCondition { type_: "Other".into(), ..NodeCondition::default() };
        foreign.conditions.as_mut().unwrap().push(other);
        assert!(!differ(&second, &foreign), "the condition of another controller does not count");
    }

    #[test]
    fn a_confirmation_has_the_heartbeat_time_of_every_condition_and_nothing_else() {
        let kinds = ["MemoryPressure", "DiskPressure", "PIDPressure", "DHCPLeasesLow", "Ready"];
        let expected = kinds.map(|kind| json!({"type": kind, "lastHeartbeatTime": "1970-01-01T00:00:09Z"}));
        assert_eq!(confirmation(at(9)), json!(expected));
    }

    #[test]
    fn a_condition_that_changes_has_an_event_and_no_other_does() {
        let healthy = status(&NodeHealth::default(), None, 1);
        let bad = status(&unhealthy(), Some(&healthy), 2);
        let reasons = |before, after| -> Vec<_> {
            events(before, after).into_iter().map(|event| (event.reason, event.warns)).collect()
        };
        assert_eq!(reasons(None, &healthy), []);
        assert_eq!(reasons(Some(&healthy), &healthy), []);
        let worse = [("NodeHasDiskPressure", true), ("NodeNotReady", true)];
        assert_eq!(reasons(Some(&healthy), &bad), worse);
        assert_eq!(reasons(None, &bad), worse);
        let better = [("NodeHasNoDiskPressure", false), ("NodeReady", false)];
        assert_eq!(reasons(Some(&bad), &healthy), better);
        assert_eq!(events(None, &bad)[1].message, "TartMissing: no tart");
        let short = NodeHealth {
            shortages: Shortages {
                pid: Some("few".into()),
                memory: Some("little".into()),
                addresses: Some("few".into()),
                disk: None,
            },
            ..NodeHealth::default()
        };
        let short = status(&short, None, 3);
        assert_eq!(
            reasons(Some(&healthy), &short),
            ["NodeHasInsufficientMemory", "NodeHasInsufficientPID", "DHCPLeasesLow"]
                .map(|reason| (reason, true))
        );
        let mut unknown = healthy.clone();
        for condition in unknown.conditions.iter_mut().flatten() {
            condition.status = "Unknown".into();
        }
        assert_eq!(reasons(Some(&unknown), &healthy).len(), 5, "every condition was unknown");
    }
}
