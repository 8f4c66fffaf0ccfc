//! The Pods of the demo.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::ListParams;
use serde_json::{Value, json};
use tart_kubelet_tests::wait::{eventually, until};

use super::world::{DEADLINE, FLEET, IMAGE, World};

/// Counts, and says each number.
const COUNT: &str = "trap 'exit 0' TERM; i=0; while :; do i=$((i + 1)); echo \"line $i\"; sleep 0.5; done";
/// How many Pods count: two for each of two Macs.
pub(crate) const COUNTERS: usize = 4;
const BUILDS: &str = "app=builds";

/// The spec of a Pod on a fleet.
pub(crate) fn spec(fleet: &str, image: &str, command: &str, restart: &str) -> Value {
    json!({
        "restartPolicy": restart,
        "terminationGracePeriodSeconds": 5,
        "nodeSelector": { "tuist.dev/fleet": fleet },
        "tolerations": [{ "key": "tuist.dev/macos", "operator": "Exists" }],
        "containers": [{ "name": "main", "image": image, "command": ["/bin/sh", "-c", command] }],
    })
}

/// A Pod that runs once.
pub(crate) fn pod(name: &str, fleet: &str, image: &str, command: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name }, "spec": spec(fleet, image, command, "Never") })
}

/// A Deployment of Pods that count.
pub(crate) fn builds() -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "builds" },
        "spec": {
            "replicas": COUNTERS, "selector": { "matchLabels": { "app": "builds" } },
            "template": { "metadata": { "labels": { "app": "builds" } }, "spec": spec(FLEET, IMAGE, COUNT, "Always") },
        },
    })
}

/// The Pods that count, as soon as all run.
pub(crate) async fn counting(world: &World) -> Result<Vec<Pod>> {
    eventually("Pods that run", DEADLINE, async || {
        let pods = world.pods().list(&ListParams::default().labels(BUILDS)).await?.items;
        let good: Vec<Pod> = pods
            .into_iter()
            .filter(|pod| pod.metadata.deletion_timestamp.is_none() && phase(pod) == "Running")
            .collect();
        ensure!(good.len() == COUNTERS, "{} of {COUNTERS} run", good.len());
        Ok(good)
    })
    .await
}

/// Fails if a number is missing in the log of a Pod, or twice there; returns how many it has said.
pub(crate) async fn lines_of(world: &World, pod: &Pod) -> Result<usize> {
    let name = pod.name_any();
    let log = world.pods_kubectl().run(["logs", &name]).await?;
    let numbers: Vec<usize> =
        log.lines().filter_map(|line| line.strip_prefix("line ")?.parse().ok()).collect();
    let all: Vec<usize> = (1..=numbers.len()).collect();
    ensure!(!numbers.is_empty() && numbers == all, "lines are missing in the log of {name}:\n{log}");
    Ok(numbers.len())
}

/// Waits until a Pod has ended, and checks its exit code.
pub(crate) async fn ends_with(world: &World, name: &str, code: i32) -> Result<()> {
    let over = |pod: &Pod| matches!(phase(pod), "Succeeded" | "Failed");
    let pod = until(&world.pods(), name, "over", DEADLINE, over).await?;
    let state =
        pod.status.as_ref().and_then(|status| status.container_statuses.as_ref()?.first()?.state.clone());
    let ended = state.and_then(|state| state.terminated).context("a Pod that is over has no exit code")?;
    ensure!(ended.exit_code == code, "the Pod {name} ended with {}: {ended:?}", ended.exit_code);
    Ok(())
}

/// The phase of a Pod.
pub(crate) fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// The Node that a Pod is on.
pub(crate) fn node(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref())
}
