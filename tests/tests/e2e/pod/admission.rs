//! Admission: the agent refuses Pods that do not fit as a kubelet does, and keeps the Pods that it has admitted.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use nix::sys::signal::Signal;
use serde_json::json;
use tart_kubelet_tests::wait;

use crate::scene::{DEADLINE, PodView, Scene};

/// Checks that a Pod was refused for want of a place, in these words.
fn ensure_out_of_pods(pod: &Pod, words: &str) -> Result<()> {
    let message = pod.message().unwrap_or_default();
    ensure!(pod.reason() == Some("OutOfpods") && message.contains(words), "{:?}: {message}", pod.reason());
    Ok(())
}

#[tokio::test]
async fn pod_that_does_not_fit_is_refused_in_the_kubelets_words() -> Result<()> {
    let scene = Scene::new("unfit").await?;
    let _agent =
        scene.start(&scene.agent.clone().flag("--host-cpu", "8").flag("--host-memory-mb", "16384")).await?;
    let requests = |name, requests| scene.pod(name).resources(json!({"requests": requests}));
    requests("first", json!({"cpu": "6", "memory": "10Gi"})).create_until("Running").await?;
    let table = [
        (
            requests("cpu", json!({"cpu": "2500m"})),
            "OutOfcpu",
            "Node didn't have enough resource: cpu, requested: 2500, used: 6000, capacity: 8000",
        ),
        (
            requests("memory", json!({"memory": "7Gi"})),
            "OutOfmemory",
            "Node didn't have enough resource: memory, requested: 7516192768, used: 10737418240, capacity: 17179869184",
        ),
        (
            requests("storage", json!({"ephemeral-storage": "1P"})),
            "OutOfephemeral-storage",
            "Node didn't have enough resource: ephemeral-storage, requested: 1000000000000000, used: 0, capacity: ",
        ),
        (
            scene.pod("elsewhere").spec(json!({"nodeSelector": {"disk": "floppy"}})),
            "NodeAffinity",
            "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
        ),
        (
            scene.pod("windows").spec(json!({"os": {"name": "windows"}})),
            "PodOSNotSupported",
            "spec.os: Kubernetes knows only linux and windows, and this Node runs macOS",
        ),
    ];
    for (pod, reason, message) in table {
        let name = pod.name().to_owned();
        let refused = pod.bound().create_until("Failed").await?;
        let found = refused.message().unwrap_or_default();
        assert_eq!(refused.reason(), Some(reason), "{found}");
        ensure!(found.starts_with(&format!("Pod was rejected: {message}")), "{found}");
        scene.described(&name, message).await?;
    }
    // Refused Pods use nothing of the Node.
    let second = requests("second", json!({"cpu": "2", "memory": "6Gi"}));
    second.bound().create_until("Running").await.map(drop)
}

#[tokio::test]
async fn two_of_many_simultaneous_pods_are_admitted() -> Result<()> {
    const CROWD: usize = 12;
    let (scene, _agent) = Scene::with_agent("crowd").await?;
    let pods = (0..CROWD).map(|number| scene.pod(format!("pod-{number}")).bound().json());
    let list = json!({"apiVersion": "v1", "kind": "List", "items": pods.collect::<Vec<_>>()});
    scene.apply(&list).await?;
    wait::eventually("two Pods that run and ten that are refused", DEADLINE, async || {
        let pods = scene.pods.list(&kube::api::ListParams::default()).await?.items;
        let count = |phase: &str| pods.iter().filter(|pod| pod.phase() == phase).count();
        ensure!(
            count("Running") == 2 && count("Failed") == CROWD - 2,
            "{:?}",
            pods.iter().map(PodView::phase).collect::<Vec<_>>()
        );
        for pod in pods.iter().filter(|pod| pod.phase() == "Failed") {
            let words = "Node didn't have enough resource: pods, requested: 1, used: 2, capacity: 2; macOS runs two VMs at a time";
            ensure_out_of_pods(pod, words)?;
        }
        Ok(())
    })
    .await?;
    let begun = std::fs::read_dir(scene.agent.state_dir().join("pods"))?.count();
    assert_eq!(begun, 2, "refused Pods have no records");
    Ok(())
}

#[tokio::test]
async fn admitted_pods_stay_after_a_restart_with_smaller_limits() -> Result<()> {
    let scene = Scene::new("mind").await?;
    let agent = scene.start(&scene.agent.clone().flag("--node-labels", "team=ios")).await?;
    // Labels that a user has just set count, too.
    scene.kubectl.run(["label", "node", &scene.node, "rack=7"]).await?;
    for name in ["one", "two"] {
        let selector = json!({"nodeSelector": {"team": "ios", "rack": "7"}});
        scene.pod(name).spec(selector).bound().create_until("Running").await?;
    }
    agent.kill9()?;
    let agent = scene.agent.clone().flag("--max-pods", "1").flag("--host-cpu", "1").start()?;
    scene
        .until_node("without the label", |node| {
            !node.metadata.labels.iter().flatten().any(|(key, _)| key == "team")
        })
        .await?;
    let three = scene.pod("three").bound().create_until("Failed").await?;
    ensure_out_of_pods(&three, "used: 2, capacity: 1;")?;
    for name in ["one", "two"] {
        assert_eq!(scene.pods.get(name).await?.phase(), "Running", "{}", agent.log()?);
    }
    Ok(())
}

#[tokio::test]
async fn pods_that_waited_for_the_agent_are_admitted_by_age() -> Result<()> {
    let scene = Scene::new("age").await?;
    let agent = scene.start(&scene.agent.clone().flag("--max-pods", "1")).await?;
    agent.kill9()?;
    scene.pod("z-older").bound().create().await?;
    let created = scene.pods.get("z-older").await?.metadata.creation_timestamp.context("no time")?.0;
    // Creation times are whole seconds.
    wait::eventually("a later second", DEADLINE, async || {
        ensure!(jiff::Timestamp::now().as_second() > created.as_second() + 1);
        Ok(())
    })
    .await?;
    scene.pod("a-younger").bound().create().await?;
    let _agent = agent.restart()?;
    scene.phase("z-older", "Running").await?;
    ensure_out_of_pods(&scene.phase("a-younger", "Failed").await?, "")
}

#[tokio::test]
async fn pod_waits_until_the_vm_before_it_has_stopped() -> Result<()> {
    let scene = Scene::new("place").await?;
    let agent = scene.start(&scene.agent.clone().flag("--max-pods", "1")).await?;
    let uid = scene.pod("old").create_until("Running").await?.metadata.uid.context("no UID")?;
    scene.signal_shim(&uid, Signal::SIGSTOP)?;
    // The Pod is gone from the API at once, so the scheduler sees a free place. Its VM still runs.
    scene.force_delete("old").await?;
    scene.pod("new").create().await?;
    scene.described("new", "macOS still counts it").await?;
    assert_eq!(scene.running_vms().await?.len(), 1);
    // The next agent knows the VM, too, and publishes the Event again.
    scene.kubectl.run(["delete", "events", "--all"]).await?;
    let _agent = agent.restart()?;
    scene.described("new", "macOS still counts it").await?;
    assert_eq!(scene.running_vms().await?.len(), 1);
    assert_eq!(scene.pods.get("new").await?.phase(), "Pending");
    scene.signal_shim(&uid, Signal::SIGCONT)?;
    let pod = scene.phase("new", "Running").await?;
    assert_eq!(scene.running_vms().await?, [pod.vm()?]);
    Ok(())
}
