//! Conditions of the Node: each fault of the host shows, and is gone when the fault is.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use serde_json::json;
use tart_kubelet_tests::agent::RunningAgent;
use tart_kubelet_tests::mac::{Fault, GuiSession};
use tart_kubelet_tests::wait;

use crate::disk_space::{MIB, small_disk};
use crate::scene::{DEADLINE, IMAGE, NodeView as _, PodView as _, Scene};

/// Waits until the Node is not ready for a reason, and an Event of the agent says so: the control plane's Event does not know the reason.
async fn not_ready(scene: &Scene, because: &str) -> Result<()> {
    let what = format!("not ready: {because}");
    scene
        .until_node(&what, |node| {
            node.condition("Ready") == "False" && node.condition_reason("Ready") == because
        })
        .await?;
    scene.node_described(&format!("{because}: ")).await
}

async fn ready_again(scene: &Scene, agent: &RunningAgent) -> Result<()> {
    scene.node_ready(agent).await?;
    scene.node_described("TartReady: VMs can start").await
}

/// A fault of tart itself, which the agent sees without starting a VM.
async fn fault_of_tart(fault: Fault, parameter: &str, because: &str) -> Result<()> {
    let (scene, agent) = Scene::with_agent("tart").await?;
    scene.mac.set_fault(fault, parameter)?;
    not_ready(&scene, because).await?;
    scene.mac.clear_fault(fault)?;
    ready_again(&scene, &agent).await
}

#[tokio::test]
async fn node_is_not_ready_while_tart_hangs() -> Result<()> {
    fault_of_tart(Fault::Hang, "--version", "TartHanging").await
}

#[tokio::test]
async fn node_is_not_ready_with_a_tart_that_is_too_old() -> Result<()> {
    fault_of_tart(Fault::Version, "2.26.3", "TartUnsupported").await
}

#[tokio::test]
async fn node_is_not_ready_while_tart_prints_garbage() -> Result<()> {
    fault_of_tart(Fault::Garbage, "--version", "TartBroken").await
}

#[tokio::test]
async fn node_is_not_ready_until_tart_is_installed() -> Result<()> {
    let scene = Scene::new("tartless").await?;
    let program = scene.agent.state_dir().with_file_name("tart");
    let agent = scene.agent.clone().flag("--tart-binary", &program.display().to_string()).start()?;
    not_ready(&scene, "TartMissing").await?;
    scene.node_described(&program.display().to_string()).await?;
    std::os::unix::fs::symlink(scene.mac.tart_binary(), &program)?;
    ready_again(&scene, &agent).await?;
    // A failed upgrade deletes tart.
    std::fs::remove_file(&program)?;
    not_ready(&scene, "TartMissing").await
}

/// A fault that shows when a VM starts. The Pod's next try makes the Node ready again.
async fn fault_at_start(scene: &Scene, agent: &RunningAgent, fault: Fault, because: &str) -> Result<()> {
    scene.mac.set_fault(fault, "")?;
    scene.pod("start").restart_policy("Always").create().await?;
    not_ready(scene, because).await.with_context(|| agent.log().unwrap_or_default())?;
    scene.mac.clear_fault(fault)?;
    // The Pod is Running after its first try, so wait until its container is ready.
    scene.ready("start").await?;
    ready_again(scene, agent).await
}

/// A fault that shows when a VM starts, and in a look at the Mac's session.
async fn fault_of_session(fault: Fault, session: GuiSession, because: &str) -> Result<()> {
    let scene = Scene::new("session").await?;
    scene.mac.set_gui_session(GuiSession::Open)?;
    let agent = scene.start(&scene.agent).await?;
    // The user logs out while the agent runs.
    scene.mac.set_gui_session(session)?;
    fault_at_start(&scene, &agent, fault, because).await
}

#[tokio::test]
async fn node_is_not_ready_without_a_gui_session() -> Result<()> {
    fault_of_session(Fault::VzInternal, GuiSession::None, "NoGuiSession").await
}

#[tokio::test]
async fn node_is_not_ready_with_a_locked_keychain() -> Result<()> {
    fault_of_session(Fault::VzHostKey, GuiSession::Locked, "KeychainLocked").await
}

#[tokio::test]
async fn node_is_not_ready_while_macos_has_leaked_its_vm_slots() -> Result<()> {
    let (scene, agent) = Scene::with_agent("slots").await?;
    fault_at_start(&scene, &agent, Fault::VmLimitStuck, "VmSlotsLeaked").await
}

#[tokio::test]
async fn node_is_not_ready_before_its_first_pod_while_no_user_is_logged_in() -> Result<()> {
    let scene = Scene::new("logged-out").await?;
    scene.mac.set_gui_session(GuiSession::None)?;
    let agent = scene.agent.start()?;
    not_ready(&scene, "NoGuiSession").await?;
    scene.mac.set_gui_session(GuiSession::Open)?;
    ready_again(&scene, &agent).await
}

/// The messages with which the agent has said so far that no VM can start.
fn complaints(agent: &RunningAgent) -> Result<Vec<String>> {
    let log = agent.log()?;
    Ok(log.lines().filter(|line| line.contains("no VM can start")).map(str::to_owned).collect())
}

#[tokio::test]
async fn node_stays_ready_when_pods_of_one_image_fail_as_if_there_were_no_session() -> Result<()> {
    let (scene, agent) = Scene::with_agent("broken").await?;
    scene.mac.set_fault(Fault::VzInternal, "")?;
    for pod in ["one", "two", "three"] {
        let failed = scene.pod(pod).restart_policy("Never").create_until("Failed").await?;
        let message = failed.main().end()?.message.clone().unwrap_or_default();
        ensure!(message.contains("the image may be broken"), "{message}");
    }
    ensure!(complaints(&agent)?.is_empty(), "{:?}", complaints(&agent)?);
    // Another image fails in the same way, and no VM has started in between: now it is the Mac.
    let other = "registry.test/macos/other:1";
    scene.mac.add_image(other, &json!({"cpu": 5}))?;
    scene.pod("other").image(other).restart_policy("Never").create_until("Failed").await?;
    not_ready(&scene, "NoGuiSession").await?;
    let said = complaints(&agent)?;
    ensure!(said.len() == 1 && said[0].contains("two Pods with different images"), "{said:?}");
    Ok(())
}

#[tokio::test]
async fn two_broken_images_leave_a_mac_with_session_and_keychain_ready() -> Result<()> {
    let scene = Scene::new("two-broken").await?;
    scene.mac.set_gui_session(GuiSession::Open)?;
    let agent = scene.start(&scene.agent).await?;
    scene.mac.set_fault(Fault::VzInternal, "")?;
    let other = "registry.test/macos/other:1";
    scene.mac.add_image(other, &json!({"cpu": 5}))?;
    for (pod, image) in [("one", IMAGE), ("two", other), ("three", IMAGE)] {
        scene.pod(pod).image(image).restart_policy("Never").create_until("Failed").await?;
    }
    // What has failed was reported before the Pod's end. A renewal later, its effect on the Node has been written.
    scene.next_lease_renewal().await?;
    ensure!(complaints(&agent)?.is_empty(), "{:?}", complaints(&agent)?);
    Ok(())
}

#[tokio::test]
async fn node_stays_ready_beside_images_that_do_not_boot() -> Result<()> {
    let scene = Scene::new("no-boot").await?;
    let flagged = scene.agent.clone().flag("--vm-address-timeout", "1s").flag("--vm-boot-timeout", "15s");
    let agent = scene.start(&flagged).await?;
    scene.pod("neighbour").grace(1).create_until("Running").await?;
    for name in ["one", "two"] {
        let image = format!("registry.test/macos/{name}:1");
        scene.mac.add_image(&image, &json!({"bootDelay": 3600}))?;
        let failed = scene.pod(name).image(&image).restart_policy("Never").create_until("Failed").await?;
        assert_eq!(failed.main().end()?.reason.as_deref(), Some("NoAddress"));
    }
    ensure!(complaints(&agent)?.is_empty(), "{:?}", complaints(&agent)?);
    scene.node_ready(&agent).await
}

#[tokio::test]
async fn node_is_not_ready_without_dhcp_addresses_for_vms() -> Result<()> {
    let scene = Scene::new("dhcp").await?;
    let leases = scene.mac.dhcp_leases();
    std::fs::write(&leases, lent(253))?;
    let agent = scene.start(&scene.agent.clone().flag("--vm-address-timeout", "5s")).await?;
    scene.mac.set_fault(Fault::DhcpExhausted, "")?;
    let mute = "registry.test/macos/mute:1";
    scene.mac.add_image(mute, &json!({"agent": false}))?;
    scene.pod("without").image(mute).bound().grace(1).create().await?;
    not_ready(&scene, "NoAddressForVms").await.with_context(|| agent.log().unwrap_or_default())?;
    scene.mac.clear_fault(Fault::DhcpExhausted)?;
    std::fs::remove_file(&leases)?;
    // The scheduler sends no Pod there, but a bound Pod proves that the host is well again.
    scene.pod("with").bound().grace(1).create_until("Running").await?;
    ready_again(&scene, &agent).await
}

#[tokio::test]
async fn node_has_disk_pressure_while_the_disk_is_full() -> Result<()> {
    let Some((scene, disk)) = small_disk("disk", 100 * MIB).await? else { return Ok(()) };
    let _agent = scene
        .start(
            &scene
                .agent
                .clone()
                .flag("--eviction-hard", "imagefs.available<50%")
                .flag("--eviction-pressure-transition-period", "1s"),
        )
        .await?;
    let node = scene.nodes.get(&scene.node).await?;
    assert_eq!(node.condition("DiskPressure"), "False");

    disk.fill(60 * MIB)?;
    scene.node_condition("DiskPressure", "True").await?;
    scene.node_described("NodeHasDiskPressure").await?;
    disk.fill(0)?;
    scene.node_condition("DiskPressure", "False").await?;
    scene.node_described("NodeHasNoDiskPressure").await
}

#[tokio::test]
async fn node_has_memory_and_pid_pressure() -> Result<()> {
    let scene = Scene::new("short").await?;
    // No machine has all of its memory and all of its process ids free.
    let agent = scene
        .agent
        .clone()
        .flag("--eviction-hard", "memory.available<100%,pid.available<100%")
        .flag("--host-memory-mb", "1024")
        .start()?;
    let both = |status: &'static str| {
        move |node: &Node| ["MemoryPressure", "PIDPressure"].iter().all(|kind| node.condition(kind) == status)
    };
    scene.until_node("short of both", both("True")).await?;
    scene.node_described("NodeHasInsufficientMemory").await?;
    scene.node_described("NodeHasInsufficientPID").await?;
    scene.node_ready(&agent).await?;
    agent.kill9()?;
    let _agent = scene.agent.start()?;
    scene.until_node("short of neither", both("False")).await.map(drop)
}

/// A file of leases for this many addresses.
fn lent(count: u32) -> String {
    let until = jiff::Timestamp::now().as_second() + 86_400;
    let entry = |host| {
        format!("{{\n\tname=vm\n\tip_address=192.168.64.{host}\n\thw_address=1,a:b\n\tlease={until:#x}\n}}\n")
    };
    (2..2 + count).map(entry).collect()
}

#[tokio::test]
async fn node_reports_dhcp_addresses_before_they_run_out() -> Result<()> {
    let scene = Scene::new("leases").await?;
    let leases = scene.mac.dhcp_leases();
    std::fs::write(&leases, lent(100))?;
    let quick = scene.agent.clone().flag("--eviction-pressure-transition-period", "0s");
    let agent = scene.start(&quick).await?;
    let available = "tart_kubelet_dhcp_addresses{state=\"available\"}";
    let has_available = async |count: f64| {
        wait::eventually("a figure of addresses", DEADLINE, async || {
            let now = agent.metric(available).await?;
            ensure!((now - count).abs() < f64::EPSILON, "{now}, not {count}");
            Ok(())
        })
        .await
    };
    has_available(153.0).await?;
    let low = async |status: &str| scene.node_condition("DHCPLeasesLow", status).await;
    low("False").await?;
    std::fs::write(&leases, lent(240))?;
    low("True").await?;
    scene.node_described("DHCPLeaseTimeSecs -int 600").await?;
    wait::eventually("an Event", DEADLINE, async || {
        let about = format!("involvedObject.name={},reason=DHCPLeasesLow", scene.node);
        let words = ["get", "events", "--all-namespaces", "--field-selector", &about, "--output", "name"];
        ensure!(!scene.kubectl.run(words).await?.trim().is_empty());
        Ok(())
    })
    .await?;
    has_available(13.0).await?;
    // The user has followed the advice.
    std::fs::remove_file(&leases)?;
    low("False").await.map(drop)
}
