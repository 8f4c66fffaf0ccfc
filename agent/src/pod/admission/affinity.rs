//! Whether a Node is one that a Pod asks for, by the scheduler's own rules.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, PodSpec};

/// Whether a Node with this name and these labels satisfies a Pod's node selector and its required node affinity.
pub(crate) fn wants(spec: &PodSpec, node: &str, labels: &BTreeMap<String, String>) -> bool {
    let selected = spec.node_selector.iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
    let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required =
        affinity.and_then(|node| node.required_during_scheduling_ignored_during_execution.as_ref());
    selected
        && required.is_none_or(|all| all.node_selector_terms.iter().any(|term| holds(term, node, labels)))
}

/// A term without any requirement is satisfied by no Node.
fn holds(term: &NodeSelectorTerm, node: &str, labels: &BTreeMap<String, String>) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let label = |key: &str| labels.get(key).map(String::as_str);
    // `metadata.name` is the only field that `matchFields` supports.
    let field = |key: &str| (key == "metadata.name").then_some(node);
    !(expressions.is_empty() && fields.is_empty())
        && expressions.iter().all(|requirement| met(requirement, label(&requirement.key)))
        && fields.iter().all(|requirement| met(requirement, field(&requirement.key)))
}

fn met(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let is_listed = value.is_some_and(|value| values.iter().any(|listed| listed == value));
    let number = |text: &str| text.parse::<i64>().ok();
    let compared = || {
        let [bound] = values else { return None };
        Some(value.and_then(number)?.cmp(&number(bound)?))
    };
    match requirement.operator.as_str() {
        "In" => is_listed,
        "NotIn" => !is_listed,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compared() == Some(std::cmp::Ordering::Greater),
        "Lt" => compared() == Some(std::cmp::Ordering::Less),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{from_json, merged};
    use serde_json::{Value, json};

    fn wanted(spec: &Value) -> bool {
        let spec = from_json(merged(&json!({"containers": []}), spec));
        let labels = [("disk", "ssd"), ("cores", "8"), ("empty", "")];
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        wants(&spec, "mac-1", &labels)
    }

    fn terms(terms: &Value) -> Value {
        let required = json!({"nodeSelectorTerms": terms});
        json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}})
    }

    #[test]
    fn selectors_must_all_match() {
        assert!(wanted(&json!({})));
        assert!(wanted(&json!({"nodeSelector": {"disk": "ssd", "empty": ""}})));
        assert!(!wanted(&json!({"nodeSelector": {"disk": "ssd", "cores": "9"}})));
        assert!(!wanted(&json!({"nodeSelector": {"absent": ""}})));
    }

    #[test]
    fn operators_mean_what_they_mean_to_the_scheduler() {
        let table = [
            (json!({"key": "disk", "operator": "In", "values": ["hdd", "ssd"]}), true),
            (json!({"key": "disk", "operator": "In", "values": ["hdd"]}), false),
            (json!({"key": "absent", "operator": "In", "values": ["x"]}), false),
            (json!({"key": "disk", "operator": "NotIn", "values": ["ssd"]}), false),
            (json!({"key": "absent", "operator": "NotIn", "values": ["x"]}), true),
            (json!({"key": "empty", "operator": "Exists"}), true),
            (json!({"key": "absent", "operator": "Exists"}), false),
            (json!({"key": "absent", "operator": "DoesNotExist"}), true),
            (json!({"key": "disk", "operator": "DoesNotExist"}), false),
            (json!({"key": "cores", "operator": "Gt", "values": ["7"]}), true),
            (json!({"key": "cores", "operator": "Gt", "values": ["8"]}), false),
            (json!({"key": "cores", "operator": "Lt", "values": ["9"]}), true),
            (json!({"key": "disk", "operator": "Lt", "values": ["9"]}), false),
            (json!({"key": "disk", "operator": "FromTheFuture"}), false),
        ];
        for (requirement, expected) in table {
            let term = json!([{"matchExpressions": [requirement]}]);
            assert_eq!(wanted(&terms(&term)), expected, "{requirement}");
        }
    }

    #[test]
    fn one_term_is_enough_and_an_empty_one_is_none() {
        let named =
            |name| json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]});
        let (here, elsewhere) = (named("mac-1"), named("mac-2"));
        assert!(wanted(&terms(&json!([elsewhere, here]))));
        assert!(!wanted(&terms(&json!([elsewhere]))));
        assert!(!wanted(&terms(&json!([{}]))));
        assert!(!wanted(&terms(&json!([]))));
    }
}
