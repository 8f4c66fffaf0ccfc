//! A Pod's conditions, in the kubelet's words.

use std::fmt;

use super::Phase;

/// What the conditions depend on.
pub(super) struct ConditionFacts<'a> {
    pub(super) phase: Phase,
    pub(super) has_address: bool,
    /// The init containers that have not succeeded yet.
    pub(super) incomplete: Vec<String>,
    pub(super) ready: bool,
    pub(super) container: &'a str,
    /// The readiness gates that do not hold.
    pub(super) unmet_gates: Option<String>,
    /// Why the agent evicts the Pod, if it does.
    pub(super) evicted: Option<&'a str>,
}

/// The conditions that the agent sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConditionKind {
    PodReadyToStartContainers,
    Initialized,
    Ready,
    ContainersReady,
    PodScheduled,
    DisruptionTarget,
}

impl fmt::Display for ConditionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// One condition.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Condition {
    pub(super) kind: ConditionKind,
    pub(super) holds: bool,
    pub(super) reason: Option<&'static str>,
    pub(super) message: Option<String>,
}

/// All conditions of a Pod.
pub(super) fn all(facts: &ConditionFacts<'_>) -> Vec<Condition> {
    let own = [
        plain(ConditionKind::PodReadyToStartContainers, facts.has_address),
        initialized(facts),
        ready(facts),
        containers_ready(ConditionKind::ContainersReady, facts),
        plain(ConditionKind::PodScheduled, true),
    ];
    own.into_iter().chain(facts.evicted.map(disrupted)).collect()
}

/// `DisruptionTarget` tells a Job that the failure is not the Pod's own. Absent otherwise: other controllers set it, too.
fn disrupted(why: &str) -> Condition {
    Condition {
        reason: Some("TerminationByKubelet"),
        message: Some(why.to_owned()),
        ..plain(ConditionKind::DisruptionTarget, true)
    }
}

fn plain(kind: ConditionKind, holds: bool) -> Condition {
    Condition { kind, holds, reason: None, message: None }
}

fn fails(kind: ConditionKind, reason: &'static str, message: Option<String>) -> Condition {
    Condition { kind, holds: false, reason: Some(reason), message }
}

fn initialized(facts: &ConditionFacts<'_>) -> Condition {
    let kind = ConditionKind::Initialized;
    match facts.phase {
        Phase::Succeeded => Condition { reason: Some("PodCompleted"), ..plain(kind, true) },
        _ if facts.incomplete.is_empty() => plain(kind, true),
        _ => {
            let message = format!("containers with incomplete status: [{}]", facts.incomplete.join(" "));
            fails(kind, "ContainersNotInitialized", Some(message))
        }
    }
}

fn ready(facts: &ConditionFacts<'_>) -> Condition {
    match &facts.unmet_gates {
        Some(unmet) if facts.ready => {
            fails(ConditionKind::Ready, "ReadinessGatesNotReady", Some(unmet.clone()))
        }
        _ => containers_ready(ConditionKind::Ready, facts),
    }
}

fn containers_ready(kind: ConditionKind, facts: &ConditionFacts<'_>) -> Condition {
    match facts.phase {
        _ if facts.ready => plain(kind, true),
        Phase::Succeeded => fails(kind, "PodCompleted", None),
        Phase::Failed => fails(kind, "PodFailed", None),
        _ => {
            let message = format!("containers with unready status: [{}]", facts.container);
            fails(kind, "ContainersNotReady", Some(message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> ConditionFacts<'static> {
        ConditionFacts {
            phase: Phase::Running,
            has_address: true,
            incomplete: Vec::new(),
            ready: true,
            container: "main",
            unmet_gates: None,
            evicted: None,
        }
    }

    #[test]
    fn conditions_use_the_kubelets_words() {
        let said = |facts: &ConditionFacts<'_>, kind: &str| {
            let one = all(facts).into_iter().find(|one| one.kind.to_string() == kind).unwrap();
            format!("{} {} {}", one.holds, one.reason.unwrap_or("-"), one.message.as_deref().unwrap_or("-"))
        };
        let unready = ConditionFacts { ready: false, ..facts() };
        let waiting = ConditionFacts { ready: false, incomplete: vec!["a".into(), "b".into()], ..facts() };
        let gated = ConditionFacts { unmet_gates: Some("no".into()), ..facts() };
        let gated_too = ConditionFacts { unmet_gates: Some("no".into()), ..unready };
        let done = ConditionFacts { phase: Phase::Succeeded, ready: false, ..facts() };
        let failed = ConditionFacts { phase: Phase::Failed, ready: false, ..facts() };
        let table = [
            (&facts(), "Ready", "true - -"),
            (&gated_too, "Ready", "false ContainersNotReady containers with unready status: [main]"),
            (&gated, "Ready", "false ReadinessGatesNotReady no"),
            (&gated, "ContainersReady", "true - -"),
            (
                &waiting,
                "Initialized",
                "false ContainersNotInitialized containers with incomplete status: [a b]",
            ),
            (&done, "Initialized", "true PodCompleted -"),
            (&done, "Ready", "false PodCompleted -"),
            (&failed, "ContainersReady", "false PodFailed -"),
        ];
        for (facts, kind, expected) in table {
            assert_eq!(said(facts, kind), expected);
        }
        let evicted = ConditionFacts { evicted: Some("too large"), ..facts() };
        assert_eq!(said(&evicted, "DisruptionTarget"), "true TerminationByKubelet too large");
        assert_eq!(all(&facts()).len(), 5, "others may have set it");
    }
}
