//! The Node's conditions, and what is told when one of them changes.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{NodeCondition, NodeStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::health::NodeHealth;

/// Conditions from health; transition times are kept from `before` for as long as nothing changes.
pub(crate) fn conditions(
    health: &NodeHealth,
    before: Option<&NodeStatus>,
    now: Timestamp,
) -> Vec<NodeCondition> {
    let short = &health.short_of;
    let pressure = |kind: &'static str, words: &Option<String>, short: &'static str, enough: &'static str| {
        let message = words.clone().unwrap_or_else(|| match kind {
            "DHCPLeasesLow" => "the host has addresses for VMs".to_owned(),
            _ => format!("the host has no {kind}"),
        });
        let reason = if words.is_some() { short } else { enough };
        (kind, words.is_some(), reason, message)
    };
    let (ready, reason, message) = match &health.problem {
        None => (true, "TartReady", "VMs can start".to_owned()),
        Some(problem) => (false, problem.reason, problem.message.clone()),
    };
    // The kubelet's words, which people and tools know.
    let all = [
        pressure(
            "MemoryPressure",
            &short.memory,
            "KubeletHasInsufficientMemory",
            "KubeletHasSufficientMemory",
        ),
        pressure("DiskPressure", &short.disk, "KubeletHasDiskPressure", "KubeletHasNoDiskPressure"),
        pressure("PIDPressure", &short.pid, "KubeletHasInsufficientPID", "KubeletHasSufficientPID"),
        // No kubelet has a word for this one.
        pressure("DHCPLeasesLow", &short.addresses, "FewAddressesLeft", "EnoughAddressesLeft"),
        ("Ready", ready, reason, message),
    ];
    all.map(|(kind, holds, reason, message)| {
        let status = if holds { "True" } else { "False" };
        let old = before.and_then(|before| find(before, kind)).filter(|old| old.status == status);
        NodeCondition {
            type_: kind.to_owned(),
            status: status.to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message),
            last_heartbeat_time: Some(Time(now)),
            last_transition_time: old.and_then(|old| old.last_transition_time.clone()).or(Some(Time(now))),
        }
    })
    .to_vec()
}

/// What says that all conditions still hold: the time, and no more, for the API server knows the rest.
pub(crate) fn confirmation(health: &NodeHealth, now: Timestamp) -> Value {
    let times = conditions(health, None, now);
    json!(
        times
            .iter()
            .map(|one| json!({"type": one.type_, "lastHeartbeatTime": one.last_heartbeat_time}))
            .collect::<Vec<_>>()
    )
}

/// Whether the server shows other conditions than ours, times apart.
pub(crate) fn differ(ours: &NodeStatus, theirs: &NodeStatus) -> bool {
    let key = |c: &NodeCondition| (c.status.clone(), c.reason.clone(), c.message.clone());
    ours.conditions
        .iter()
        .flatten()
        .any(|our| find(theirs, &our.type_).is_none_or(|their| key(their) != key(our)))
}

/// Something that an Event is to tell of the Node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Note {
    /// Whether it is a warning.
    pub(crate) warns: bool,
    /// The kubelet's word for it.
    pub(crate) reason: String,
    /// What happened.
    pub(crate) text: String,
}

/// What is to be told of the change from what the server showed to what we have written.
pub(crate) fn notes(before: Option<&NodeStatus>, after: &NodeStatus) -> Vec<Note> {
    let changed = |condition: &&NodeCondition| {
        let old = before.and_then(|before| find(before, &condition.type_));
        match old {
            Some(old) => old.status != condition.status,
            // A Node that begins well needs no words.
            None => is_bad(condition),
        }
    };
    let note = |condition: &NodeCondition| {
        let warns = is_bad(condition);
        let reason = match (condition.type_.as_str(), warns) {
            ("Ready", true) => "NodeNotReady".to_owned(),
            ("Ready", false) => "NodeReady".to_owned(),
            ("DiskPressure", true) => "NodeHasDiskPressure".to_owned(),
            ("DiskPressure", false) => "NodeHasNoDiskPressure".to_owned(),
            ("DHCPLeasesLow", true) => "DHCPLeasesLow".to_owned(),
            ("DHCPLeasesLow", false) => "DHCPLeasesEnough".to_owned(),
            (other, warns) => {
                let amount = if warns { "Insufficient" } else { "Sufficient" };
                format!("NodeHas{amount}{}", other.trim_end_matches("Pressure"))
            }
        };
        let words = condition.message.as_deref().unwrap_or_default();
        let text = format!("{}: {words}", condition.reason.as_deref().unwrap_or_default());
        Note { warns, reason, text }
    };
    after.conditions.iter().flatten().filter(changed).map(note).collect()
}

fn is_bad(condition: &NodeCondition) -> bool {
    (condition.type_ == "Ready") != (condition.status == "True")
}

fn find<'a>(status: &'a NodeStatus, kind: &str) -> Option<&'a NodeCondition> {
    status.conditions.iter().flatten().find(|condition| condition.type_ == kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::health::{HealthProblem, Shortages};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn status(health: &NodeHealth, before: Option<&NodeStatus>, second: i64) -> NodeStatus {
        NodeStatus { conditions: Some(conditions(health, before, at(second))), ..NodeStatus::default() }
    }

    fn ill() -> NodeHealth {
        NodeHealth {
            problem: Some(HealthProblem { reason: "TartMissing", message: "no tart".into() }),
            short_of: Shortages { disk: Some("full".into()), ..Shortages::default() },
            ..NodeHealth::default()
        }
    }

    #[test]
    fn a_transition_time_moves_with_the_status_only() {
        let first = status(&NodeHealth::default(), None, 1);
        let time =
            |status: &NodeStatus, kind| find(status, kind).unwrap().last_transition_time.clone().unwrap().0;
        let second = status(&ill(), Some(&first), 9);
        assert_eq!(time(&status(&NodeHealth::default(), Some(&first), 9), "Ready"), at(1));
        assert_eq!((time(&second, "Ready"), time(&second, "DiskPressure")), (at(9), at(9)));
        assert_eq!(time(&second, "MemoryPressure"), at(1));
        assert!(differ(&second, &first) && !differ(&second, &second));
        let mut foreign = second.clone();
        foreign
            .conditions
            .as_mut()
            .unwrap()
            .push(NodeCondition { type_: "Other".into(), ..Default::default() });
        assert!(!differ(&second, &foreign), "a condition of somebody else is theirs");
    }

    #[test]
    fn a_confirmation_says_the_time_of_every_condition_and_nothing_else() {
        let kinds = ["MemoryPressure", "DiskPressure", "PIDPressure", "DHCPLeasesLow", "Ready"];
        let expected = kinds.map(|kind| json!({"type": kind, "lastHeartbeatTime": "1970-01-01T00:00:09Z"}));
        assert_eq!(confirmation(&ill(), at(9)), json!(expected));
    }

    #[test]
    fn a_change_is_told_and_nothing_else_is() {
        let well = status(&NodeHealth::default(), None, 1);
        let bad = status(&ill(), Some(&well), 2);
        let reasons = |before, after| {
            let all: Vec<_> =
                notes(before, after).into_iter().map(|note| (note.reason, note.warns)).collect();
            all
        };
        assert_eq!(reasons(None, &well), []);
        assert_eq!(reasons(Some(&well), &well), []);
        let worse = [("NodeHasDiskPressure".to_owned(), true), ("NodeNotReady".to_owned(), true)];
        assert_eq!(reasons(Some(&well), &bad), worse);
        assert_eq!(reasons(None, &bad), worse);
        let better = [("NodeHasNoDiskPressure".to_owned(), false), ("NodeReady".to_owned(), false)];
        assert_eq!(reasons(Some(&bad), &well), better);
        let short = NodeHealth {
            short_of: Shortages {
                pid: Some("few".into()),
                memory: Some("little".into()),
                addresses: Some("few".into()),
                disk: None,
            },
            ..NodeHealth::default()
        };
        let short = status(&short, None, 3);
        let few = reasons(Some(&well), &short);
        assert_eq!(
            few,
            ["NodeHasInsufficientMemory", "NodeHasInsufficientPID", "DHCPLeasesLow"]
                .map(|reason| (reason.to_owned(), true))
        );
        let mut unknown = well.clone();
        for condition in unknown.conditions.iter_mut().flatten() {
            condition.status = "Unknown".into();
        }
        assert_eq!(reasons(Some(&unknown), &well).len(), 5, "back from the dead");
    }
}
