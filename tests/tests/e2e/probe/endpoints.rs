//! Services and controllers that depend on a Pod's readiness.

use anyhow::{Context, Result};
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::ListParams;
use serde_json::json;
use tart_kubelet_tests::mac::Fault;
use tart_kubelet_tests::wait;

use super::{http, quick, scene, server};
use crate::scene::{DEADLINE, PodView as _, Scene};

#[tokio::test]
async fn endpoint_slice_is_ready_while_the_readiness_probe_passes() -> Result<()> {
    let scene = Scene::new("service").await?;
    // An `EndpointSlice` takes no loopback addresses, which simulated guests have otherwise. The agent cannot reach these addresses, so
    // the probe is a command.
    scene.mac.set_fault(Fault::Subnet, "192.168.64")?;
    let _agent = scene.start(&scene.agent).await?;
    let spec = json!({"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": "web"}]});
    scene.service("web", &spec).await?;
    let probe = quick(&json!({"exec": {"command": ["/bin/cat", "/private/tmp/well"]}}));
    scene
        .pod("web")
        .label("app", "web")
        .sh("touch /private/tmp/well; exec sleep 1000")
        .container(json!({"ports": [{"name": "web", "containerPort": 8080}]}))
        .readiness(probe)
        .create()
        .await?;
    let slices = scene.api::<EndpointSlice>().await?;
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
    assert_eq!(addresses.first().map(String::as_str), pod.ip());
    scene.sh("web", "rm well").await?;
    leads(false).await?;
    scene.sh("web", "touch well").await?;
    leads(true).await.map(drop)
}

#[tokio::test]
async fn replica_set_counts_a_pod_while_its_readiness_probe_passes() -> Result<()> {
    let (scene, _agent) = scene("counted").await?;
    let pod = server(&scene, "counted", &["up"]).readiness(http("/ready")).restart_policy("Always").json();
    let set = json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "counted"},
        "spec": {
            "selector": {"matchLabels": {"app": "counted"}},
            "template": {"metadata": {"labels": {"app": "counted"}}, "spec": pod["spec"]},
        },
    });
    scene.apply(&set).await?;
    let sets = scene.api::<ReplicaSet>().await?;
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
