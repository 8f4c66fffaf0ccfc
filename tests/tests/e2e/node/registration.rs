//! What a Mac says of itself when it registers, and what it leaves alone afterwards.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Taint};
use kube::ResourceExt;
use tart_kubelet_tests::{programs, wait};

use crate::agent::startup::last_words;
use crate::scene::{DEADLINE, Scene};

async fn label(scene: &Scene, what: &str, condition: impl Fn(&Node) -> bool) -> Result<Node> {
    wait::until(&scene.nodes, &scene.node, what, DEADLINE, condition).await
}

#[tokio::test]
async fn labels_that_the_agent_no_longer_owns_are_removed() -> Result<()> {
    let scene = Scene::new("labels").await?;
    let with = |labels: &str| scene.agent.clone().flag("--node-labels", labels);
    let agent = with("team=ios,old=1,node.kubernetes.io/instance-type=M4").start()?;
    scene.node_ready(&agent).await?;
    scene.kubectl.run(["label", "node", &scene.node, "theirs=1"]).await?;
    let has = |key: &'static str, value: &'static str| {
        move |node: &Node| node.labels().get(key).map(String::as_str) == Some(value)
    };
    let node = label(&scene, "labelled", |node| has("old", "1")(node) && has("theirs", "1")(node)).await?;
    ensure!(has("node.kubernetes.io/instance-type", "M4")(&node), "{:?}", node.labels());
    ensure!(has("kubernetes.io/hostname", Box::leak(scene.node.clone().into_boxed_str()))(&node));
    ensure!(node.labels().contains_key("tuist.dev/macos-version"), "{:?}", node.labels());

    agent.kill9()?;
    let _agent = with("team=android").start()?;
    let node = label(&scene, "relabelled", has("team", "android")).await?;
    ensure!(!node.labels().contains_key("old"), "{:?}", node.labels());
    ensure!(has("theirs", "1")(&node), "a label of somebody else is left alone: {:?}", node.labels());
    // A label of ours that somebody takes away comes back.
    scene.kubectl.run(["label", "node", &scene.node, "team-"]).await?;
    label(&scene, "labelled again", has("team", "android")).await.map(drop)
}

#[tokio::test]
async fn a_provider_id_is_filled_in_and_never_overwritten() -> Result<()> {
    let (scene, agent) = Scene::with_agent("provider").await?;
    let id = |node: &Node| node.spec.as_ref().and_then(|spec| spec.provider_id.clone()).unwrap_or_default();
    ensure!(id(&scene.nodes.get(&scene.node).await?).is_empty());
    agent.kill9()?;
    let first = "scw-applesilicon://fr-par-3/first";
    let agent = scene.agent.clone().flag("--provider-id", first).start()?;
    label(&scene, "named", |node| id(node) == first).await?;

    agent.kill9()?;
    let second = "scw-applesilicon://fr-par-3/second";
    let agent = scene.agent.clone().flag("--provider-id", second).start()?;
    scene.told("node", &scene.node, "ProviderIDMismatch").await?;
    scene.told("node", &scene.node, second).await?;
    ensure!(agent.log()?.contains("ProviderIDMismatch"), "{}", agent.log()?);
    assert_eq!(id(&scene.nodes.get(&scene.node).await?), first);
    Ok(())
}

#[tokio::test]
async fn taints_are_those_of_the_flag_and_set_at_creation_only() -> Result<()> {
    let scene = Scene::new("taints").await?;
    let taints = |node: &Node| {
        let ours = |taint: &&Taint| !taint.key.starts_with("node.kubernetes.io/");
        let all = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
        all.filter(ours).map(|taint| format!("{}:{}", taint.key, taint.effect)).collect::<Vec<_>>()
    };
    let agent = scene.agent.clone().flag("--register-with-taints", "a=b:NoSchedule,c:PreferNoSchedule");
    let running = agent.start()?;
    scene.node_ready(&running).await?;
    assert_eq!(taints(&scene.nodes.get(&scene.node).await?), ["a:NoSchedule", "c:PreferNoSchedule"]);
    scene.kubectl.run(["taint", "node", &scene.node, "a-"]).await?;
    let running = running.restart()?;
    // The restarted agent has written the Node once its status says so.
    scene.kubectl.run(["label", "node", &scene.node, "tuist.dev/runtime-"]).await?;
    let node = label(&scene, "kept", |node| node.labels().contains_key("tuist.dev/runtime")).await?;
    assert_eq!(taints(&node), ["c:PreferNoSchedule"], "{}", running.log()?);

    running.kill9()?;
    scene.nodes.delete(&scene.node, &kube::api::DeleteParams::default()).await?;
    let running = scene.agent.clone().flag("--register-with-taints", "").start()?;
    scene.node_ready(&running).await?;
    assert_eq!(taints(&scene.nodes.get(&scene.node).await?), Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn the_node_says_what_the_machine_is_and_keeps_a_part_for_itself() -> Result<()> {
    let scene = Scene::new("facts").await?;
    let agent = scene.agent.clone().flag("--eviction-hard", "imagefs.available<1%").start()?;
    scene.node_ready(&agent).await?;
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
    assert_eq!(port, Some(10250));
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
async fn flags_say_what_pods_may_have() -> Result<()> {
    let scene = Scene::new("amounts").await?;
    let agent = scene
        .agent
        .clone()
        .flag("--host-cpu", "3")
        .flag("--host-memory-mb", "14336")
        .flag("--max-pods", "3")
        .start()?;
    scene.node_ready(&agent).await?;
    let status = scene.nodes.get(&scene.node).await?.status.context("no status")?;
    let allocatable = status.allocatable.context("nothing allocatable")?;
    let shown = ["cpu", "memory", "pods"].map(|name| allocatable[name].0.clone());
    assert_eq!(shown, ["3", "14Gi", "3"]);
    ensure!(agent.log()?.contains("macOS runs two VMs at most"), "{}", agent.log()?);
    Ok(())
}

#[tokio::test]
async fn an_address_that_is_found_is_not_one_of_the_machine_alone() -> Result<()> {
    let scene = Scene::new("address").await?;
    let agent = scene.agent.clone().without("--node-ip").start()?;
    let found = wait::eventually("an address, or a word", DEADLINE, async || {
        if let Some(status) = agent.process().exit_status()? {
            // A machine without a network has none to give.
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
async fn tailscale_gives_the_address_or_the_agent_says_why_not() -> Result<()> {
    let scene = Scene::new("tailscale").await?;
    let program = scene.agent.state_dir().with_file_name("tailscale");
    let agent = scene
        .agent
        .clone()
        .without("--node-ip")
        .flag("--node-ip-source", "tailscale")
        .flag("--tailscale-binary", &program.display().to_string());
    let running = agent.start()?;
    let words = last_words(&running).await?;
    let [line] = words.as_slice() else { anyhow::bail!("not one line: {words:#?}") };
    ensure!(line.contains("--node-ip-source=tailscale: no address") && line.contains("cannot run"), "{line}");

    programs::write(&program, "#!/bin/sh\n[ \"$*\" = 'ip -4' ] && echo 100.64.0.7\n")?;
    let running = agent.start()?;
    scene.node_ready(&running).await?;
    let status = scene.nodes.get(&scene.node).await?.status.context("no status")?;
    ensure!(
        status.addresses.iter().flatten().any(|one| one.address == "100.64.0.7"),
        "{:?}",
        status.addresses
    );
    Ok(())
}
