//! The owner of tart's home: one home serves one Node of one cluster.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tart_kubelet_tests::agent::Agent;
use tart_kubelet_tests::wait;

use crate::agent::startup::exit_line;
use crate::gc::frequent_gc;
use crate::scene::{DEADLINE, NodeView as _, PodView as _, Scene};

#[tokio::test]
async fn tarts_home_serves_one_node() -> Result<()> {
    let (scene, first) = Scene::with_agent("home").await?;
    let vm = scene.pod("lives").create_until("Running").await?.vm()?;

    // An agent with another Node name and state directory would take the VM for an orphan.
    let other = format!("{}-other", scene.node);
    let kubeconfig = scene.control_plane.node_kubeconfig(&other)?;
    let second = Agent::new(&scene.mac, &other, &kubeconfig)?.flag("--node-ip", "127.0.0.1");
    let second = frequent_gc(&second);
    let refused = async |words: &[&str]| -> Result<()> {
        let line = exit_line(&second.start()?).await?;
        for words in words {
            ensure!(line.contains(words), "no {words} in {line}");
        }
        Ok(())
    };
    refused(&["another tart-kubelet", &scene.node, "TART_HOME"]).await?;
    // The first agent is dead, and its VM runs on.
    first.kill9()?;
    refused(&[&scene.node, &vm, "tart stop"]).await?;
    assert_eq!(scene.running_vms().await?, [vm]);

    let first = scene.agent.start()?;
    scene.phase("lives", "Running").await?;
    scene.delete("lives").await?;
    scene.nothing_left().await?;
    first.kill9()?;
    // No VM of the first Node is left: the host has another Node name now.
    let heir = second.start()?;
    wait::until(&scene.nodes, &other, "ready", DEADLINE, |node| node.condition("Ready") == "True")
        .await
        .with_context(|| heir.log().unwrap_or_default())?;
    Ok(())
}

#[tokio::test]
async fn tarts_home_serves_one_cluster() -> Result<()> {
    let (scene, agent) = Scene::with_agent("clusters").await?;
    let vm = scene.pod("lives").create_until("Running").await?.vm()?;
    agent.kill9()?;
    // The same cluster behind another address is not another cluster.
    let (_proxy, moved) = scene.proxied(&scene.agent).await?;
    let moved = moved.start()?;
    scene.observed("lives").await?;
    moved.kill9()?;
    // The Mac was a Node of the same name in another cluster, whose Pods this cluster does not know.
    let path = scene.mac.tart_home().join("tart-kubelet.json");
    let ours = std::fs::read_to_string(&path)?;
    let mut owner: Value = serde_json::from_str(&ours)?;
    owner["cluster"] = json!({"server": "https://elsewhere.test:6443/", "authorities": ["0".repeat(64)]});
    std::fs::write(&path, owner.to_string())?;
    let stranger = scene.agent.clone().flag("--vm-gc-min-age", "0s").start()?;
    let line = exit_line(&stranger).await?;
    for words in ["another cluster (https://elsewhere.test:6443/)", &vm, "tart stop", "TART_HOME"] {
        ensure!(line.contains(words), "no {words} in {line}");
    }
    assert_eq!(scene.running_vms().await?, [vm]);
    std::fs::write(&path, ours)?;
    let _agent = scene.agent.start()?;
    let lives = scene.observed("lives").await?;
    assert_eq!(lives.phase(), "Running");
    Ok(())
}
