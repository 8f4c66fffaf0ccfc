//! A Pod becomes a VM, and its status follows the VM.

use std::collections::HashSet;

use anyhow::{Context, Result, bail, ensure};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{WatchEvent, WatchParams};
use serde_json::json;
use tart_kubelet_tests::mac::Fault;
use tart_kubelet_tests::wait;

use crate::scene::{DEADLINE, IMAGE, PodView as _, SLEEP, Scene};

#[tokio::test]
async fn pod_runs_as_a_vm_and_succeeds_when_the_guest_shuts_down() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("boot").await?;
    let pod = scene.pod("boot").create_until("Running").await?;
    let status = pod.status.clone().context("no status")?;
    let address = status.pod_ip.context("a running Pod has an address")?;
    let all = status.pod_ips.context("a running Pod has addresses")?;
    assert_eq!(all.iter().map(|one| &one.ip).collect::<Vec<_>>(), [&address]);
    let vm = pod.vm()?;
    assert_eq!(vm, format!("tk-{}-0", pod.uid_of()?));
    assert_eq!(pod.metadata.finalizers, None, "the API server can delete the Pod of a dead Mac");
    assert_eq!(scene.mac.tart(["ip", &vm]).await?.trim(), address);
    assert_eq!(status.host_ip.as_deref(), Some("127.0.0.1"));
    assert!(pod.main().is_ready());
    ensure!(pod.main().image_id().is_some_and(|id| id.contains("@sha256:")), "{:?}", pod.main());
    let shown = scene.kubectl.run(["get", "pod", "boot", "--no-headers"]).await?;
    ensure!(shown.contains("1/1") && shown.contains("Running"), "{shown}");
    scene.event("boot", "Pulled", &format!("image `{IMAGE}` is ")).await?;
    scene.event("boot", "Created", &format!("Created container main: VM {vm} boots")).await?;
    scene.event("boot", "Started", &format!("VM {vm} runs at {address}")).await?;

    scene.shut_down(&vm).await;
    let pod = scene.phase("boot", "Succeeded").await?;
    assert_eq!(pod.ip(), Some(address.as_str()), "its last address stays in the status");
    assert_eq!((pod.main().exit_code(), pod.main().reason()), (Some(0), Some("Completed")));
    scene.no_vms().await?;

    // The Pod stays until a user deletes it; then nothing of it is left.
    scene.delete("boot").await?;
    scene.nothing_left().await?;

    scene.pod("again").create().await?;
    let here = format!("Container image \"{IMAGE}\" already present on machine");
    scene.event("again", "Pulled", &here).await
}

#[tokio::test]
async fn kubectl_shows_what_a_pod_waits_for() -> Result<()> {
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
    scene.pod("waits").command(["/bin/echo", "done"]).create().await?;
    shown("ContainerCreating").await?;
    scene.mac.clear_fault(Fault::Hang)?;
    shown("Completed").await?;
    // Nothing is left of its VM, but what it wrote stays for as long as the Pod does.
    scene.no_vms().await?;
    assert_eq!(scene.log(&scene.pods.get("waits").await?, "main", 0)?, ["done"]);
    scene.delete("waits").await?;
    scene.nothing_left().await
}

#[tokio::test]
async fn every_vm_has_its_own_identity_and_size() -> Result<()> {
    let scene = Scene::new("sizes").await?;
    let _agent =
        scene.start(&scene.agent.clone().flag("--host-cpu", "16").flag("--host-memory-mb", "32768")).await?;
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
        let vm = scene.pod(name).resources(resources.clone()).create_until("Running").await?.vm()?;
        let config = std::fs::read_to_string(scene.vm_dir(&vm).join("config.json"))?;
        let config: serde_json::Value = serde_json::from_str(&config)?;
        let size = (config["cpuCount"].as_u64(), config["memorySize"].as_u64());
        assert_eq!(size, (Some(*cpu), Some(*memory)), "{name}");
        configs.push(config);
        scene.delete(name).await?;
    }
    for field in ["macAddress", "ecid"] {
        let own: HashSet<_> = configs.iter().filter_map(|config| config[field].as_str()).collect();
        assert_eq!(own.len(), configs.len(), "{field}: {own:?}");
    }
    Ok(())
}

#[tokio::test]
async fn two_pods_run_in_two_vms() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("pair").await?;
    let pods = scene.run_pods(&["one", "two"]).await?;
    assert_ne!(pods[0].ip(), pods[1].ip());
    assert_ne!(pods[0].vm()?, pods[1].vm()?);

    // A third Pod does not fit: macOS runs two VMs, so the Node offers two places.
    scene.pod("three").create().await?;
    scene.described("three", "Too many pods").await
}

#[tokio::test]
async fn guest_crash_fails_the_pod() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("panic").await?;
    scene.pod("panic").create_until("Running").await?;
    scene.mac.set_fault(Fault::GuestPanic, "")?;
    scene.phase("panic", "Failed").await?;
    scene.described("panic", "due to error").await?;
    scene.no_vms().await
}

#[tokio::test]
async fn vm_that_a_user_stops_with_tart_fails_its_pod() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("plug").await?;
    scene.pod("boots").create().await?;
    scene.pod("commands").command(SLEEP).create().await?;
    for name in ["boots", "commands"] {
        let vm = scene.phase(name, "Running").await?.vm()?;
        scene.mac.tart(["stop", &vm]).await?;
        let pod = scene.phase(name, "Failed").await?;
        let end = pod.main().end()?;
        let words = "a user stopped the VM with tart";
        assert_eq!((name, end.exit_code, end.message.as_deref()), (name, 137, Some(words)));
    }
    scene.no_vms().await
}

#[tokio::test]
async fn pod_ready_to_start_containers_when_the_guest_has_an_address() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("sandbox").await?;
    let can_start = |pod: &Pod| pod.condition("PodReadyToStartContainers").status;
    scene.mac.set_fault(Fault::Hang, "run")?;
    scene.pod("starts").create().await?;
    scene.until("starts", "not ready to start", |pod| can_start(pod) == "False").await?;
    scene.mac.clear_fault(Fault::Hang)?;
    let pod = scene.phase("starts", "Running").await?;
    assert_eq!(can_start(&pod), "True");
    Ok(())
}

#[tokio::test]
async fn pod_fails_after_its_active_deadline() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("late").await?;
    scene.pod("late").active_deadline(3600).create_until("Running").await?;
    let shorter = json!({"spec": {"activeDeadlineSeconds": 1}});
    scene.patch("late", &shorter).await?;
    let pod = scene.phase("late", "Failed").await?;
    assert_eq!(pod.reason(), Some("DeadlineExceeded"));
    let words = "Pod was active on the node longer than the specified deadline";
    scene.event("late", "DeadlineExceeded", words).await?;
    scene.no_vms().await?;

    // A Pod that waits for its image fails, too.
    scene.pod("stuck").image("registry.test/macos/none:1").active_deadline(3600).create().await?;
    scene.described("stuck", "ErrImagePull").await?;
    scene.patch("stuck", &shorter).await?;
    let pod = scene.phase("stuck", "Failed").await?;
    ensure!(!pod.main().is_waiting() && pod.main().has_ended(), "{:?}", pod.main());
    Ok(())
}

/// A Pod in the words of `kubectl get pod`, and whether it is ready.
fn shown(pod: &Pod) -> String {
    let main = pod.main();
    let reason =
        main.waiting_reason().or_else(|| main.reason()).or_else(|| main.is_running().then_some("started"));
    let ready = pod.condition("Ready").status;
    let words = [pod.phase(), reason.unwrap_or_default(), &ready];
    words.map(|word| if word.is_empty() { "-" } else { word }).join(" ")
}

/// Watches a Pod from before its creation until it is gone, and returns the states that a watcher sees, in order.
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

/// Checks that the states came in the expected order, to the last one. On a busy machine the watch may miss a state.
fn goes_forward(seen: &[String], expected: &[&str]) -> Result<()> {
    let mut to_come = expected.iter();
    let in_order = seen.iter().all(|state| to_come.any(|next| next == state));
    ensure!(in_order && seen.last().map(String::as_str) == expected.last().copied(), "{seen:#?}");
    Ok(())
}

#[tokio::test]
async fn pod_status_never_goes_backwards() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("watched").await?;
    let story = tokio::spawn(seen(scene.pods.clone(), "ends"));
    let retold = tokio::spawn(seen(scene.pods.clone(), "restarts"));
    scene.pod("ends").command(["/bin/sleep", "1"]).create_until("Succeeded").await?;
    scene.delete("ends").await?;
    let started = ["Pending - -", "Pending ContainerCreating False", "Running started True"];
    let expected: Vec<_> = started.into_iter().chain(["Succeeded Completed False"]).collect();
    goes_forward(&story.await??, &expected)?;

    scene.pod("restarts").sh("sleep 1; exit 3").restart_policy("OnFailure").create().await?;
    scene.until("restarts", "backing off", |pod| shown(pod).contains("CrashLoopBackOff")).await?;
    scene.delete("restarts").await?;
    let again = ["Running Error False", "Running ContainerCreating False", "Running started True"];
    let end = ["Running CrashLoopBackOff False", "Failed Error False"];
    let expected: Vec<_> = started.into_iter().chain(again).chain(end).collect();
    goes_forward(&retold.await??, &expected)?;
    Ok(())
}

#[tokio::test]
async fn pod_with_two_containers_is_refused() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("refuse").await?;
    scene
        .pod("two")
        .spec(json!({"containers": [{"name": "a", "image": IMAGE}, {"name": "b", "image": IMAGE}]}))
        .create_until("Failed")
        .await?;
    scene.described("two", "spec.containers: a VM is one container").await?;
    scene.no_vms().await
}
