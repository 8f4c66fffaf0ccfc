//! Who sends traffic to a Pod, or counts on it, goes by its readiness.

use anyhow::{Context, Result};
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use kube::api::ListParams;
use serde_json::json;
use tart_kubelet_tests::mac::Fault;
use tart_kubelet_tests::wait;

use super::{container, http, quick, scene};
use crate::scene::{DEADLINE, Scene};

#[tokio::test]
async fn a_service_leads_to_a_pod_only_while_its_readiness_probe_passes() -> Result<()> {
    let scene = Scene::new("service").await?;
    // No `EndpointSlice` takes the loopback addresses that simulated guests have otherwise. Nobody can reach these, so it is a
    // command that probes.
    scene.mac.set_fault(Fault::Subnet, "192.168.64")?;
    let agent = scene.agent.start()?;
    scene.node_ready(&agent).await?;
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": "web"}]},
    });
    scene.kubectl.apply(&service.to_string()).await?;
    let probe = quick(&json!({"exec": {"command": ["/bin/cat", "/private/tmp/well"]}}));
    let container = json!({
        "command": ["/bin/sh", "-c", "touch /private/tmp/well; exec sleep 1000"],
        "ports": [{"name": "web", "containerPort": 8080}], "readinessProbe": probe,
    });
    let mut pod = scene.pod("web", &container, &json!({}));
    pod["metadata"]["labels"] = json!({"app": "web"});
    scene.create(&pod).await?;
    let slices: Api<EndpointSlice> = Api::namespaced(scene.control_plane.client().await?, scene.namespace());
    let leads = async |ready: bool| {
        wait::eventually(&format!("a slice that says {ready}"), DEADLINE, async || {
            let of_service = ListParams::default().labels("kubernetes.io/service-name=web");
            let slices = slices.list(&of_service).await?.items;
            let endpoints: Vec<_> =
                slices.iter().flat_map(|slice| slice.endpoints.iter().flatten()).collect();
            let found = endpoints.iter().find(|endpoint| {
                endpoint.conditions.as_ref().is_some_and(|conditions| conditions.ready == Some(ready))
            });
            let found = found.with_context(|| format!("{endpoints:?}"))?;
            Ok(found.addresses.clone())
        })
        .await
    };
    let addresses = leads(true).await?;
    let pod = scene.pods.get("web").await?;
    assert_eq!(addresses.first(), pod.status.as_ref().and_then(|status| status.pod_ip.as_ref()));
    scene.sh("web", "rm well").await?;
    leads(false).await?;
    scene.sh("web", "touch well").await?;
    leads(true).await.map(drop)
}

#[tokio::test]
async fn controllers_count_a_pod_only_while_its_readiness_probe_passes() -> Result<()> {
    let (scene, _agent) = scene("counted", &json!({})).await?;
    let probes = json!({"readinessProbe": http("/ready")});
    let pod = scene.pod("counted", &container(&["up"], &probes), &json!({"restartPolicy": "Always"}));
    let set = json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "counted"},
        "spec": {
            "selector": {"matchLabels": {"app": "counted"}},
            "template": {"metadata": {"labels": {"app": "counted"}}, "spec": pod["spec"]},
        },
    });
    scene.kubectl.apply(&set.to_string()).await?;
    let namespace = scene.pods.namespace().context("no namespace")?;
    let sets: Api<ReplicaSet> = Api::namespaced(scene.control_plane.client().await?, namespace);
    let counted = async |count: i32| {
        let ready = |set: &ReplicaSet| set.status.as_ref().map(|status| status.ready_replicas.unwrap_or(0));
        wait::until(&sets, "counted", &format!("{count} ready"), DEADLINE, |set| ready(set) == Some(count))
            .await
    };
    counted(1).await?;
    let pods = scene.pods.list(&ListParams::default().labels("app=counted")).await?;
    let name = pods.items.first().and_then(|pod| pod.metadata.name.clone()).context("no Pod")?;
    scene.sh(&name, "echo 503 >ready").await?;
    counted(0).await?;
    scene.sh(&name, "rm ready").await?;
    counted(1).await.map(drop)
}
