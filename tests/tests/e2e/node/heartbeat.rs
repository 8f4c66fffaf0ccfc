//! The heartbeat: the agent renews its Lease in time, whatever else hangs.

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
use tart_kubelet_tests::mac::Fault;
use tart_kubelet_tests::mac::Mac;
use tart_kubelet_tests::sandbox::Sandbox;
use tart_kubelet_tests::wait;

use crate::scene::{DEADLINE, IMAGE, NodeView as _, PodView as _, Scene, renew_time};

/// For how long the control plane trusts one renewal.
const TRUST: Duration = Duration::from_secs(40);

/// Watches some renewals of a Node's Lease. Each must come while the control plane still trusts the one before.
async fn renewals(control_plane: &ControlPlane, node: &str, count: u32) -> Result<()> {
    let leases: Api<Lease> = Api::namespaced(control_plane.client().await?, "kube-node-lease");
    let mut before: Option<Timestamp> = None;
    for _ in 0..=count {
        let lease =
            wait::until(&leases, node, "renewed", DEADLINE, |lease| renew_time(lease) > before).await?;
        let now = renew_time(&lease);
        if let Some((before, now)) = before.zip(now) {
            let gap = Duration::try_from(now.duration_since(before))?;
            ensure!(gap < TRUST, "the Lease was not renewed for {gap:?}");
        }
        before = now;
    }
    Ok(())
}

#[tokio::test]
async fn hanging_tart_does_not_delay_the_heartbeat() -> Result<()> {
    let (scene, agent) = Scene::with_agent("hang").await?;
    scene.mac.set_fault(Fault::Hang, "*")?;
    scene.pod("stuck").create().await?;
    renewals(scene.control_plane, &scene.node, 3).await?;
    // A restarted agent renews the Lease without tart, too.
    let _agent = agent.restart()?;
    renewals(scene.control_plane, &scene.node, 2).await?;
    let node = scene.nodes.get(&scene.node).await?;
    ensure!(node.condition("Ready") != "Unknown");
    Ok(())
}

#[tokio::test]
async fn slow_api_server_does_not_stop_the_heartbeat() -> Result<()> {
    let (scene, proxy, agent) = Scene::behind_proxy("slow").await?;
    proxy.delay(Duration::from_secs(2));
    scene.pod("slow").create().await?;
    renewals(scene.control_plane, &scene.node, 3).await?;
    scene.phase("slow", "Running").await?;
    ensure!(scene.nodes.get(&scene.node).await?.condition("Ready") == "True", "{}", agent.log()?);
    Ok(())
}

#[tokio::test]
async fn silently_dead_connection_is_replaced() -> Result<()> {
    let (scene, proxy, agent) = Scene::behind_proxy("silence").await?;
    proxy.forget();
    renewals(scene.control_plane, &scene.node, 2).await?;
    // The watch of Pods is replaced, too.
    scene
        .pod("after")
        .command(["/usr/bin/true"])
        .create_until("Succeeded")
        .await
        .with_context(|| agent.log().unwrap_or_default())?;
    Ok(())
}

#[tokio::test]
async fn sigterm_ends_an_agent_whose_tart_and_api_server_hang() -> Result<()> {
    let (scene, proxy, agent) = Scene::behind_proxy("dead-end").await?;
    scene.mac.set_fault(Fault::Hang, "*")?;
    scene.pod("stuck").create().await?;
    wait::eventually("a Pod that waits for tart", DEADLINE, async || {
        ensure!(agent.metric("tart_kubelet_pods_waiting").await? > 0.0);
        Ok(())
    })
    .await?;
    proxy.block();
    agent.kill(Signal::SIGTERM)?;
    // launchd waits as long.
    let status = agent.wait_for_exit(Duration::from_secs(20)).await?;
    ensure!(status.success(), "{status}: {}", agent.log()?);
    Ok(())
}

#[tokio::test]
async fn idle_agent_writes_its_lease_and_nothing_else() -> Result<()> {
    let (scene, agent) = Scene::with_agent("rest").await?;
    scene.pod("rest").command(["/bin/sleep", "3600"]).create_until("Running").await?;
    // The control plane changes a new Node, and the agent answers to some of it.
    renewals(scene.control_plane, &scene.node, 1).await?;
    let spoken = |node: &Node| {
        let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
        conditions.map(|one| one.last_heartbeat_time.clone().map(|time| time.0)).collect::<Vec<_>>()
    };
    let before = scene.nodes.get(&scene.node).await?;
    let pod_before = scene.pods.get("rest").await?;
    let posts = "rest_client_requests_total{code=\"201\",method=\"POST\"}";
    let posted = agent.metric(posts).await?;
    renewals(scene.control_plane, &scene.node, 3).await?;
    let after = scene.nodes.get(&scene.node).await?;
    assert_eq!(spoken(&before), spoken(&after), "the agent wrote an unchanged status");
    // The control plane may write the Node, too, and may even take over a field of the agent.
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

/// A program that starts another one with a small file system of its own at `path`.
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
async fn full_disk_does_not_delay_the_heartbeat() -> Result<()> {
    use std::io::{ErrorKind, Write};

    let scene = Scene::new("full").await?;
    let state = scene.agent.state_dir();
    std::fs::create_dir_all(&state)?;
    let mut probe = std::process::Command::new("unshare");
    probe.args(["--map-root-user", "--mount", "mount", "-t", "tmpfs", "none"]).arg(&state);
    if !probe.status().is_ok_and(|status| status.success()) {
        return tart_kubelet_tests::skip::say("this user cannot mount a volume");
    }
    let agent = scene.agent.clone().started_by(&small_volume_at(&state)?);
    let agent = agent.flag("--eviction-hard", "nodefs.available<10%");
    let agent = scene.start(&agent.flag("--eviction-pressure-transition-period", "1s")).await?;

    // The directory in the agent's mount namespace.
    let state = format!("/proc/{}/root{}", agent.process().pid(), state.display());
    let ballast = std::path::Path::new(&state).join("ballast");
    let mut file = std::fs::File::create(&ballast)?;
    let full = loop {
        if let Err(error) = file.write_all(&[0; 4096]) {
            break error;
        }
    };
    ensure!(full.kind() == ErrorKind::StorageFull, "{full}");
    scene.node_condition("DiskPressure", "True").await?;
    renewals(scene.control_plane, &scene.node, 3).await?;
    ensure!(scene.nodes.get(&scene.node).await?.condition("Ready") == "True", "{}", agent.log()?);

    drop(file);
    std::fs::remove_file(&ballast)?;
    scene.node_condition("DiskPressure", "False").await?;
    scene.pod("after").command(["/usr/bin/true"]).create_until("Succeeded").await.map(drop)
}

/// A control plane that gives a Node up after 20 seconds, and an agent.
async fn short_grace_period() -> Result<(ControlPlane, Mac, Agent, Api<Node>)> {
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
async fn node_is_ready_again_with_the_next_heartbeat() -> Result<()> {
    let (_control_plane, _mac, agent, nodes) = short_grace_period().await?;
    let agent = agent.start()?;
    let ready = |status: &'static str| move |node: &Node| node.condition("Ready") == status;
    wait::until(&nodes, "mac", "ready", DEADLINE, ready("True")).await?;
    agent.kill(Signal::SIGSTOP)?;
    wait::until(&nodes, "mac", "given up", DEADLINE, ready("Unknown")).await?;
    agent.kill(Signal::SIGCONT)?;
    let node = wait::until(&nodes, "mac", "back", DEADLINE, ready("True")).await?;
    for kind in ["MemoryPressure", "DiskPressure", "PIDPressure"] {
        ensure!(node.condition(kind) == "False", "{kind} is {}", node.condition(kind));
    }
    Ok(())
}

#[tokio::test]
async fn pods_are_ready_again_with_their_node() -> Result<()> {
    let (control_plane, mac, agent, nodes) = short_grace_period().await?;
    mac.add_image(IMAGE, &json!({}))?;
    let agent = agent.start()?;
    wait::until(&nodes, "mac", "ready", DEADLINE, |node| node.condition("Ready") == "True").await?;
    let namespace = control_plane.namespace("given-up").await?;
    let pods: Api<Pod> = Api::namespaced(control_plane.client().await?, &namespace);
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "web"},
        "spec": {"nodeName": "mac", "containers": [{"name": "main", "image": IMAGE}]},
    }))?;
    pods.create(&PostParams::default(), &pod).await?;
    let ready = async |status: &'static str| {
        let what = format!("ready: {status}");
        let found = wait::until(&pods, "web", &what, DEADLINE, |pod| pod.condition("Ready").status == status);
        found.await.with_context(|| agent.log().unwrap_or_default())
    };
    let vm = ready("True").await?.vm()?;
    agent.kill(Signal::SIGSTOP)?;
    // The control plane sets the condition, since the agent does not answer.
    ready("False").await?;
    agent.kill(Signal::SIGCONT)?;
    assert_eq!(ready("True").await?.vm()?, vm);
    Ok(())
}

#[tokio::test]
async fn thousand_pods_do_not_delay_the_heartbeat() -> Result<()> {
    const PODS: usize = 1000;
    let (control_plane, mac, agent, nodes) = short_grace_period().await?;
    let image = "registry.test/macos/slow:1";
    mac.add_image(image, &json!({"pullSeconds": 3600}))?;
    // The agent admits all Pods, and all wait for the same pull.
    let agent = agent.flag("--max-pods", &PODS.to_string()).start()?;
    wait::until(&nodes, "mac", "ready", DEADLINE, |node| node.condition("Ready") == "True").await?;
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
    // Renewals while the Pods arrive, and after.
    let ((), ()) = tokio::try_join!(crowd, renewals(&control_plane, "mac", 4))?;
    renewals(&control_plane, "mac", 2).await?;
    let node = nodes.get("mac").await?;
    ensure!(node.condition("Ready") == "True", "it is {}", node.condition("Ready"));
    Ok(())
}
