//! Faults of tart and of the Mac's framework: what becomes of the container, and of nothing else. Every fault that the simulator has is in a
//! test.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tart_kubelet_tests::mac::Fault;

use crate::scene::{NodeView as _, PodView as _, SLEEP, Scene};

/// The faults that no test of the agent switches on, and why.
const WITHOUT_TEST: &[(Fault, &str)] = &[
    (Fault::Capacity, "tests of the agent have real disks: `SmallDisk`"),
    (Fault::HostCpus, "the agent admits no Pod that needs more than the Mac has"),
    (Fault::HostMemoryMib, "the agent admits no Pod that needs more than the Mac has"),
    (Fault::NestedUnsupported, "the agent runs no VM with --nested"),
    (Fault::SoftnetMissing, "the agent runs no VM with --net-softnet"),
    (Fault::SoftnetDies, "the agent runs no VM with --net-softnet"),
    (Fault::ArpGarbage, "the agent does not call `tart ip`"),
    (Fault::AgentConnectTimeout, "the agent does not call `tart exec`"),
    (Fault::RestoreFails, "the agent suspends no VM"),
    (Fault::SuspendFails, "the agent suspends no VM"),
    (Fault::SigintDelay, "a VM that never stops, by `sigint-hang`, is the longer delay"),
    (Fault::AgentDelay, "tests have images with an `agentDelay`"),
    (Fault::BootDelay, "tests have images with a `bootDelay`"),
    (Fault::Latency, "the bench uses it"),
    (Fault::Runs, "`make soak` uses it"),
    (Fault::VmLimit, "`make conformance` uses it"),
    (Fault::OwnNetwork, "`make conformance` uses it"),
    (Fault::ControlSocketConnections, "tests count connections by the file `control.sock.accepted`"),
    (Fault::NoNamespaces, "it is about the machine that runs the tests"),
];

#[test]
fn every_fault_of_the_simulator_is_in_a_test_or_has_a_reason() -> Result<()> {
    let tests = sources(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e")))?;
    let list =
        include_str!("tart_faults.rs").split_once("WITHOUT_TEST").and_then(|(_, rest)| rest.split_once("];"));
    let tests = tests.replace(list.context("this file has no list")?.0, "");
    for fault in Fault::ALL {
        let name = format!("Fault::{fault:?}");
        let is_used = tests.split(&name).skip(1).any(|rest| !rest.starts_with(char::is_alphanumeric));
        let has_reason = WITHOUT_TEST.iter().any(|(other, _)| other == fault);
        ensure!(
            is_used != has_reason,
            "{fault}: used in a test: {is_used}, listed without one: {has_reason}"
        );
    }
    Ok(())
}

fn sources(dir: &Path) -> Result<String> {
    let mut text = String::new();
    for entry in std::fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let path: PathBuf = entry?.path();
        if path.is_dir() {
            text += &sources(&path)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text += &std::fs::read_to_string(&path)?;
        }
    }
    Ok(text)
}

#[tokio::test]
async fn vm_that_ignores_sigint_is_killed_by_its_shim() -> Result<()> {
    let (scene, agent) = Scene::with_agent("deaf").await?;
    scene.mac.set_fault(Fault::SigintHang, "")?;
    let pod = scene.pod("deaf").sh("exit 7").create_until("Failed").await?;
    assert_eq!(pod.main().exit_code(), Some(7));
    scene.no_vms().await?;
    let shim = scene.shim_log("deaf").await?;
    let says = |words: &str, signal: &str| shim.lines().any(|it| it.contains(words) && it.contains(signal));
    ensure!(says("the VM does not end", "SIGINT") && says("the VM has ended", "SIGKILL"), "{shim}");
    let agent = agent.log()?;
    ensure!(!agent.contains("has lost its shim"), "the shim has left a VM to the agent: {agent}");
    Ok(())
}

#[tokio::test]
async fn container_whose_guest_loses_its_network_has_failed() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("unplugged").await?;
    for (name, pod) in [("boots", scene.pod("boots")), ("runs", scene.pod("runs").command(SLEEP))] {
        let vm = pod.create_until("Running").await?.vm()?;
        scene.mac.set_fault(Fault::NetworkLost.of_vm(&vm), "")?;
        let end = scene.phase(name, "Failed").await?.main().end()?;
        let message = end.message.clone().unwrap_or_default();
        ensure!(end.exit_code != 0 && message.contains("network attachment"), "{name}: {end:?}");
    }
    scene.no_vms().await
}

#[tokio::test]
async fn vm_whose_nvram_is_taken_fails_alone() -> Result<()> {
    let (scene, agent) = Scene::with_agent("nvram").await?;
    let bystander = scene.pod("bystander").create_until("Running").await?.vm()?;
    scene.mac.set_fault(Fault::VzAuxiliaryStorage, "")?;
    let other = "registry.test/macos/other:1";
    scene.mac.add_image(other, &json!({"cpu": 5}))?;
    // Two images: the Mac would be at fault if this were about its session.
    for pod in [scene.pod("one"), scene.pod("two").image(other)] {
        let end = pod.create_until("Failed").await?.main().end()?;
        let message = end.message.clone().unwrap_or_default();
        ensure!(message.contains("auxiliary storage"), "{message}");
    }
    ensure!(!agent.log()?.contains("no VM can start"), "{}", agent.log()?);
    assert_eq!(scene.nodes.get(&scene.node).await?.condition("Ready"), "True");
    scene.mac.clear_fault(Fault::VzAuxiliaryStorage)?;
    scene.pod("next").create_until("Running").await?;
    assert_eq!(scene.pods.get("bystander").await?.vm()?, bystander);
    Ok(())
}
