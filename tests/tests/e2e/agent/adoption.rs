//! An agent that starts while the API server is away attends to what an earlier agent has left.

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tart_kubelet_tests::agent::RunningAgent;
use tart_kubelet_tests::wait;

use crate::disk_space::{
    MIB, evicting, idle_agent, image_gc_passes, images_left, reference, small_disk, use_images,
};
use crate::scene::{DEADLINE, PodView as _, SLEEP, Scene, UNTIL_FINISHED, every_second, exec};

/// Waits until the agent has kept a Pod as it runs.
async fn kept(scene: &Scene, pod: &str) -> Result<()> {
    let path = scene.pod_dir(&scene.uid(pod).await?).join("manifest.json");
    wait::eventually("the manifest of a Pod that runs", DEADLINE, async || {
        let text = std::fs::read_to_string(&path).with_context(|| format!("no {}", path.display()))?;
        ensure!(text.contains("\"phase\":\"Running\""), "{text}");
        Ok(())
    })
    .await
}

async fn logged(agent: &RunningAgent, words: &str) -> Result<()> {
    wait::eventually(&format!("`{words}` in the log"), DEADLINE, async || {
        let log = agent.log()?;
        ensure!(log.contains(words), "{log}");
        Ok(())
    })
    .await
}

/// Waits until a VM is gone.
async fn deleted(scene: &Scene, vm: &str, agent: &RunningAgent) -> Result<()> {
    let gone = wait::eventually("the deletion of a VM", DEADLINE, async || {
        let vms = scene.vms().await?;
        ensure!(vms.iter().all(|one| one != vm), "there are {vms:?}");
        Ok(())
    });
    gone.await.with_context(|| agent.log().unwrap_or_default())
}

#[tokio::test]
async fn agent_that_starts_during_an_outage_attends_to_its_pods() -> Result<()> {
    let (scene, proxy, agent) = Scene::behind_proxy("adopts").await?;
    let healthy = every_second(exec("[ ! -e /private/tmp/sick ]"));
    let sick = scene.pod("sick").command(SLEEP).liveness(healthy).restart_policy("Always").grace(1);
    let sick = sick.create_until("Running").await?.vm()?;
    let ends = scene.pod("ends").sh(format!("{UNTIL_FINISHED}; exit 7"));
    let ends = ends.create_until("Running").await?.vm()?;
    for pod in ["sick", "ends"] {
        kept(&scene, pod).await?;
    }
    proxy.sever();
    let agent = agent.restart()?;
    logged(&agent, "cannot read the Node's Lease; trying again").await?;

    scene.mac.tart(["exec", &sick, "touch", "/private/tmp/sick"]).await?;
    deleted(&scene, &sick, &agent).await?;
    scene.finish_command(&ends).await;
    deleted(&scene, &ends, &agent).await?;
    assert_eq!(scene.boots()?, 2, "no other VM has begun: {}", agent.log()?);

    proxy.open();
    let ended = scene.phase("ends", "Failed").await?;
    assert_eq!(ended.main().exit_code(), Some(7));
    let restarted = scene.ready_after_restarts("sick", 1).await?;
    let last = restarted.main().last_end()?;
    assert_eq!(last.message.as_deref(), Some("the container failed liveness probe and was stopped"));
    Ok(())
}

#[tokio::test]
async fn agent_that_starts_during_an_outage_frees_disk_space_and_evicts_no_pod() -> Result<()> {
    let Some((scene, disk)) = small_disk("away-room", 400 * MIB).await? else { return Ok(()) };
    let (proxy, agent) = scene.proxied(&evicting(idle_agent(&scene))).await?;
    let agent = scene.start(&agent).await?;
    use_images(&scene, &agent, &[("unused", 60 * MIB), ("busy", MIB)]).await?;
    let vm = scene.pod("busy").image(reference("busy")).create_until("Running").await?.vm()?;
    kept(&scene, "busy").await?;
    proxy.sever();
    let agent = agent.restart()?;
    logged(&agent, "cannot read the Node's Lease; trying again").await?;

    // What a shim does that finds no space.
    let uid = scene.uid("busy").await?;
    let request = scene.first_run_dir(&uid).join("disk-space-request");
    std::fs::write(&request, "")?;
    images_left(&scene, &["busy"], 1).await?;
    wait::eventually("an answer to the shim", DEADLINE, async || {
        ensure!(!request.exists(), "{}", agent.log()?);
        Ok(())
    })
    .await?;
    // No image may go, and less than 15 % is left.
    disk.fill_but(20 * MIB)?;
    image_gc_passes(&agent, 2.0).await?;
    ensure!(!scene.pod_dir(&uid).join("evicted.json").exists(), "{}", agent.log()?);
    ensure!(scene.running_vms().await? == [vm], "{}", agent.log()?);

    proxy.open();
    let evicted = scene.phase("busy", "Failed").await?;
    assert_eq!(evicted.reason(), Some("Evicted"));
    Ok(())
}

#[tokio::test]
async fn agent_that_did_not_have_the_lease_waits_for_the_api_server() -> Result<()> {
    let (scene, proxy, agent) = Scene::behind_proxy("stranger").await?;
    let vm = scene.pod("left").sh(UNTIL_FINISHED).create_until("Running").await?.vm()?;
    kept(&scene, "left").await?;
    proxy.sever();
    agent.kill9()?;
    // Another Mac had the Node since then, or the directory was copied from another Mac.
    let another = json!({"node": scene.node, "instance": "another"});
    std::fs::write(scene.agent.state_dir().join("lease.json"), another.to_string())?;
    let before = agent.log()?.len();
    let agent = scene.agent.start()?;
    wait::eventually("an agent that waits for the API server", DEADLINE, async || {
        let log = agent.log()?;
        ensure!(log[before..].contains("cannot read the Node's Lease; trying again"), "{log}");
        ensure!(!log[before..].contains("attending to a Pod"), "{log}");
        Ok(())
    })
    .await?;
    proxy.open();
    scene.finish_command(&vm).await;
    scene.phase("left", "Succeeded").await?;
    scene.no_vms().await
}
