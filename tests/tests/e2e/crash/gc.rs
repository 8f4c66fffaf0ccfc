//! The agent dies while it deletes orphans, base VMs and images.

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tart_kubelet_tests::wait;

use super::{CrashingAgent, crash_at};
use crate::disk_space::{
    GIB, MIB, digest, idle_agent, images_left, pull_without_space, reference, repository_dir, small_disk,
    use_images, use_once,
};
use crate::gc::base_vms::{forget_image, record};
use crate::gc::{NO_POD, ORPHAN, clone_vm, collected, frequent_gc, run_vm, vm_exists};
use crate::image::base_vm::run_to_its_end;
use crate::scene::{DEADLINE, Scene, base_of};

/// Leaves a VM as an interrupted deletion does: tart deletes no directory that is no VM to it.
fn delete_half(scene: &Scene, vm: &str) -> Result<()> {
    Ok(std::fs::remove_file(scene.vm_dir(vm).join("config.json"))?)
}

#[tokio::test]
async fn agent_crash_leaves_no_orphan() -> Result<()> {
    let mut scene = Scene::new("dies-orphan").await?;
    scene.agent = frequent_gc(&scene.agent);
    let rest = format!("tk-{NO_POD}-1");
    clone_vm(&scene, ORPHAN).await?;
    let process = run_vm(&scene, ORPHAN).await?;
    CrashingAgent::start(&scene, &["agent.gc.stopped"])?.crash().await?;
    process.wait_for_exit(DEADLINE).await?;
    ensure!(vm_exists(&scene, ORPHAN), "{}", scene.agent_log());
    CrashingAgent::start(&scene, &["agent.gc.deleted"])?.crash().await?;
    ensure!(!scene.vm_dir(ORPHAN).exists(), "{}", scene.agent_log());

    clone_vm(&scene, &rest).await?;
    delete_half(&scene, &rest)?;
    CrashingAgent::start(&scene, &["agent.gc.deleted"])?.crash().await?;
    ensure!(vm_exists(&scene, &rest), "{}", scene.agent_log());
    let agent = scene.agent.start()?;
    collected(&scene, &agent, &rest).await?;
    scene.nothing_left().await
}

#[tokio::test]
async fn agent_crash_leaves_no_unneeded_base_vm() -> Result<()> {
    let mut scene = Scene::new("dies-base").await?;
    scene.agent = frequent_gc(&scene.agent);
    let running = scene.agent.start()?;
    run_to_its_end(&scene, "first").await?;
    let base = &scene.only_base().await?;
    running.kill9()?;
    forget_image(&scene, base)?;
    delete_half(&scene, base)?;
    CrashingAgent::start(&scene, &["agent.gc.base"])?.crash().await?;
    ensure!(vm_exists(&scene, base), "{}", scene.agent_log());
    let agent = scene.agent.start()?;
    collected(&scene, &agent, base).await?;
    run_to_its_end(&scene, "again").await?;
    assert_eq!(&scene.only_base().await?, base);
    Ok(())
}

#[tokio::test]
async fn agent_crash_leaves_no_tag_of_a_deleted_image() -> Result<()> {
    let Some((mut scene, _disk)) = small_disk("dies-tags", GIB).await? else { return Ok(()) };
    scene.agent = idle_agent(&scene);
    let running = scene.start(&scene.agent).await?;
    let tags = [reference("a"), "registry.test/macos/a:2".to_owned()];
    for tag in &tags {
        scene.mac.add_image(tag, &json!({"cpu": 5}))?;
    }
    use_once(&scene, "a").await?;
    scene.pod("second").image(&tags[1]).command(["true"]).create_until("Succeeded").await?;
    scene.delete("second").await?;
    use_images(&scene, &running, &[("b", MIB)]).await?;
    let digest = digest(&scene, "a")?;
    let image = repository_dir(&scene, "a").join(&digest);
    let base = base_of(&format!("registry.test/macos/a@{digest}"));
    running.kill9()?;
    delete_half(&scene, &base)?;

    let crashing = CrashingAgent::start(&scene, &["agent.collect.rest"])?;
    pull_without_space(&scene).await?;
    crashing.crash().await?;
    ensure!(vm_exists(&scene, &base), "{}", scene.agent_log());
    CrashingAgent::start(&scene, &["agent.collect.tag"])?.crash().await?;
    let list = scene.mac.tart(["list", "--source", "oci", "--quiet"]).await?;
    let count = list.lines().filter(|name| tags.iter().any(|tag| tag == name)).count();
    ensure!(count == 1 && image.join("disk.img").exists(), "{list}");
    let _agent = crash_at(&scene, &["agent.collect.tag"]).await?;
    images_left(&scene, &["b"], 1).await?;
    wait::eventually("an image that is deleted, and gone from the record", DEADLINE, async || {
        ensure!(!image.exists() && !scene.vm_dir(&base).exists(), "it is there");
        ensure!(!std::fs::read_to_string(record(&scene))?.contains(&digest), "it is known");
        Ok(())
    })
    .await
    .with_context(|| scene.agent_log())
}
