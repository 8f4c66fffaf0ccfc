//! `--minimum-image-ttl-duration`: the agent keeps an image that is younger, however full the disk is.

use anyhow::{Result, ensure};

use super::{
    MIB, SIZE, add_image, agent_with_thresholds, image_gc_passes, images_left, pod, reference, small_disk,
    use_images,
};

#[tokio::test]
async fn young_images_are_kept_and_the_failed_pull_is_reported() -> Result<()> {
    let Some((scene, disk)) = small_disk("young", 400 * MIB).await? else { return Ok(()) };
    let running = agent_with_thresholds(&scene, 70, 50).flag("--minimum-image-ttl-duration", "1h").start()?;
    use_images(&scene, &running, &[("a", SIZE.into()), ("b", SIZE.into())]).await?;
    disk.fill(200 * MIB)?;
    image_gc_passes(&running, 2.0).await?;
    images_left(&scene, &["a", "b"], 2).await?;
    let young = running.metric("tart_kubelet_image_gc_kept{reason=\"young\"}").await?;
    ensure!((young - 2.0).abs() < f64::EPSILON, "{young} are young");
    let table = running.agent().run(&["gc", "--dry-run"]).await?;
    let kept = table.lines().filter(|line| line.ends_with("keep       it was pulled a moment ago")).count();
    ensure!(kept == 2, "{table}");

    // The agent deletes them not even for a pull that finds no space.
    add_image(&scene, "large", 90 * MIB)?;
    pod(&scene, "large", "large").command(["true"]).create().await?;
    let words = format!(
        "there is no space for image `{}`, and no image on this host may be deleted for it: each one is in use, new, ",
        reference("large")
    );
    scene.event("large", "FreeDiskSpaceFailed", &words).await?;
    images_left(&scene, &["a", "b"], 2).await?;

    // Only their age has kept them.
    running.kill9()?;
    let _running = agent_with_thresholds(&scene, 70, 50).start()?;
    scene.phase("large", "Succeeded").await.map(drop)
}
