//! Readiness gates: conditions that other controllers set, and that a Pod needs to be ready.

use k8s_openapi::api::core::v1::Pod;

/// Which of a Pod's readiness gates do not hold, in the kubelet's words; `None` when all do.
pub(super) fn unmet(pod: &Pod) -> Option<String> {
    let gates = pod.spec.iter().flat_map(|spec| spec.readiness_gates.iter().flatten());
    let unmet: Vec<String> = gates
        .filter_map(|gate| {
            let kind = &gate.condition_type;
            let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
            match conditions.find(|condition| condition.type_ == *kind) {
                Some(condition) if condition.status == "True" => None,
                Some(condition) => Some(format!(
                    "the status of pod readiness gate \"{kind}\" is not \"True\", but {}",
                    condition.status
                )),
                None => {
                    Some(format!("corresponding condition of pod readiness gate \"{kind}\" does not exist."))
                }
            }
        })
        .collect();
    (!unmet.is_empty()).then(|| unmet.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_gate_must_hold() {
        let said = |statuses: &[&str]| {
            let kinds = ["a", "b"];
            let condition = |(kind, status)| json!({"type": kind, "status": status});
            let conditions: Vec<_> = kinds.iter().zip(statuses).map(condition).collect();
            let pod = json!({
                "spec": {"containers": [], "readinessGates": kinds.map(|kind| json!({"conditionType": kind}))},
                "status": {"conditions": conditions},
            });
            unmet(&serde_json::from_value(pod).unwrap())
        };
        assert_eq!(said(&["True", "True"]), None);
        let words = "the status of pod readiness gate \"a\" is not \"True\", but False, \
                     corresponding condition of pod readiness gate \"b\" does not exist.";
        assert_eq!(said(&["False"]).as_deref(), Some(words));
        assert_eq!(unmet(&Pod::default()), None);
    }
}
