//! Pods that do not fit: the Node refuses them as a kubelet does, and never changes its mind about those that it has taken.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tart_kubelet_tests::wait;

use crate::scene::{DEADLINE, Scene, phase_of};

/// A Pod that goes past the scheduler.
fn bound(scene: &Scene, name: &str, container: &Value, spec: &Value) -> Value {
    let mut pod = scene.pod(name, container, spec);
    pod["spec"]["nodeName"] = json!(scene.node);
    pod
}

fn verdict(pod: &Pod) -> (String, String) {
    let status = pod.status.clone().unwrap_or_default();
    (status.reason.unwrap_or_default(), status.message.unwrap_or_default())
}

fn requests(requests: &Value) -> Value {
    json!({"resources": {"requests": requests}})
}

#[tokio::test]
async fn what_does_not_fit_is_refused_in_the_kubelets_words() -> Result<()> {
    let scene = Scene::new("unfit").await?;
    let agent = scene.agent.clone().flag("--host-cpu", "8").flag("--host-memory-mb", "16384").start()?;
    scene.node_ready(&agent).await?;
    let first = requests(&json!({"cpu": "6", "memory": "10Gi"}));
    scene.create(&scene.pod("first", &first, &json!({}))).await?;
    scene.phase("first", "Running").await?;
    let table = [
        (
            "cpu",
            requests(&json!({"cpu": "2500m"})),
            json!({}),
            "OutOfcpu",
            "Node didn't have enough resource: cpu, requested: 2500, used: 6000, capacity: 8000",
        ),
        (
            "memory",
            requests(&json!({"memory": "7Gi"})),
            json!({}),
            "OutOfmemory",
            "Node didn't have enough resource: memory, requested: 7516192768, used: 10737418240, capacity: 17179869184",
        ),
        (
            "storage",
            requests(&json!({"ephemeral-storage": "1P"})),
            json!({}),
            "OutOfephemeral-storage",
            "Node didn't have enough resource: ephemeral-storage, requested: 1000000000000000, used: 0, capacity: ",
        ),
        (
            "elsewhere",
            json!({}),
            json!({"nodeSelector": {"disk": "floppy"}}),
            "NodeAffinity",
            "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
        ),
        (
            "windows",
            json!({}),
            json!({"os": {"name": "windows"}}),
            "PodOSNotSupported",
            "spec.os: Kubernetes knows only linux and windows, and this Node runs macOS",
        ),
    ];
    for (name, container, spec, reason, message) in table {
        scene.create(&bound(&scene, name, &container, &spec)).await?;
        let (told, why) = verdict(&scene.phase(name, "Failed").await?);
        assert_eq!(told, reason, "{why}");
        ensure!(why.starts_with(&format!("Pod was rejected: {message}")), "{why}");
        scene.told("pod", name, message).await?;
    }
    // Those that were refused take nothing away from those that fit.
    let second = requests(&json!({"cpu": "2", "memory": "6Gi"}));
    scene.create(&bound(&scene, "second", &second, &json!({}))).await?;
    scene.phase("second", "Running").await.map(drop)
}

#[tokio::test]
async fn of_a_crowd_that_comes_at_once_two_are_taken() -> Result<()> {
    const CROWD: usize = 12;
    let (scene, _agent) = Scene::with_agent("crowd").await?;
    let pods = (0..CROWD).map(|number| bound(&scene, &format!("pod-{number}"), &json!({}), &json!({})));
    let list = json!({"apiVersion": "v1", "kind": "List", "items": pods.collect::<Vec<_>>()});
    scene.create(&list).await?;
    wait::eventually("two that run and a rest that does not", DEADLINE, async || {
        let pods = scene.pods.list(&kube::api::ListParams::default()).await?.items;
        let count = |phase: &str| pods.iter().filter(|pod| phase_of(pod) == phase).count();
        ensure!(
            count("Running") == 2 && count("Failed") == CROWD - 2,
            "{:?}",
            pods.iter().map(phase_of).collect::<Vec<_>>()
        );
        for pod in pods.iter().filter(|pod| phase_of(pod) == "Failed") {
            let (reason, message) = verdict(pod);
            let words = "Node didn't have enough resource: pods, requested: 1, used: 2, capacity: 2; macOS runs two VMs at a time";
            ensure!(reason == "OutOfpods" && message.contains(words), "{reason}: {message}");
        }
        Ok(())
    })
    .await?;
    let begun = std::fs::read_dir(scene.agent.state_dir().join("pods"))?.count();
    assert_eq!(begun, 2, "nothing was begun for those that were refused");
    Ok(())
}

#[tokio::test]
async fn who_was_taken_stays_whatever_the_next_agent_is_told() -> Result<()> {
    let scene = Scene::new("mind").await?;
    let agent = scene.agent.clone().flag("--node-labels", "team=ios").start()?;
    scene.node_ready(&agent).await?;
    // Labels of others count too, also those that came a moment ago.
    scene.kubectl.run(["label", "node", &scene.node, "rack=7"]).await?;
    for name in ["one", "two"] {
        let selector = json!({"nodeSelector": {"team": "ios", "rack": "7"}});
        scene.create(&bound(&scene, name, &json!({}), &selector)).await?;
        scene.phase(name, "Running").await?;
    }
    agent.kill9()?;
    let agent = scene.agent.clone().flag("--max-pods", "1").flag("--host-cpu", "1").start()?;
    wait::until(&scene.nodes, &scene.node, "without the label", DEADLINE, |node| {
        !node.metadata.labels.iter().flatten().any(|(key, _)| key == "team")
    })
    .await?;
    scene.create(&bound(&scene, "three", &json!({}), &json!({}))).await?;
    let (reason, message) = verdict(&scene.phase("three", "Failed").await?);
    ensure!(reason == "OutOfpods" && message.contains("used: 2, capacity: 1;"), "{reason}: {message}");
    for name in ["one", "two"] {
        assert_eq!(phase_of(&scene.pods.get(name).await?), "Running", "{}", agent.log()?);
    }
    Ok(())
}

#[tokio::test]
async fn those_who_waited_for_the_agent_come_in_by_age() -> Result<()> {
    let scene = Scene::new("age").await?;
    let agent = scene.agent.clone().flag("--max-pods", "1").start()?;
    scene.node_ready(&agent).await?;
    agent.kill9()?;
    scene.create(&bound(&scene, "z-older", &json!({}), &json!({}))).await?;
    let created = scene.pods.get("z-older").await?.metadata.creation_timestamp.context("no time")?.0;
    // Times of creation are whole seconds.
    wait::eventually("a later second", DEADLINE, async || {
        ensure!(jiff::Timestamp::now().as_second() > created.as_second() + 1);
        Ok(())
    })
    .await?;
    scene.create(&bound(&scene, "a-younger", &json!({}), &json!({}))).await?;
    let _agent = agent.restart()?;
    scene.phase("z-older", "Running").await?;
    let (reason, _) = verdict(&scene.phase("a-younger", "Failed").await?);
    assert_eq!(reason, "OutOfpods");
    Ok(())
}

/// Sends a signal to the shim of a Pod's first VM.
fn signal_shim(scene: &Scene, uid: &str, signal: Signal) -> Result<()> {
    let path = scene.agent.state_dir().join("pods").join(uid).join("0/shim.pid");
    let pid: i32 = std::fs::read_to_string(&path)?.trim().parse()?;
    kill(Pid::from_raw(pid), signal).context("cannot reach the shim")
}

#[tokio::test]
async fn a_pod_waits_for_the_place_of_a_vm_that_is_still_being_stopped() -> Result<()> {
    let scene = Scene::new("place").await?;
    let agent = scene.agent.clone().flag("--max-pods", "1").start()?;
    scene.node_ready(&agent).await?;
    scene.create(&scene.pod("old", &json!({}), &json!({}))).await?;
    let uid = scene.phase("old", "Running").await?.metadata.uid.context("no UID")?;
    signal_shim(&scene, &uid, Signal::SIGSTOP)?;
    // Gone from the API at once, so that the scheduler sees a free place; its VM is not gone at all.
    scene.kubectl.run(["delete", "pod", "old", "--grace-period=0", "--force"]).await?;
    scene.create(&scene.pod("new", &json!({}), &json!({}))).await?;
    scene.told("pod", "new", "macOS still counts it").await?;
    assert_eq!(scene.running_vms().await?.len(), 1);
    // The next agent knows of the VM as well. It says again what it waits for.
    scene.kubectl.run(["delete", "events", "--all"]).await?;
    let _agent = agent.restart()?;
    scene.told("pod", "new", "macOS still counts it").await?;
    assert_eq!(scene.running_vms().await?.len(), 1);
    assert_eq!(phase_of(&scene.pods.get("new").await?), "Pending");
    signal_shim(&scene, &uid, Signal::SIGCONT)?;
    let pod = scene.phase("new", "Running").await?;
    assert_eq!(scene.running_vms().await?, [Scene::vm_of(&pod)?]);
    Ok(())
}
