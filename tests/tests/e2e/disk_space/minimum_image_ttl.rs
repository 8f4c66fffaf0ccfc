//! An image that came a moment ago stays, however little room there is.

use anyhow::{Result, ensure};
use serde_json::json;

use super::image_gc::{MIB, SIZE, add_image, agent, left, pod, reference, small};
use super::reclaim::{more_looks, used};

#[tokio::test]
async fn nothing_young_goes_and_whoever_lacks_room_is_told_so() -> Result<()> {
    let Some((scene, disk)) = small("young", 400 * MIB).await? else { return Ok(()) };
    let running = agent(&scene, 70, 50).flag("--minimum-image-ttl-duration", "1h").start()?;
    used(&scene, &running, &[("a", SIZE.into()), ("b", SIZE.into())]).await?;
    disk.fill(200 * MIB)?;
    more_looks(&running).await?;
    left(&scene, &["a", "b"], 2).await?;
    let young = running.metric("tart_kubelet_image_gc_kept{reason=\"young\"}").await?;
    ensure!((young - 2.0).abs() < f64::EPSILON, "{young} are young");
    let table = running.agent().run(&["gc", "--dry-run"]).await?;
    let kept = table.lines().filter(|line| line.ends_with("keep       it was pulled a moment ago")).count();
    ensure!(kept == 2, "{table}");

    // Not even for somebody who has found no space.
    add_image(&scene, "large", 90 * MIB)?;
    scene.create(&pod(&scene, "large", "large", &json!({"command": ["true"]}))).await?;
    let words = format!(
        "there is no space for image `{}`, and no image on this host may be deleted for it: each one is in use, new, ",
        reference("large")
    );
    scene.told_as("large", "FreeDiskSpaceFailed", &words).await?;
    left(&scene, &["a", "b"], 2).await?;

    // It was nothing but their age that kept them.
    running.kill9()?;
    let _running = agent(&scene, 70, 50).start()?;
    scene.phase("large", "Succeeded").await.map(drop)
}
