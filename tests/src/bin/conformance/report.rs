//! What ginkgo writes about a run of the suite.

use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

/// How a spec ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    Failed,
    /// The suite did not run it, or it found that it does not apply.
    Skipped,
}

/// One spec of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Spec {
    pub(crate) name: String,
    pub(crate) outcome: Outcome,
    /// Why it did not pass.
    pub(crate) reason: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Run {
    #[serde(default)]
    spec_reports: Option<Vec<Node>>,
}

/// A spec, or something that is run before or after all specs.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Node {
    #[serde(default)]
    container_hierarchy_texts: Option<Vec<String>>,
    leaf_node_type: String,
    leaf_node_text: String,
    state: String,
    #[serde(default)]
    failure: Option<Failure>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Failure {
    #[serde(default)]
    message: String,
}

/// Reads the specs of a report.
pub(crate) fn read(path: &Path) -> Result<Vec<Spec>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    parse(&text).with_context(|| format!("{} is no report of ginkgo's", path.display()))
}

fn parse(text: &str) -> Result<Vec<Spec>> {
    let runs: Vec<Run> = serde_json::from_str(text)?;
    let nodes = runs.into_iter().flat_map(|run| run.spec_reports.unwrap_or_default());
    Ok(nodes.filter(|node| node.leaf_node_type == "It").map(spec).collect())
}

fn spec(node: Node) -> Spec {
    let mut words = node.container_hierarchy_texts.unwrap_or_default();
    words.push(node.leaf_node_text);
    let outcome = match node.state.as_str() {
        "passed" => Outcome::Passed,
        "skipped" | "pending" | "invalid" => Outcome::Skipped,
        _ => Outcome::Failed,
    };
    let message = node.failure.map(|failure| failure.message).unwrap_or_default();
    let reason = if message.is_empty() { node.state } else { message };
    Spec { name: words.join(" "), outcome, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specs_have_their_whole_names_and_their_outcomes() {
        let text = r#"[{"SpecReports": [
            {"LeafNodeType": "BeforeSuite", "LeafNodeText": "", "State": "passed"},
            {"ContainerHierarchyTexts": ["[sig-node] Pods"], "LeafNodeType": "It", "LeafNodeText": "run", "State": "passed"},
            {"ContainerHierarchyTexts": ["a", "b"], "LeafNodeType": "It", "LeafNodeText": "c", "State": "failed",
             "Failure": {"Message": "timed out"}},
            {"ContainerHierarchyTexts": null, "LeafNodeType": "It", "LeafNodeText": "d", "State": "timedout"},
            {"LeafNodeType": "It", "LeafNodeText": "e", "State": "skipped", "Failure": {"Message": ""}}
        ]}, {"SpecReports": null}]"#;
        let specs = parse(text).unwrap();
        let seen: Vec<_> =
            specs.iter().map(|spec| (spec.name.as_str(), spec.outcome, spec.reason.as_str())).collect();
        assert_eq!(
            seen,
            [
                ("[sig-node] Pods run", Outcome::Passed, "passed"),
                ("a b c", Outcome::Failed, "timed out"),
                ("d", Outcome::Failed, "timedout"),
                ("e", Outcome::Skipped, "skipped"),
            ]
        );
    }
}
