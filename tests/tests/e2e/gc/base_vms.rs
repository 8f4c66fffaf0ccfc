//! Base VMs that no VM of a Pod needs any more.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tart_kubelet_tests::agent::RunningAgent;
use tart_kubelet_tests::wait;

use super::{dry_run_row, frequent_gc};
use crate::image::base_vm::run_to_its_end;
use crate::scene::{DEADLINE, Scene, base_of};

/// The record of images.
pub(crate) fn record(scene: &Scene) -> PathBuf {
    scene.agent.state_dir().join("images.json")
}

/// Deletes the image of a base VM from the record.
pub(crate) fn forget_image(scene: &Scene, base: &str) -> Result<()> {
    let mut known: Value = serde_json::from_slice(&std::fs::read(record(scene))?)?;
    let images = known["images"].as_array_mut().context("no images")?;
    let before = images.len();
    images.retain(|image| image["digest"].as_str().is_none_or(|digest| base_of(digest) != base));
    ensure!(images.len() + 1 == before, "{known}");
    Ok(std::fs::write(record(scene), known.to_string())?)
}

/// Waits for two more passes of the collector, both after now.
async fn two_passes(agent: &RunningAgent) -> Result<()> {
    const PASSES: &str = "tart_kubelet_vm_gc_passes_total{result=\"success\"}";
    let mut before = None;
    wait::eventually("two more passes of the collector", DEADLINE, async || {
        let passes = agent.metric(PASSES).await?;
        ensure!(passes >= *before.get_or_insert(passes) + 2.0);
        Ok(())
    })
    .await
    .with_context(|| agent.log().unwrap_or_default())
}

#[tokio::test]
async fn collector_deletes_base_vm_that_is_not_in_the_record() -> Result<()> {
    let scene = Scene::new("lost-base").await?;
    let frequent = frequent_gc(&scene.agent);
    let agent = frequent.start()?;
    run_to_its_end(&scene, "first").await?;
    let base = &scene.only_base().await?;
    let other = "registry.test/macos/other:1";
    scene.mac.add_image(other, &json!({"cpu": 6}))?;
    scene.pod("lives").image(other).create_until("Running").await?;
    agent.kill9()?;
    forget_image(&scene, base)?;
    // A user clones a base VM. The collector goes by its name.
    scene.mac.tart(["clone", base, "tk-base-of-mine"]).await?;

    let agent = frequent.start()?;
    let deleted = "tart_kubelet_vm_gc_deleted_total{kind=\"base\"}";
    wait::eventually("the end of the base", DEADLINE, async || {
        ensure!((agent.metric(deleted).await? - 1.0).abs() < f64::EPSILON);
        Ok(())
    })
    .await
    .with_context(|| agent.log().unwrap_or_default())?;
    let left = scene.bases().await?;
    ensure!(!left.contains(base) && left.len() == 2, "{left:?}");
    let needed = left.iter().find(|name| *name != "tk-base-of-mine").context("no base is left")?;
    for (name, why) in
        [("tk-base-of-mine", "not made by this agent"), (needed, "VMs of Pods are cloned from it")]
    {
        let row = dry_run_row(&agent, name).await?;
        ensure!(row.contains(" keep ") && row.ends_with(why), "{row}");
    }
    // The image is still in tart's cache, and a Pod starts from it.
    scene.pod("again").command(["true"]).create_until("Succeeded").await?;
    scene.delete("again").await?;
    ensure!(scene.bases().await?.contains(base));
    scene.phase("lives", "Running").await.map(drop)
}

#[tokio::test]
async fn collector_keeps_base_vms_while_the_record_is_spoilt() -> Result<()> {
    let scene = Scene::new("spoilt-record").await?;
    let frequent = frequent_gc(&scene.agent);
    let agent = frequent.start()?;
    run_to_its_end(&scene, "first").await?;
    let base = &scene.only_base().await?;
    agent.kill9()?;
    std::fs::write(record(&scene), "{")?;
    let is_kept = async |agent: &RunningAgent, why: &str| -> Result<()> {
        two_passes(agent).await?;
        let row = dry_run_row(agent, base).await?;
        ensure!(row.contains(" keep ") && row.contains(why), "{row}");
        ensure!(scene.bases().await?.contains(base), "the base is gone");
        Ok(())
    };

    let agent = frequent.start()?;
    is_kept(&agent, "the record of images was spoilt").await?;
    // The agent writes another image into a new record, and the next agent reads that one.
    let other = "registry.test/macos/other:1";
    scene.mac.add_image(other, &json!({"cpu": 6}))?;
    scene.pod("second").image(other).command(["true"]).create_until("Succeeded").await?;
    let agent = agent.restart()?;
    is_kept(&agent, "the record of images was spoilt").await?;

    // A user deletes the spoilt record. A base VM whose image is not in tart's cache may be the only copy.
    let cache = scene.mac.tart_home().join("cache/OCIs");
    let aside = scene.mac.tart_home().join("cache-aside");
    std::fs::rename(&cache, &aside)?;
    std::fs::remove_file(record(&scene).with_extension("json.spoilt"))?;
    is_kept(&agent, "it may be the only copy").await?;
    std::fs::rename(&aside, &cache)?;
    wait::eventually("the end of the base", DEADLINE, async || {
        ensure!(!scene.bases().await?.contains(base));
        Ok(())
    })
    .await
}
