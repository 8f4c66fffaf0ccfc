//! The host's disk: how Pods are measured, and what the agent deletes when the disk is full.

mod ephemeral_storage;
mod eviction_ranking;
mod image_gc;
mod minimum_image_ttl;
mod out_of_space;
mod reclaim;
mod reserve;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tart_kubelet_tests::agent::{Agent, RunningAgent};
use tart_kubelet_tests::disk::SmallDisk;
use tart_kubelet_tests::mac::Fault;
use tart_kubelet_tests::wait;

use crate::scene::{DEADLINE, PodBuilder, PodView as _, Scene};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;
/// The size of most images.
pub(crate) const SIZE: u32 = 60 << 20;

/// A scene whose tart has a small disk, of which there is always too little to an agent; `None` where the test cannot mount one.
pub(crate) async fn small_disk(name: &str, size: u64) -> Result<Option<(Scene, SmallDisk)>> {
    let scene = Scene::new(name).await?;
    let disk = SmallDisk::mount(scene.mac.tart_home(), size)?;
    Ok(disk.map(|disk| (scene, disk)))
}

/// An agent with image GC thresholds in percent, for images of any age.
pub(crate) fn agent_with_thresholds(scene: &Scene, high: u8, low: u8) -> Agent {
    scene
        .agent
        .clone()
        .flag("--image-gc-high-threshold", &high.to_string())
        .flag("--image-gc-low-threshold", &low.to_string())
        .flag("--minimum-image-ttl-duration", "0s")
}

/// An agent that deletes images only when something finds no space.
pub(crate) fn idle_agent(scene: &Scene) -> Agent {
    agent_with_thresholds(scene, 100, 99)
}

/// The same agent, under disk pressure with less than 15 % of the disk left.
pub(crate) fn evicting(agent: Agent) -> Agent {
    agent.flag("--eviction-hard", "imagefs.available<15%").flag("--eviction-pressure-transition-period", "1s")
}

pub(crate) fn reference(name: &str) -> String {
    format!("registry.test/macos/{name}:1")
}

/// Adds an image of this size to the registry.
pub(crate) fn add_image(scene: &Scene, name: &str, size: u64) -> Result<()> {
    let directory = scene.mac.add_image(&reference(name), &json!({}))?;
    let files = directory.join("rootfs/Users/admin");
    std::fs::create_dir_all(&files)?;
    std::fs::write(files.join("weight"), vec![1; usize::try_from(size)?])?;
    Ok(())
}

/// A Pod of such an image.
fn pod<'a>(scene: &'a Scene, name: &str, image: &str) -> PodBuilder<'a> {
    scene.pod(name).image(reference(image))
}

/// Runs a Pod of an image to its end, and deletes it.
pub(crate) async fn use_once(scene: &Scene, image: &str) -> Result<()> {
    let ended = pod(scene, image, image).command(["true"]).create_until("Succeeded").await?;
    scene.delete(image).await?;
    // The Pod may be gone before its VM, and the VM uses the image.
    let vm = format!("tk-{}-0", ended.uid_of()?);
    wait::eventually("a Mac without the Pod's VM", DEADLINE, async || {
        let vms = scene.vms().await?;
        ensure!(!vms.contains(&vm), "it has {vms:?}");
        Ok(())
    })
    .await
}

/// The short names of the images in tart's cache.
async fn cached(scene: &Scene) -> Result<BTreeSet<String>> {
    let list = scene.mac.tart(["list", "--source", "oci", "--quiet"]).await?;
    let tags = list.lines().filter_map(|name| name.strip_suffix(":1"));
    Ok(tags.filter_map(|name| name.rsplit('/').next().map(str::to_owned)).collect())
}

/// Waits until tart's cache has these images and no others, and there are so many base VMs.
pub(crate) async fn images_left(scene: &Scene, images: &[&str], bases: usize) -> Result<()> {
    let expected: BTreeSet<String> = images.iter().map(|name| (*name).to_owned()).collect();
    let what = format!("{images:?} and {bases} bases");
    let settled = wait::eventually(&what, DEADLINE, async || {
        let (found, made) = (cached(scene).await?, scene.bases().await?.len());
        ensure!((&found, made) == (&expected, bases), "there are {found:?} and {made} bases");
        Ok(())
    });
    settled.await.with_context(|| scene.agent_log())
}

/// Adds images and uses each once, so that no Pod needs any of them any more. The first is the least recently used.
pub(crate) async fn use_images(scene: &Scene, running: &RunningAgent, images: &[(&str, u64)]) -> Result<()> {
    scene.node_ready(running).await?;
    for (name, size) in images {
        add_image(scene, name, *size)?;
        use_once(scene, name).await?;
    }
    Ok(())
}

/// Creates a Pod whose image finds no space, so that the agent deletes another image.
pub(crate) async fn pull_without_space(scene: &Scene) -> Result<()> {
    add_image(scene, "other", 3 * MIB)?;
    scene.mac.set_fault(Fault::NoSpace, "pull")?;
    pod(scene, "lacks", "other").create().await
}

/// Where tart keeps the images of a repository.
pub(crate) fn repository_dir(scene: &Scene, name: &str) -> PathBuf {
    scene.mac.tart_home().join("cache/OCIs/registry.test/macos").join(name)
}

/// The digest of the only image in a repository.
pub(crate) fn digest(scene: &Scene, name: &str) -> Result<String> {
    let names = std::fs::read_dir(repository_dir(scene, name))?.collect::<Result<Vec<_>, _>>()?;
    let mut names = names.into_iter().filter_map(|entry| entry.file_name().into_string().ok());
    names.find(|name| name.starts_with("sha256:")).context("there is no image")
}

/// Waits until nothing is left of an image.
async fn image_gone(image: &Path, running: &RunningAgent) -> Result<()> {
    wait::eventually("the end of the image", DEADLINE, async || {
        ensure!(!image.exists(), "{}", running.log()?);
        Ok(())
    })
    .await
}

/// Waits for more passes of the image collector. The first may have begun before now.
pub(crate) async fn image_gc_passes(running: &RunningAgent, more: f64) -> Result<()> {
    let passes = async || running.metric("tart_kubelet_image_gc_pass_duration_seconds_count").await;
    let before = wait::eventually("figures", DEADLINE, async || passes().await).await?;
    wait::eventually("more passes of the image collector", DEADLINE, async || {
        let now = passes().await?;
        ensure!(now >= before + more, "{now}, {before} before");
        Ok(())
    })
    .await
}

/// Creates a `ConfigMap` with a key `large` of this size.
async fn large_config_map(scene: &Scene, name: &str, size: usize) -> Result<()> {
    let file = scene.mac.host().join("large");
    std::fs::write(&file, "x".repeat(size))?;
    let from_file = format!("--from-file=large={}", file.display());
    scene.kubectl.run(["create", "configmap", name, &from_file]).await.map(drop)
}

/// Writes lines as long as a block without end, so that a full disk has no room for them whatever else is deleted.
const LONG_LINES: &str =
    "line=$(head -c 8000 /dev/zero | tr '\\0' x); while :; do echo $line; sleep 0.02; done";

/// Where the Pods of these tests mount a volume.
const FILES: &str = "/Users/admin/files";
