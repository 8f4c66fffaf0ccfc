//! A Pod that becomes a VM, and what becomes of both.

use std::collections::HashSet;

use anyhow::{Context, Result, bail, ensure};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{WatchEvent, WatchParams};
use serde_json::json;
use tart_kubelet_tests::mac::Fault;
use tart_kubelet_tests::wait;

use crate::scene::{DEADLINE, IMAGE, Scene, state_of};

#[tokio::test]
async fn a_pod_runs_as_a_vm_and_succeeds_when_the_guest_shuts_down() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("boot").await?;
    scene.create(&scene.pod("boot", &json!({}), &json!({}))).await?;

    let pod = scene.phase("boot", "Running").await?;
    let status = pod.status.clone().context("no status")?;
    let address = status.pod_ip.context("a running Pod has an address")?;
    let all = status.pod_ips.context("a running Pod has addresses")?;
    assert_eq!(all.iter().map(|one| &one.ip).collect::<Vec<_>>(), [&address]);
    let vm = Scene::vm_of(&pod)?;
    let uid = pod.metadata.uid.clone().context("no UID")?;
    assert_eq!(vm, format!("tk-{uid}-0"));
    assert_eq!(pod.metadata.finalizers, None, "a Pod of a Mac that dies must be able to go");
    assert_eq!(scene.mac.tart(["ip", &vm]).await?.trim(), address);
    assert_eq!(status.host_ip.as_deref(), Some("127.0.0.1"));
    let container = &status.container_statuses.context("no container status")?[0];
    assert!(container.ready);
    assert!(container.image_id.contains("@sha256:"), "{}", container.image_id);
    let shown = scene.kubectl.run(["get", "pod", "boot", "--no-headers"]).await?;
    ensure!(shown.contains("1/1") && shown.contains("Running"), "{shown}");
    scene.told_as("boot", "Pulled", &format!("image `{IMAGE}` is ")).await?;
    scene.told_as("boot", "Created", &format!("Created container main: VM {vm} boots")).await?;
    scene.told_as("boot", "Started", &format!("VM {vm} runs at {address}")).await?;

    scene.shut_down(&vm).await;
    let status = scene.phase("boot", "Succeeded").await?.status.context("no status")?;
    assert_eq!(status.pod_ip, Some(address), "where it was stays known");
    let container = &status.container_statuses.context("no container status")?[0];
    let end =
        container.state.as_ref().and_then(|state| state.terminated.as_ref()).context("not terminated")?;
    assert_eq!((end.exit_code, end.reason.as_deref()), (0, Some("Completed")));
    scene.no_vms().await?;

    // The Pod stays until somebody deletes it; then nothing of it is left.
    scene.kubectl.run(["delete", "pod", "boot"]).await?;
    scene.nothing_left().await?;

    scene.create(&scene.pod("again", &json!({}), &json!({}))).await?;
    let here = format!("Container image \"{IMAGE}\" already present on machine");
    scene.told_as("again", "Pulled", &here).await
}

#[tokio::test]
async fn a_pod_says_what_it_waits_for() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("waits").await?;
    let shown = async |words: &str| {
        wait::eventually(&format!("`kubectl get pod` to say {words}"), DEADLINE, async || {
            let shown = scene.kubectl.run(["get", "pod", "waits", "--no-headers"]).await?;
            ensure!(shown.contains(words), "{shown}");
            Ok(())
        })
        .await
    };
    scene.mac.set_fault(Fault::Hang, "run")?;
    scene.create(&scene.pod("waits", &json!({"command": ["/bin/echo", "done"]}), &json!({}))).await?;
    shown("ContainerCreating").await?;
    scene.mac.clear_fault(Fault::Hang)?;
    shown("Completed").await?;
    // Nothing is left of its VM, but what it wrote stays for as long as the Pod does.
    scene.no_vms().await?;
    assert_eq!(scene.log(&scene.pods.get("waits").await?, "main", 0)?, ["done"]);
    scene.kubectl.run(["delete", "pod", "waits"]).await?;
    scene.nothing_left().await
}

#[tokio::test]
async fn every_vm_has_an_identity_and_a_size_of_its_own() -> Result<()> {
    let scene = Scene::new("sizes").await?;
    let agent = scene.agent.clone().flag("--host-cpu", "16").flag("--host-memory-mb", "32768").start()?;
    scene.node_ready(&agent).await?;
    let limits = json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "5", "memory": "6Gi"}});
    let sizes = [
        ("limits", limits, (5, 6 << 30)),
        ("requests", json!({"requests": {"cpu": "6", "memory": "5Gi"}}), (6, 5 << 30)),
        // A request that is less than the image needs is no reason to fail, nor to forget the other one.
        ("few-cores", json!({"requests": {"cpu": "1", "memory": "9Gi"}}), (4, 9 << 30)),
        ("little-memory", json!({"requests": {"cpu": "6", "memory": "64Mi"}}), (6, 8 << 30)),
        ("little", json!({"requests": {"cpu": "1", "memory": "64Mi"}}), (4, 8 << 30)),
        // Many Pods have a limit of memory, but none of cores.
        ("half", json!({"requests": {"cpu": "100m"}, "limits": {"memory": "6Gi"}}), (4, 6 << 30)),
    ];
    let mut configs = Vec::new();
    for (name, resources, (cpu, memory)) in &sizes {
        scene.create(&scene.pod(name, &json!({"resources": resources}), &json!({}))).await?;
        let vm = Scene::vm_of(&scene.phase(name, "Running").await?)?;
        let config = std::fs::read_to_string(scene.mac.tart_home().join("vms").join(vm).join("config.json"))?;
        let config: serde_json::Value = serde_json::from_str(&config)?;
        let size = (config["cpuCount"].as_u64(), config["memorySize"].as_u64());
        assert_eq!(size, (Some(*cpu), Some(*memory)), "{name}");
        configs.push(config);
        scene.kubectl.run(["delete", "pod", name]).await?;
    }
    for field in ["macAddress", "ecid"] {
        let own: HashSet<_> = configs.iter().filter_map(|config| config[field].as_str()).collect();
        assert_eq!(own.len(), configs.len(), "{field}: {own:?}");
    }
    Ok(())
}

#[tokio::test]
async fn two_pods_run_side_by_side_in_vms_of_their_own() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("pair").await?;
    for name in ["one", "two"] {
        scene.create(&scene.pod(name, &json!({}), &json!({}))).await?;
    }
    let one = scene.phase("one", "Running").await?;
    let two = scene.phase("two", "Running").await?;
    let address = |pod: &Pod| pod.status.as_ref().and_then(|s| s.pod_ip.clone());
    assert_ne!(address(&one), address(&two));
    assert_ne!(Scene::vm_of(&one)?, Scene::vm_of(&two)?);

    // A third one does not fit: the Node offers two places, as macOS does.
    scene.create(&scene.pod("three", &json!({}), &json!({}))).await?;
    scene.told("pod", "three", "Too many pods").await
}

#[tokio::test]
async fn a_guest_that_crashes_fails_its_pod() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("panic").await?;
    scene.create(&scene.pod("panic", &json!({}), &json!({}))).await?;
    scene.phase("panic", "Running").await?;
    scene.mac.set_fault(Fault::GuestPanic, "")?;
    scene.phase("panic", "Failed").await?;
    scene.told("pod", "panic", "due to error").await?;
    scene.no_vms().await
}

#[tokio::test]
async fn a_vm_that_somebody_stops_with_tart_fails_its_pod() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("plug").await?;
    let names = ["boots", "commands"];
    for (name, container) in names.into_iter().zip([json!({}), json!({"command": ["/bin/sleep", "1000"]})]) {
        scene.create(&scene.pod(name, &container, &json!({}))).await?;
    }
    for name in names {
        let vm = Scene::vm_of(&scene.phase(name, "Running").await?)?;
        scene.mac.tart(["stop", &vm]).await?;
        let pod = scene.phase(name, "Failed").await?;
        let end = state_of(&pod).and_then(|state| state.terminated).context("not terminated")?;
        let words = "somebody stopped the VM with tart";
        assert_eq!((name, end.exit_code, end.message.as_deref()), (name, 137, Some(words)));
    }
    scene.no_vms().await
}

#[tokio::test]
async fn containers_can_start_once_the_guest_has_an_address() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("sandbox").await?;
    let can_start = |pod: &Pod| {
        let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let found = conditions.filter(|one| one.type_ == "PodReadyToStartContainers");
        found.map(|one| one.status.clone()).next()
    };
    scene.mac.set_fault(Fault::Hang, "run")?;
    scene.create(&scene.pod("starts", &json!({}), &json!({}))).await?;
    wait::until(&scene.pods, "starts", "not ready to start", DEADLINE, |pod| {
        can_start(pod).as_deref() == Some("False")
    })
    .await?;
    scene.mac.clear_fault(Fault::Hang)?;
    let pod = scene.phase("starts", "Running").await?;
    assert_eq!(can_start(&pod).as_deref(), Some("True"));
    Ok(())
}

#[tokio::test]
async fn a_pod_that_is_active_for_too_long_fails() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("late").await?;
    scene.create(&scene.pod("late", &json!({}), &json!({"activeDeadlineSeconds": 3600}))).await?;
    scene.phase("late", "Running").await?;
    let shorter = r#"{"spec": {"activeDeadlineSeconds": 1}}"#;
    scene.kubectl.run(["patch", "pod", "late", "--patch", shorter]).await?;
    let pod = scene.phase("late", "Failed").await?;
    let reason = pod.status.and_then(|status| status.reason);
    assert_eq!(reason.as_deref(), Some("DeadlineExceeded"));
    let words = "Pod was active on the node longer than the specified deadline";
    scene.told_as("late", "DeadlineExceeded", words).await?;
    scene.no_vms().await?;

    // One that still waits for its image waits for nothing any more.
    let missing = json!({"image": "registry.test/macos/none:1"});
    scene.create(&scene.pod("stuck", &missing, &json!({"activeDeadlineSeconds": 3600}))).await?;
    scene.told("pod", "stuck", "ErrImagePull").await?;
    scene.kubectl.run(["patch", "pod", "stuck", "--patch", shorter]).await?;
    let pod = scene.phase("stuck", "Failed").await?;
    let state = state_of(&pod).unwrap_or_default();
    ensure!(state.waiting.is_none() && state.terminated.is_some(), "{state:?}");
    Ok(())
}

/// A Pod in the words of `kubectl get pod`, and whether it is ready.
fn shown(pod: &Pod) -> String {
    let status = pod.status.clone().unwrap_or_default();
    let state = state_of(pod).unwrap_or_default();
    let reason = state.waiting.and_then(|one| one.reason);
    let reason = reason.or_else(|| state.terminated.and_then(|one| one.reason));
    let reason = reason.or_else(|| state.running.map(|_| "started".to_owned()));
    let ready = status.conditions.into_iter().flatten().find(|one| one.type_ == "Ready");
    let words = [status.phase, reason, ready.map(|one| one.status)];
    words.map(|word| word.unwrap_or_else(|| "-".to_owned())).join(" ")
}

/// Follows a Pod from before it is created until it is gone, and tells what could be seen of it, in turn.
async fn seen(pods: Api<Pod>, name: &str) -> Result<Vec<String>> {
    let only = WatchParams::default().fields(&format!("metadata.name={name}"));
    let mut events = pods.watch(&only, "0").await?.boxed();
    let mut seen = Vec::new();
    while let Some(event) = events.try_next().await? {
        match event {
            WatchEvent::Added(pod) | WatchEvent::Modified(pod) => seen.push(shown(&pod)),
            WatchEvent::Deleted(_) => break,
            WatchEvent::Bookmark(_) => {}
            WatchEvent::Error(error) => bail!("{error}"),
        }
    }
    seen.dedup();
    Ok(seen)
}

/// What was seen is what was to be expected, in that order, up to the end. On a busy machine a state may come and go unseen.
fn goes_forward(seen: &[String], expected: &[&str]) -> Result<()> {
    let mut to_come = expected.iter();
    let in_order = seen.iter().all(|state| to_come.any(|next| next == state));
    ensure!(in_order && seen.last().map(String::as_str) == expected.last().copied(), "{seen:#?}");
    Ok(())
}

#[tokio::test]
async fn whoever_watches_a_pod_sees_it_go_forward_only() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("watched").await?;
    let story = tokio::spawn(seen(scene.pods.clone(), "ends"));
    let retold = tokio::spawn(seen(scene.pods.clone(), "restarts"));
    scene.create(&scene.pod("ends", &json!({"command": ["/bin/sleep", "1"]}), &json!({}))).await?;
    scene.phase("ends", "Succeeded").await?;
    scene.kubectl.run(["delete", "pod", "ends"]).await?;
    let started = ["Pending - -", "Pending ContainerCreating False", "Running started True"];
    let expected: Vec<_> = started.into_iter().chain(["Succeeded Completed False"]).collect();
    goes_forward(&story.await??, &expected)?;

    let fails = json!({"command": ["/bin/sh", "-c", "sleep 1; exit 3"]});
    scene.create(&scene.pod("restarts", &fails, &json!({"restartPolicy": "OnFailure"}))).await?;
    wait::until(&scene.pods, "restarts", "backing off", DEADLINE, |pod| {
        shown(pod).contains("CrashLoopBackOff")
    })
    .await?;
    scene.kubectl.run(["delete", "pod", "restarts"]).await?;
    let again = ["Running Error False", "Running ContainerCreating False", "Running started True"];
    let end = ["Running CrashLoopBackOff False", "Failed Error False"];
    let expected: Vec<_> = started.into_iter().chain(again).chain(end).collect();
    goes_forward(&retold.await??, &expected)?;
    Ok(())
}

#[tokio::test]
async fn a_pod_that_does_not_fit_a_vm_is_refused_in_words() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("refuse").await?;
    let two = json!({"containers": [{"name": "a", "image": IMAGE}, {"name": "b", "image": IMAGE}]});
    scene.create(&scene.pod("two", &json!({}), &two)).await?;
    scene.phase("two", "Failed").await?;
    scene.told("pod", "two", "spec.containers: a VM is one container").await?;
    scene.no_vms().await
}
