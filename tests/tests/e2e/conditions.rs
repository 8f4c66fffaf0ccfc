//! Conditions that mean something: each fault of the host shows on its Node, and is gone when the fault is.

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Node;
use serde_json::json;
use tart_kubelet_tests::agent::RunningAgent;
use tart_kubelet_tests::mac::Fault;
use tart_kubelet_tests::wait;

use crate::crash::container;
use crate::image_gc::{MIB, small};
use crate::scene::{DEADLINE, IMAGE, Scene, condition};

fn reason<'a>(node: &'a Node, kind: &str) -> &'a str {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let found = conditions.filter(|condition| condition.type_ == kind).find_map(|one| one.reason.as_deref());
    found.unwrap_or_default()
}

/// Waits until the Node is not ready for a reason, and says so in an Event of its own: the control plane's does not know the reason.
async fn not_ready(scene: &Scene, because: &str) -> Result<()> {
    let what = format!("not ready: {because}");
    wait::until(&scene.nodes, &scene.node, &what, DEADLINE, |node| {
        condition(node, "Ready") == "False" && reason(node, "Ready") == because
    })
    .await?;
    scene.told("node", &scene.node, &format!("{because}: ")).await
}

async fn ready_again(scene: &Scene, agent: &RunningAgent) -> Result<()> {
    scene.node_ready(agent).await?;
    scene.told("node", &scene.node, "TartReady: VMs can start").await
}

/// A fault of tart itself, which is seen although nobody starts a VM.
async fn shows_by_itself(fault: Fault, parameter: &str, because: &str) -> Result<()> {
    let (scene, agent) = Scene::with_agent("tart").await?;
    scene.mac.set_fault(fault, parameter)?;
    not_ready(&scene, because).await?;
    scene.mac.clear_fault(fault)?;
    ready_again(&scene, &agent).await
}

#[tokio::test]
async fn a_mac_whose_tart_hangs_is_not_ready() -> Result<()> {
    shows_by_itself(Fault::Hang, "--version", "TartHanging").await
}

#[tokio::test]
async fn a_mac_whose_tart_is_too_old_is_not_ready() -> Result<()> {
    shows_by_itself(Fault::Version, "2.26.3", "TartUnsupported").await
}

#[tokio::test]
async fn a_mac_whose_tart_talks_nonsense_is_not_ready() -> Result<()> {
    shows_by_itself(Fault::Garbage, "--version", "TartBroken").await
}

#[tokio::test]
async fn a_mac_without_tart_is_not_ready_until_it_is_installed() -> Result<()> {
    let scene = Scene::new("tartless").await?;
    let program = scene.agent.state_dir().with_file_name("tart");
    let agent = scene.agent.clone().flag("--tart-binary", &program.display().to_string()).start()?;
    not_ready(&scene, "TartMissing").await?;
    scene.told("node", &scene.node, &program.display().to_string()).await?;
    std::os::unix::fs::symlink(scene.mac.tart_binary(), &program)?;
    ready_again(&scene, &agent).await?;
    // Somebody upgrades it, badly.
    std::fs::remove_file(&program)?;
    not_ready(&scene, "TartMissing").await
}

/// A fault that shows when a VM starts; the Pod's own next try is what heals the Node.
async fn shows_at_start(fault: Fault, parameter: &str, because: &str) -> Result<()> {
    let (scene, agent) = Scene::with_agent("start").await?;
    scene.mac.set_fault(fault, parameter)?;
    scene.create(&scene.pod("start", &json!({}), &json!({"restartPolicy": "Always"}))).await?;
    not_ready(&scene, because).await.with_context(|| agent.log().unwrap_or_default())?;
    scene.mac.clear_fault(fault)?;
    // It counts as running as soon as its first VM was tried.
    wait::until(&scene.pods, "start", "ready", DEADLINE, |pod| {
        container(pod).is_ok_and(|status| status.ready)
    })
    .await
    .with_context(|| agent.log().unwrap_or_default())?;
    ready_again(&scene, &agent).await
}

#[tokio::test]
async fn a_mac_where_nobody_is_logged_in_is_not_ready() -> Result<()> {
    shows_at_start(Fault::VzInternal, "", "NoGuiSession").await
}

#[tokio::test]
async fn a_mac_with_a_locked_keychain_is_not_ready() -> Result<()> {
    shows_at_start(Fault::VzHostKey, "", "NoGuiSession").await
}

#[tokio::test]
async fn a_mac_that_has_leaked_its_places_for_vms_is_not_ready() -> Result<()> {
    shows_at_start(Fault::VmLimitStuck, "", "VmSlotsLeaked").await
}

#[tokio::test]
async fn a_mac_without_addresses_for_its_vms_is_not_ready() -> Result<()> {
    let scene = Scene::new("dhcp").await?;
    let agent = scene.agent.clone().flag("--vm-address-timeout", "5s").start()?;
    scene.node_ready(&agent).await?;
    scene.mac.set_fault(Fault::DhcpExhausted, "")?;
    let mute = "registry.test/macos/mute:1";
    scene.mac.add_image(mute, &json!({"agent": false}))?;
    let now = json!({"nodeName": scene.node, "terminationGracePeriodSeconds": 1});
    scene.create(&scene.pod("without", &json!({"image": mute}), &now)).await?;
    not_ready(&scene, "NoAddressForVms").await.with_context(|| agent.log().unwrap_or_default())?;
    scene.mac.clear_fault(Fault::DhcpExhausted)?;
    // No scheduler sends a Pod there, but one that is there already proves that the host is well again.
    scene.create(&scene.pod("with", &json!({"image": IMAGE}), &now)).await?;
    scene.phase("with", "Running").await?;
    ready_again(&scene, &agent).await
}

#[tokio::test]
async fn a_disk_that_fills_up_is_pressure_until_there_is_room_again() -> Result<()> {
    let Some((scene, disk)) = small("disk", 100 * MIB).await? else { return Ok(()) };
    let agent = scene
        .agent
        .clone()
        .flag("--eviction-hard", "imagefs.available<50%")
        .flag("--eviction-pressure-transition-period", "1s")
        .start()?;
    scene.node_ready(&agent).await?;
    let node = scene.nodes.get(&scene.node).await?;
    assert_eq!(condition(&node, "DiskPressure"), "False");

    disk.fill(60 * MIB)?;
    let under = |status: &'static str| move |node: &Node| condition(node, "DiskPressure") == status;
    wait::until(&scene.nodes, &scene.node, "short of space", DEADLINE, under("True")).await?;
    scene.told("node", &scene.node, "NodeHasDiskPressure").await?;
    disk.fill(0)?;
    wait::until(&scene.nodes, &scene.node, "well again", DEADLINE, under("False")).await?;
    scene.told("node", &scene.node, "NodeHasNoDiskPressure").await
}

#[tokio::test]
async fn too_little_memory_and_too_few_processes_are_pressure() -> Result<()> {
    let scene = Scene::new("short").await?;
    // No machine has all of its memory and all of its process ids to give away.
    let agent = scene
        .agent
        .clone()
        .flag("--eviction-hard", "memory.available<100%,pid.available<100%")
        .flag("--host-memory-mb", "1024")
        .start()?;
    let both = |status: &'static str| {
        move |node: &Node| {
            ["MemoryPressure", "PIDPressure"].iter().all(|kind| condition(node, kind) == status)
        }
    };
    wait::until(&scene.nodes, &scene.node, "short of both", DEADLINE, both("True")).await?;
    scene.told("node", &scene.node, "NodeHasInsufficientMemory").await?;
    scene.told("node", &scene.node, "NodeHasInsufficientPID").await?;
    scene.node_ready(&agent).await?;
    agent.kill9()?;
    let _agent = scene.agent.start()?;
    wait::until(&scene.nodes, &scene.node, "short of neither", DEADLINE, both("False")).await.map(drop)
}
