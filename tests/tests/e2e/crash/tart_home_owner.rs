//! The agent dies while it writes its Node and cluster into tart's home.

use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::CrashingAgent;
use crate::scene::Scene;

/// The owner that is written in tart's home.
fn owner(path: &Path) -> Result<Option<Value>> {
    match std::fs::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        text => Ok(Some(serde_json::from_slice(&text?)?)),
    }
}

#[tokio::test]
async fn agent_crash_keeps_the_owner_of_tarts_home() -> Result<()> {
    let scene = Scene::new("dies-claim").await?;
    let home = scene.mac.tart_home();
    let path = home.join("tart-kubelet.json");
    // No owner, another Node, and this Node without a cluster.
    for before in [None, Some(json!("another")), Some(json!(scene.node))] {
        if let Some(before) = &before {
            std::fs::write(&path, before.to_string())?;
        }
        CrashingAgent::start(&scene, &["write.tart-kubelet.json"])?.crash().await?;
        assert_eq!(owner(&path)?, before);
    }
    let _agent = scene.start(&scene.agent).await?;
    let after = owner(&path)?.unwrap_or_default();
    assert_eq!(after["node"], json!(scene.node));
    let server = after["cluster"]["server"].as_str().unwrap_or_default();
    ensure!(server.starts_with(scene.control_plane.server()), "{after}");
    ensure!(!home.join("tart-kubelet.tmp").exists(), "half a file is left");
    Ok(())
}
