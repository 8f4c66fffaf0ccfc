//! Two agents with one Node name.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, ResourceExt};
use tart_kubelet_tests::agent::Agent;
use tart_kubelet_tests::mac::Mac;
use tart_kubelet_tests::wait;

use crate::broken_input::last_words;
use crate::scene::{DEADLINE, Scene};

fn another(scene: &Scene) -> Result<Agent> {
    let mac = Mac::new(scene.control_plane.sandbox())?;
    let kubeconfig = scene.control_plane.node_kubeconfig(&scene.node)?;
    Ok(Agent::new(&mac, &scene.node, &kubeconfig)?.flag("--node-ip", "127.0.0.1"))
}

fn instance(lease: &Lease) -> String {
    lease.annotations().get("tart-kubelet.tuist.dev/instance").cloned().unwrap_or_default()
}

#[tokio::test]
async fn the_second_of_two_live_agents_refuses_in_words() -> Result<()> {
    let (scene, first) = Scene::with_agent("rival").await?;
    let second = another(&scene)?.start()?;
    let words = last_words(&second).await?;
    let [line] = words.as_slice() else { anyhow::bail!("not one line: {words:#?}") };
    ensure!(
        line.contains("another agent") && line.contains(&scene.node) && line.contains("--node-name"),
        "{line}"
    );
    first.process().ensure_running()?;
    // Its own restart is not a second agent.
    let first = first.restart()?;
    scene.node_ready(&first).await?;
    ensure!(!first.log()?.contains("watching whether it is alive"), "{}", first.log()?);
    Ok(())
}

#[tokio::test]
async fn an_agent_on_a_new_mac_takes_over_from_a_dead_one_which_then_gives_way() -> Result<()> {
    let (scene, first) = Scene::with_agent("heir").await?;
    let leases: Api<Lease> = Api::namespaced(scene.control_plane.client().await?, "kube-node-lease");
    let before =
        wait::until(&leases, &scene.node, "there", DEADLINE, |lease| !instance(lease).is_empty()).await?;
    // Stopped, not killed: it comes back, and must notice that it has lost its Node.
    first.kill(nix::sys::signal::Signal::SIGSTOP)?;
    let second = another(&scene)?.start()?;
    let taken = |lease: &Lease| !instance(lease).is_empty() && instance(lease) != instance(&before);
    wait::until(&leases, &scene.node, "taken over", DEADLINE, taken)
        .await
        .with_context(|| second.log().unwrap_or_default())?;
    first.kill(nix::sys::signal::Signal::SIGCONT)?;
    let words = last_words(&first).await?;
    ensure!(words.iter().any(|line| line.contains("another agent")), "{words:#?}");
    second.process().ensure_running()
}
