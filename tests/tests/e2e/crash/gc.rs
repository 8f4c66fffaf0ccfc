//! The agent dies while it collects VMs and images.

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tart_kubelet_tests::wait;

use super::{Mortal, dies_at};
use crate::image::base_vm::{forget_image, record, run_to_its_end};
use crate::disk_space::image_gc::{MIB, agent, left, reference, use_once};
use crate::gc::orphans::{NOBODY, collected, dir, eager, is_there, plant, run};
use crate::disk_space::reclaim::{digest, lack_space, repository, used};
use crate::scene::{DEADLINE, Scene};

/// Leaves a VM as a deletion does that was cut short: tart deletes nothing that it does not take for a VM.
fn halve(scene: &Scene, vm: &str) -> Result<()> {
    Ok(std::fs::remove_file(dir(scene, vm).join("config.json"))?)
}

#[tokio::test]
async fn an_orphan_that_is_stopped_or_deleted_by_half_goes() -> Result<()> {
    let mut scene = Scene::new("dies-orphan").await?;
    scene.agent = eager(&scene.agent);
    let (orphan, rest) = (format!("tk-{NOBODY}-0"), format!("tk-{NOBODY}-1"));
    plant(&scene, &orphan).await?;
    let process = run(&scene, &orphan).await?;
    Mortal::start(&scene, &["agent.gc.stopped"])?.die().await?;
    process.wait_for_exit(DEADLINE).await?;
    ensure!(is_there(&scene, &orphan), "{}", scene.agent_log());
    Mortal::start(&scene, &["agent.gc.deleted"])?.die().await?;
    ensure!(!dir(&scene, &orphan).exists(), "{}", scene.agent_log());

    plant(&scene, &rest).await?;
    halve(&scene, &rest)?;
    Mortal::start(&scene, &["agent.gc.deleted"])?.die().await?;
    ensure!(is_there(&scene, &rest), "{}", scene.agent_log());
    let agent = scene.agent.start()?;
    collected(&scene, &agent, &rest).await?;
    scene.nothing_left().await
}

#[tokio::test]
async fn a_base_that_nothing_needs_goes() -> Result<()> {
    let mut scene = Scene::new("dies-base").await?;
    scene.agent = eager(&scene.agent);
    let running = scene.agent.start()?;
    run_to_its_end(&scene, "first").await?;
    let bases = scene.bases().await?;
    let [base] = bases.as_slice() else { anyhow::bail!("not one base: {bases:?}") };
    running.kill9()?;
    forget_image(&scene, base)?;
    halve(&scene, base)?;
    Mortal::start(&scene, &["agent.gc.base"])?.die().await?;
    ensure!(is_there(&scene, base), "{}", scene.agent_log());
    let agent = scene.agent.start()?;
    collected(&scene, &agent, base).await?;
    run_to_its_end(&scene, "again").await?;
    assert_eq!(scene.bases().await?, bases);
    Ok(())
}

#[tokio::test]
async fn an_image_goes_with_its_base_and_all_its_tags() -> Result<()> {
    let mut scene = Scene::new("dies-tags").await?;
    scene.agent = agent(&scene, 100, 99);
    let running = scene.agent.start()?;
    scene.node_ready(&running).await?;
    let tags = [reference("a"), "registry.test/macos/a:2".to_owned()];
    for tag in &tags {
        scene.mac.add_image(tag, &json!({"cpu": 5}))?;
    }
    use_once(&scene, "a").await?;
    let second = json!({"image": tags[1], "command": ["true"]});
    scene.create(&scene.pod("second", &second, &json!({}))).await?;
    scene.phase("second", "Succeeded").await?;
    scene.kubectl.run(["delete", "pod", "second"]).await?;
    used(&scene, &running, &[("b", MIB)]).await?;
    let digest = digest(&scene, "a")?;
    let image = repository(&scene, "a").join(&digest);
    let base = format!("tk-base-{}", &digest["sha256:".len()..][..32]);
    running.kill9()?;
    halve(&scene, &base)?;

    let mortal = Mortal::start(&scene, &["agent.collect.rest"])?;
    lack_space(&scene).await?;
    mortal.die().await?;
    ensure!(is_there(&scene, &base), "{}", scene.agent_log());
    Mortal::start(&scene, &["agent.collect.tag"])?.die().await?;
    let list = scene.mac.tart(["list", "--source", "oci", "--quiet"]).await?;
    let count = list.lines().filter(|name| tags.iter().any(|tag| tag == name)).count();
    ensure!(count == 1 && image.join("disk.img").exists(), "{list}");
    let _agent = dies_at(&scene, &["agent.collect.tag"]).await?;
    left(&scene, &["b"], 1).await?;
    wait::eventually("an image that is gone and forgotten", DEADLINE, async || {
        ensure!(!image.exists() && !dir(&scene, &base).exists(), "it is there");
        ensure!(!std::fs::read_to_string(record(&scene))?.contains(&digest), "it is known");
        Ok(())
    })
    .await
    .with_context(|| scene.agent_log())
}
