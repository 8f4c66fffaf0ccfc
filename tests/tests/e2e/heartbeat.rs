//! The heartbeat: nothing in the agent, however stuck, delays it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, ResourceExt};
use nix::sys::signal::Signal;
use serde_json::json;
use tart_kubelet_tests::agent::Agent;
use tart_kubelet_tests::control_plane::ControlPlane;
use tart_kubelet_tests::mac::{Fault, Mac};
use tart_kubelet_tests::sandbox::Sandbox;
use tart_kubelet_tests::wait;

use crate::scene::{DEADLINE, IMAGE, Scene, condition};

/// For how long the control plane trusts one renewal.
const TRUST: Duration = Duration::from_secs(40);

/// Watches some renewals of a Node's Lease: each must come while the one before is still trusted, by the agent's own clock.
async fn beats(control_plane: &ControlPlane, node: &str, count: u32) -> Result<()> {
    let leases: Api<Lease> = Api::namespaced(control_plane.client().await?, "kube-node-lease");
    let renewed =
        |lease: &Lease| lease.spec.as_ref().and_then(|spec| spec.renew_time.as_ref()).map(|time| time.0);
    let mut before: Option<Timestamp> = None;
    for _ in 0..=count {
        let lease = wait::until(&leases, node, "renewed", DEADLINE, |lease| renewed(lease) > before).await?;
        let now = renewed(&lease);
        if let Some((before, now)) = before.zip(now) {
            let gap = Duration::try_from(now.duration_since(before))?;
            ensure!(gap < TRUST, "the Lease was not renewed for {gap:?}");
        }
        before = now;
    }
    Ok(())
}

#[tokio::test]
async fn a_hanging_tart_does_not_delay_it() -> Result<()> {
    let (scene, agent) = Scene::with_agent("hang").await?;
    scene.mac.set_fault(Fault::Hang, "*")?;
    scene.create(&scene.pod("stuck", &json!({}), &json!({}))).await?;
    beats(scene.control_plane, &scene.node, 3).await?;
    // It also begins without tart: an agent that is restarted now renews the Lease all the same.
    let _agent = agent.restart()?;
    beats(scene.control_plane, &scene.node, 2).await?;
    let node = scene.nodes.get(&scene.node).await?;
    ensure!(condition(&node, "Ready") != "Unknown");
    Ok(())
}

#[tokio::test]
async fn an_api_server_that_answers_slowly_does_not_stop_it() -> Result<()> {
    let (scene, proxy, agent) = Scene::behind_proxy("slow").await?;
    proxy.delay(Duration::from_secs(2));
    scene.create(&scene.pod("slow", &json!({}), &json!({}))).await?;
    beats(scene.control_plane, &scene.node, 3).await?;
    scene.phase("slow", "Running").await?;
    ensure!(condition(&scene.nodes.get(&scene.node).await?, "Ready") == "True", "{}", agent.log()?);
    Ok(())
}

#[tokio::test]
async fn a_connection_that_dies_in_silence_is_replaced() -> Result<()> {
    let (scene, proxy, agent) = Scene::behind_proxy("silence").await?;
    proxy.forget();
    beats(scene.control_plane, &scene.node, 2).await?;
    // The one that Pods come by, too.
    scene.create(&scene.pod("after", &json!({"command": ["/usr/bin/true"]}), &json!({}))).await?;
    scene.phase("after", "Succeeded").await.with_context(|| agent.log().unwrap_or_default())?;
    Ok(())
}

#[tokio::test]
async fn sigterm_ends_an_agent_whose_tart_and_api_server_hang() -> Result<()> {
    let (scene, proxy, agent) = Scene::behind_proxy("dead-end").await?;
    scene.mac.set_fault(Fault::Hang, "*")?;
    scene.create(&scene.pod("stuck", &json!({}), &json!({}))).await?;
    wait::eventually("a Pod that waits for tart", DEADLINE, async || {
        ensure!(agent.metric("tart_kubelet_pods_waiting").await? > 0.0);
        Ok(())
    })
    .await?;
    proxy.block();
    agent.kill(Signal::SIGTERM)?;
    // What launchd is told to give it.
    let status = agent.wait_for_exit(Duration::from_secs(20)).await?;
    ensure!(status.success(), "{status}: {}", agent.log()?);
    Ok(())
}

#[tokio::test]
async fn a_node_at_rest_writes_its_lease_and_nothing_else() -> Result<()> {
    let (scene, agent) = Scene::with_agent("rest").await?;
    scene.create(&scene.pod("rest", &json!({"command": ["/bin/sleep", "3600"]}), &json!({}))).await?;
    scene.phase("rest", "Running").await?;
    // The control plane has its own first things to do with a new Node, and we answer to some.
    beats(scene.control_plane, &scene.node, 1).await?;
    let spoken = |node: &Node| {
        let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
        conditions.map(|one| one.last_heartbeat_time.clone().map(|time| time.0)).collect::<Vec<_>>()
    };
    let before = scene.nodes.get(&scene.node).await?;
    let pod_before = scene.pods.get("rest").await?;
    let posts = "rest_client_requests_total{code=\"201\",method=\"POST\"}";
    let posted = agent.metric(posts).await?;
    beats(scene.control_plane, &scene.node, 3).await?;
    let after = scene.nodes.get(&scene.node).await?;
    assert_eq!(spoken(&before), spoken(&after), "the status was written though nothing had changed");
    // The control plane may have more to do with it, in its own name; it may even take over a field of ours.
    let ours = |node: &Node| {
        let all = node
            .managed_fields()
            .iter()
            .filter(|one| !one.manager.as_deref().unwrap_or_default().starts_with("kube-controller-manager"));
        all.map(|one| one.time.clone()).collect::<Vec<_>>()
    };
    assert_eq!(ours(&before), ours(&after), "the Node was written");
    ensure!((agent.metric(posts).await? - posted).abs() < f64::EPSILON, "something was created");
    let pod = scene.pods.get("rest").await?;
    assert_eq!(pod.resource_version(), pod_before.resource_version(), "the Pod was written");
    Ok(())
}

/// A program that starts another one with a file system of its own at `path`, which is small and goes with it.
#[cfg(target_os = "linux")]
fn small_volume_at(path: &std::path::Path) -> Result<std::path::PathBuf> {
    let program = path.with_file_name("with-small-volume");
    let mount = r#"mount -t tmpfs -o size=4m none "$0" && exec "$@""#;
    let script = format!(
        "#!/bin/sh\nexec unshare --map-root-user --mount sh -c '{mount}' '{}' \"$@\"\n",
        path.display()
    );
    tart_kubelet_tests::programs::write(&program, &script)?;
    Ok(program)
}

/// Only Linux lets a test give a process a volume of its own.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_full_disk_does_not_delay_it() -> Result<()> {
    use std::io::{ErrorKind, Write};

    let scene = Scene::new("full").await?;
    let state = scene.agent.state_dir();
    std::fs::create_dir_all(&state)?;
    let mut probe = std::process::Command::new("unshare");
    probe.args(["--map-root-user", "--mount", "mount", "-t", "tmpfs", "none"]).arg(&state);
    if !probe.status().is_ok_and(|status| status.success()) {
        return tart_kubelet_tests::skip::say("this machine lets nobody mount a volume of his own");
    }
    let agent = scene.agent.clone().started_by(&small_volume_at(&state)?);
    let agent = agent.flag("--eviction-hard", "nodefs.available<10%");
    let agent = agent.flag("--eviction-pressure-transition-period", "1s").start()?;
    scene.node_ready(&agent).await?;

    // The same directory, as the agent sees it.
    let state = format!("/proc/{}/root{}", agent.process().pid(), state.display());
    let ballast = std::path::Path::new(&state).join("ballast");
    let mut file = std::fs::File::create(&ballast)?;
    let full = loop {
        if let Err(error) = file.write_all(&[0; 4096]) {
            break error;
        }
    };
    ensure!(full.kind() == ErrorKind::StorageFull, "{full}");
    let under = |status: &'static str| move |node: &Node| condition(node, "DiskPressure") == status;
    wait::until(&scene.nodes, &scene.node, "short of space", DEADLINE, under("True")).await?;
    beats(scene.control_plane, &scene.node, 3).await?;
    ensure!(condition(&scene.nodes.get(&scene.node).await?, "Ready") == "True", "{}", agent.log()?);

    drop(file);
    std::fs::remove_file(&ballast)?;
    wait::until(&scene.nodes, &scene.node, "well again", DEADLINE, under("False")).await?;
    scene.create(&scene.pod("after", &json!({"command": ["/usr/bin/true"]}), &json!({}))).await?;
    scene.phase("after", "Succeeded").await.map(drop)
}

/// A control plane of one's own, which loses patience soon, and one Node.
async fn impatient() -> Result<(ControlPlane, Mac, Agent, Api<Node>)> {
    let sandbox = Sandbox::new()?;
    let builder = ControlPlane::builder().node_monitor_grace_period(Duration::from_secs(20));
    let control_plane = builder.start(&sandbox).await?;
    let mac = Mac::new(&sandbox)?;
    let agent =
        Agent::new(&mac, "mac", &control_plane.node_kubeconfig("mac")?)?.flag("--node-ip", "127.0.0.1");
    let nodes = Api::all(control_plane.client().await?);
    Ok((control_plane, mac, agent, nodes))
}

#[tokio::test]
async fn a_node_that_was_given_up_is_back_with_the_next_beat() -> Result<()> {
    let (_control_plane, _mac, agent, nodes) = impatient().await?;
    let agent = agent.start()?;
    let ready = |status: &'static str| move |node: &Node| condition(node, "Ready") == status;
    wait::until(&nodes, "mac", "ready", DEADLINE, ready("True")).await?;
    agent.kill(Signal::SIGSTOP)?;
    wait::until(&nodes, "mac", "given up", DEADLINE, ready("Unknown")).await?;
    agent.kill(Signal::SIGCONT)?;
    let node = wait::until(&nodes, "mac", "back", DEADLINE, ready("True")).await?;
    for kind in ["MemoryPressure", "DiskPressure", "PIDPressure"] {
        ensure!(condition(&node, kind) == "False", "{kind} is {}", condition(&node, kind));
    }
    Ok(())
}

#[tokio::test]
async fn the_pods_of_a_node_that_was_given_up_are_ready_again_with_it() -> Result<()> {
    let (control_plane, mac, agent, nodes) = impatient().await?;
    mac.add_image(IMAGE, &json!({}))?;
    let agent = agent.start()?;
    wait::until(&nodes, "mac", "ready", DEADLINE, |node| condition(node, "Ready") == "True").await?;
    let namespace = control_plane.namespace("given-up").await?;
    let pods: Api<Pod> = Api::namespaced(control_plane.client().await?, &namespace);
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "web"},
        "spec": {"nodeName": "mac", "containers": [{"name": "main", "image": IMAGE}]},
    }))?;
    pods.create(&PostParams::default(), &pod).await?;
    let ready = async |status: &'static str| {
        let what = format!("ready: {status}");
        let found = wait::until(&pods, "web", &what, DEADLINE, |pod| {
            let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
            conditions.any(|one| one.type_ == "Ready" && one.status == status)
        });
        found.await.with_context(|| agent.log().unwrap_or_default())
    };
    let vm = Scene::vm_of(&ready("True").await?)?;
    agent.kill(Signal::SIGSTOP)?;
    // It is the control plane that says so: nobody can be asked.
    ready("False").await?;
    agent.kill(Signal::SIGCONT)?;
    assert_eq!(Scene::vm_of(&ready("True").await?)?, vm);
    Ok(())
}

#[tokio::test]
async fn a_thousand_pods_do_not_delay_it() -> Result<()> {
    const PODS: usize = 1000;
    let (control_plane, mac, agent, nodes) = impatient().await?;
    let image = "registry.test/macos/slow:1";
    mac.add_image(image, &json!({"pullSeconds": 3600}))?;
    // All of them are taken, and wait for the same pull.
    let agent = agent.flag("--max-pods", &PODS.to_string()).start()?;
    wait::until(&nodes, "mac", "ready", DEADLINE, |node| condition(node, "Ready") == "True").await?;
    let namespace = control_plane.namespace("crowd").await?;
    let pods: Api<Pod> = Api::namespaced(control_plane.client().await?, &namespace);
    let create = async |number: usize| {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": format!("pod-{number}")},
            "spec": {
                "nodeName": "mac",
                "automountServiceAccountToken": false,
                "containers": [{"name": "main", "image": image}],
            },
        }))?;
        pods.create(&PostParams::default(), &pod).await.context("cannot create a Pod")
    };
    let crowd = async {
        let created = stream::iter(0..PODS).map(create).buffer_unordered(16);
        created.try_for_each(async |_| Ok(())).await?;
        wait::eventually("all Pods to wait", DEADLINE * 2, async || {
            let waiting = agent.metric("tart_kubelet_pods_waiting").await?;
            ensure!(waiting >= 1000.0, "{waiting}");
            Ok(())
        })
        .await
    };
    // Beats are watched while the crowd comes in, and after.
    let ((), ()) = tokio::try_join!(crowd, beats(&control_plane, "mac", 4))?;
    beats(&control_plane, "mac", 2).await?;
    let node = nodes.get("mac").await?;
    ensure!(condition(&node, "Ready") == "True", "it is {}", condition(&node, "Ready"));
    Ok(())
}
