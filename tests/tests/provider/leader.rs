//! Of several providers one acts, and it ends without leaving anything half done.

use anyhow::{Context, Result, ensure};
use kube::api::PostParams;
use nix::sys::signal::Signal;
use serde_json::json;
use tart_kubelet_tests::process::Process;
use tart_kubelet_tests::wait::eventually;

use super::scene::{DEADLINE, Scene};

const KIND: &str = "ScalewayAppleSiliconMachine";

async fn create(scene: &Scene, name: &str) -> Result<()> {
    let machine = serde_json::from_value(json!({
        "apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1", "kind": KIND,
        "metadata": { "name": name }, "spec": { "adoptPoolPrefix": "tuist-pool-", "fleetName": "fleet" },
    }))?;
    scene.api(KIND).create(&PostParams::default(), &machine).await?;
    Ok(())
}

/// Who has the Lease.
async fn holder(scene: &Scene) -> Result<String> {
    let holder =
        scene.kubectl().run(["get", "lease", "-o", "jsonpath={.items[0].spec.holderIdentity}"]).await?;
    ensure!(!holder.is_empty(), "the Lease has no holder");
    Ok(holder)
}

/// Waits until a provider has done something for a machine.
async fn attended(scene: &Scene, provider: &Process, machine: &str) -> Result<()> {
    eventually("a finalizer", DEADLINE, async || {
        provider.ensure_running()?;
        let read = scene.api(KIND).get(machine).await?;
        ensure!(!read.metadata.finalizers.unwrap_or_default().is_empty(), "{}", provider.last_lines());
        Ok(())
    })
    .await
}

/// A rolling update ends providers at any time. A claim that has begun is finished first, and recorded.
#[tokio::test]
async fn a_provider_that_is_told_to_end_during_a_claim_finishes_it() -> Result<()> {
    let Some(mut scene) = Scene::new("term", 1).await? else { return Ok(()) };
    let id = scene.macs[0].0.clone();
    let mine = format!("{}-1", scene.namespace);
    let named = |scene: &Scene| -> Result<String> {
        Ok(scene.scaleway.world().server(&id).context("a server")?.name.clone())
    };
    // The look between the two renames of a claim.
    scene.scaleway.world().add_rule("get-server 1 slow 3000".parse().map_err(anyhow::Error::msg)?);
    create(&scene, &mine).await?;
    scene.start_provider(&[]).await?;
    eventually("a claim that has begun", DEADLINE, async || {
        scene.provider()?.ensure_running()?;
        let named = named(&scene)?;
        ensure!(named.starts_with("tuist-claim-pending-"), "{named}");
        Ok(())
    })
    .await?;
    let provider = scene.provider()?;
    provider.signal(Signal::SIGTERM)?;
    let ended = provider.wait_for_exit(DEADLINE).await?;
    let log = provider.log()?;
    ensure!(ended.success() && log.contains("told to end"), "{ended}: {log}");
    assert_eq!(named(&scene)?, mine, "{log}");
    let machine = scene.api(KIND).get(&mine).await?;
    assert_eq!(machine.data["status"]["serverID"], json!(id), "{log}");
    ensure!(!log.contains("was not given up"), "another provider has taken the Lease meanwhile: {log}");
    Ok(())
}

/// Nothing has begun: there is nothing to wait for.
#[tokio::test]
async fn a_provider_that_is_told_to_end_at_its_beginning_ends_at_once() -> Result<()> {
    let Some(mut scene) = Scene::new("early", 0).await? else { return Ok(()) };
    scene.start_provider(&[]).await?;
    let provider = scene.provider()?;
    eventually("a leader", DEADLINE, async || {
        ensure!(provider.log()?.contains("is the leader"), "{}", provider.last_lines());
        Ok(())
    })
    .await?;
    provider.signal(Signal::SIGTERM)?;
    let ended = provider.wait_for_exit(DEADLINE).await?;
    let log = provider.log()?;
    ensure!(ended.success() && !log.contains("broken off"), "{ended}: {log}");
    Ok(())
}

#[tokio::test]
async fn a_standby_waits_and_takes_over_when_the_leader_is_killed() -> Result<()> {
    let Some(mut scene) = Scene::new("standby", 0).await? else { return Ok(()) };
    let (one, two) = (format!("{}-1", scene.namespace), format!("{}-2", scene.namespace));
    scene.start_provider(&[]).await?;
    let first = eventually("a leader", DEADLINE, async || holder(&scene).await).await?;
    let standby = scene.another_provider("standby", &[])?;
    eventually("a standby", DEADLINE, async || {
        standby.ensure_running()?;
        ensure!(standby.log()?.contains("the Lease of the leader was seen"), "{}", standby.last_lines());
        Ok(())
    })
    .await?;
    create(&scene, &one).await?;
    attended(&scene, scene.provider()?, &one).await?;
    assert_eq!(holder(&scene).await?, first);
    let log = standby.log()?;
    ensure!(!log.contains("is the leader"), "the standby acts: {log}");

    scene.provider()?.kill9()?;
    create(&scene, &two).await?;
    attended(&scene, &standby, &two).await?;
    let second = holder(&scene).await?;
    ensure!(second != first && standby.log()?.contains("is the leader"), "{second}");
    Ok(())
}
