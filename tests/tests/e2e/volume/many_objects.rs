//! Pods that name more objects than one connection to the API server carries watches.

use anyhow::Result;
use serde_json::json;

use crate::scene::{PodView as _, Scene};

/// More than the API server answers at once on one connection.
const OBJECTS: usize = 130;

#[tokio::test]
async fn pod_with_130_optional_config_maps_starves_no_other_pod() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("many").await?;
    // The first is watched and the last one is polled.
    scene.config_map("map-0", "first", "watched").await?;
    scene.config_map(&format!("map-{}", OBJECTS - 1), "last", "polled").await?;
    let maps =
        (0..OBJECTS).map(|number| json!({"configMap": {"name": format!("map-{number}"), "optional": true}}));
    let greedy = scene
        .pod("greedy")
        .mounted("maps", json!({"projected": {"sources": maps.collect::<Vec<_>>()}}))
        .sh("cat /private/tmp/maps/first /private/tmp/maps/last; while :; do sleep 1; done")
        .grace(1)
        .create_until("Running")
        .await?;
    // The watches of the first Pod stay open while the next one runs from beginning to end.
    let said = scene.pod("next").sh("echo well").output().await?;
    assert_eq!(said, ["well"]);
    let greedy = scene.pods.get(greedy.metadata.name.as_deref().unwrap_or_default()).await?;
    assert!(greedy.main().is_running());
    Ok(())
}
