//! The Node object: what the agent writes when it registers, and what it leaves alone afterwards.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Taint};
use kube::ResourceExt;
use kube::api::DeleteParams;
use tart_kubelet_tests::{programs, wait};

use super::lease::lease_of;
use crate::agent::startup::exit_line;
use crate::scene::{DEADLINE, Scene};

#[tokio::test]
async fn agent_registers_its_node() -> Result<()> {
    let scene = Scene::new("node").await?;
    let agent = scene
        .agent
        .clone()
        .flag("--provider-id", "scw-applesilicon://fr-par-3/1")
        .flag("--node-labels", "team=ios");
    let _running = scene.start(&agent).await?;
    let node = scene.nodes.get(&scene.node).await?;
    let labels = node.metadata.labels.clone().context("no labels")?;
    for (key, value) in [
        ("kubernetes.io/os", "darwin"),
        ("kubernetes.io/arch", "arm64"),
        ("tuist.dev/runtime", "tart"),
        ("team", "ios"),
    ] {
        assert_eq!(labels.get(key).map(String::as_str), Some(value), "{key}");
    }
    let spec = node.spec.context("no spec")?;
    assert_eq!(spec.provider_id.as_deref(), Some("scw-applesilicon://fr-par-3/1"));
    ensure!(
        spec.taints
            .iter()
            .flatten()
            .any(|taint| taint.key == "tuist.dev/macos" && taint.effect == "NoSchedule")
    );
    let capacity = node.status.and_then(|status| status.capacity).context("no capacity")?;
    assert_eq!(capacity["pods"].0, "2");
    Ok(())
}

#[tokio::test]
async fn deleted_node_is_registered_again() -> Result<()> {
    let (scene, agent) = Scene::with_agent("again").await?;
    let first = scene.nodes.get(&scene.node).await?.metadata.uid;
    // What a user has done to the Node stays.
    scene.kubectl.run(["cordon", &scene.node]).await?;
    scene.kubectl.run(["taint", "node", &scene.node, "repair=due:NoSchedule"]).await?;
    scene.nodes.delete(&scene.node, &DeleteParams::default()).await?;
    let back = wait::eventually("a new Node", DEADLINE, async || {
        let node = scene.nodes.get(&scene.node).await?;
        ensure!(node.metadata.uid != first, "still the old one");
        Ok(node)
    });
    let back = back.await.with_context(|| agent.log().unwrap_or_default())?;
    // The old Lease is deleted with the old Node. The new Node has one, too.
    lease_of(&scene, &back).await?;
    let spec = back.spec.context("no spec")?;
    ensure!(spec.unschedulable == Some(true), "the Node is no longer cordoned: {spec:?}");
    ensure!(spec.taints.iter().flatten().any(|taint| taint.key == "repair"), "a taint is gone: {spec:?}");
    scene.node_ready(&agent).await
}

#[tokio::test]
async fn node_keeps_its_name_when_the_flag_is_gone() -> Result<()> {
    let (scene, agent) = Scene::with_agent("renamed").await?;
    agent.kill9()?;
    // The machine's name is another one.
    let _agent = scene.agent.clone().without("--node-name").start()?;
    scene.kubectl.run(["label", "node", &scene.node, "tuist.dev/runtime-"]).await?;
    scene
        .until_node("written", |node| node.labels().contains_key("tuist.dev/runtime"))
        .await
        .map(drop)
        .with_context(|| scene.agent_log())
}

#[tokio::test]
async fn agent_removes_only_labels_that_it_no_longer_sets() -> Result<()> {
    let scene = Scene::new("labels").await?;
    let with = |labels: &str| scene.agent.clone().flag("--node-labels", labels);
    let agent = scene.start(&with("team=ios,old=1,node.kubernetes.io/instance-type=M4")).await?;
    scene.kubectl.run(["label", "node", &scene.node, "theirs=1"]).await?;
    let has = |key: &'static str, value: &'static str| {
        move |node: &Node| node.labels().get(key).map(String::as_str) == Some(value)
    };
    let node = scene.until_node("labelled", |node| has("old", "1")(node) && has("theirs", "1")(node)).await?;
    ensure!(has("node.kubernetes.io/instance-type", "M4")(&node), "{:?}", node.labels());
    ensure!(has("kubernetes.io/hostname", Box::leak(scene.node.clone().into_boxed_str()))(&node));
    ensure!(node.labels().contains_key("tuist.dev/macos-version"), "{:?}", node.labels());

    agent.kill9()?;
    let _agent = with("team=android").start()?;
    let node = scene.until_node("relabelled", has("team", "android")).await?;
    ensure!(!node.labels().contains_key("old"), "{:?}", node.labels());
    ensure!(has("theirs", "1")(&node), "a label of a user is left alone: {:?}", node.labels());
    // The agent sets a label again that a user has removed.
    scene.kubectl.run(["label", "node", &scene.node, "team-"]).await?;
    scene.until_node("labelled again", has("team", "android")).await.map(drop)
}

#[tokio::test]
async fn provider_id_is_filled_in_and_never_overwritten() -> Result<()> {
    let (scene, agent) = Scene::with_agent("provider").await?;
    let id = |node: &Node| node.spec.as_ref().and_then(|spec| spec.provider_id.clone()).unwrap_or_default();
    ensure!(id(&scene.nodes.get(&scene.node).await?).is_empty());
    agent.kill9()?;
    let first = "scw-applesilicon://fr-par-3/first";
    let agent = scene.agent.clone().flag("--provider-id", first).start()?;
    scene.until_node("named", |node| id(node) == first).await?;

    agent.kill9()?;
    let second = "scw-applesilicon://fr-par-3/second";
    let agent = scene.agent.clone().flag("--provider-id", second).start()?;
    scene.node_described("ProviderIDMismatch").await?;
    scene.node_described(second).await?;
    ensure!(agent.log()?.contains("ProviderIDMismatch"), "{}", agent.log()?);
    assert_eq!(id(&scene.nodes.get(&scene.node).await?), first);
    Ok(())
}

#[tokio::test]
async fn taints_of_the_flag_are_set_at_creation_only() -> Result<()> {
    let scene = Scene::new("taints").await?;
    let taints = |node: &Node| {
        let ours = |taint: &&Taint| !taint.key.starts_with("node.kubernetes.io/");
        let all = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
        all.filter(ours).map(|taint| format!("{}:{}", taint.key, taint.effect)).collect::<Vec<_>>()
    };
    let agent = scene.agent.clone().flag("--register-with-taints", "a=b:NoSchedule,c:PreferNoSchedule");
    let running = scene.start(&agent).await?;
    assert_eq!(taints(&scene.nodes.get(&scene.node).await?), ["a:NoSchedule", "c:PreferNoSchedule"]);
    scene.kubectl.run(["taint", "node", &scene.node, "a-"]).await?;
    let running = running.restart()?;
    // The label shows that the restarted agent has written the Node.
    scene.kubectl.run(["label", "node", &scene.node, "tuist.dev/runtime-"]).await?;
    let node = scene.until_node("kept", |node| node.labels().contains_key("tuist.dev/runtime")).await?;
    assert_eq!(taints(&node), ["c:PreferNoSchedule"], "{}", running.log()?);

    running.kill9()?;
    scene.nodes.delete(&scene.node, &DeleteParams::default()).await?;
    let _running = scene.start(&scene.agent.clone().flag("--register-with-taints", "")).await?;
    assert_eq!(taints(&scene.nodes.get(&scene.node).await?), Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn node_has_the_machines_facts_and_reserves_a_part() -> Result<()> {
    let scene = Scene::new("facts").await?;
    let agent =
        scene.agent.clone().without("--host-memory-mb").flag("--eviction-hard", "imagefs.available<1%");
    let _agent = scene.start(&agent).await?;
    let status = scene.nodes.get(&scene.node).await?.status.context("no status")?;
    let info = status.node_info.context("no node info")?;
    for (what, value) in [
        ("machineID", &info.machine_id),
        ("bootID", &info.boot_id),
        ("kernelVersion", &info.kernel_version),
        ("osImage", &info.os_image),
    ] {
        ensure!(!value.is_empty(), "{what} is empty: {info:?}");
    }
    assert_eq!((info.operating_system.as_str(), info.architecture.as_str()), ("darwin", "arm64"));
    ensure!(info.kubelet_version.starts_with("v1.36.0+tart-kubelet."), "{info:?}");
    ensure!(info.container_runtime_version.starts_with("tart://2."), "{info:?}");
    let port = status.daemon_endpoints.and_then(|all| all.kubelet_endpoint).map(|one| one.port);
    ensure!(port.is_some_and(|port| port > 0), "the Node publishes the port that is bound: {port:?}");
    let addresses = status.addresses.context("no addresses")?;
    ensure!(
        addresses.iter().any(|one| one.type_ == "InternalIP" && one.address == "127.0.0.1"),
        "{addresses:?}"
    );

    let (capacity, allocatable) =
        (status.capacity.context("no capacity")?, status.allocatable.context("nothing allocatable")?);
    let kibibytes = |text: &str| text.strip_suffix("Ki").and_then(|number| number.parse::<u64>().ok());
    for name in ["memory", "ephemeral-storage"] {
        let (all, some) = (kibibytes(&capacity[name].0), kibibytes(&allocatable[name].0));
        ensure!(some < all && some > Some(0), "{name}: {some:?} of {all:?}");
    }
    ensure!(capacity["pods"].0 == "2" && allocatable["pods"].0 == "2");
    Ok(())
}

#[tokio::test]
async fn flags_set_the_allocatable_amounts() -> Result<()> {
    let scene = Scene::new("amounts").await?;
    let agent = scene
        .start(
            &scene
                .agent
                .clone()
                .flag("--host-cpu", "3")
                .flag("--host-memory-mb", "14336")
                .flag("--max-pods", "3"),
        )
        .await?;
    let status = scene.nodes.get(&scene.node).await?.status.context("no status")?;
    let allocatable = status.allocatable.context("nothing allocatable")?;
    let shown = ["cpu", "memory", "pods"].map(|name| allocatable[name].0.clone());
    assert_eq!(shown, ["3", "14Gi", "3"]);
    ensure!(agent.log()?.contains("macOS runs two VMs at most"), "{}", agent.log()?);
    Ok(())
}

#[tokio::test]
async fn found_node_address_is_reachable_by_other_machines() -> Result<()> {
    let scene = Scene::new("address").await?;
    let agent = scene.agent.clone().without("--node-ip").start()?;
    let found = wait::eventually("an address, or an error", DEADLINE, async || {
        if let Some(status) = agent.process().exit_status()? {
            // A machine without a network has no address.
            ensure!(status.code() == Some(2) && agent.log()?.contains("--node-ip"), "{}", agent.log()?);
            return Ok(None);
        }
        let status = scene.nodes.get(&scene.node).await?.status.context("no status")?;
        let addresses = status.addresses.unwrap_or_default();
        let address = addresses.into_iter().find(|one| one.type_ == "InternalIP").context("no address")?;
        Ok(Some(address.address))
    })
    .await?;
    let lonely = |address: std::net::IpAddr| address.is_loopback() || address.is_unspecified();
    ensure!(found.is_none_or(|found| found.parse().is_ok_and(|address| !lonely(address))));
    Ok(())
}

#[tokio::test]
async fn node_address_comes_from_tailscale_or_the_agent_exits() -> Result<()> {
    let scene = Scene::new("tailscale").await?;
    let program = scene.agent.state_dir().with_file_name("tailscale");
    let agent = scene
        .agent
        .clone()
        .without("--node-ip")
        .flag("--node-ip-source", "tailscale")
        .flag("--tailscale-binary", &program.display().to_string());
    let running = agent.start()?;
    let line = exit_line(&running).await?;
    ensure!(line.contains("--node-ip-source=tailscale: no address") && line.contains("cannot run"), "{line}");

    programs::write(&program, "#!/bin/sh\n[ \"$*\" = 'ip -4' ] && echo 100.64.0.7\n")?;
    let _running = scene.start(&agent).await?;
    let status = scene.nodes.get(&scene.node).await?.status.context("no status")?;
    ensure!(
        status.addresses.iter().flatten().any(|one| one.address == "100.64.0.7"),
        "{:?}",
        status.addresses
    );
    Ok(())
}
