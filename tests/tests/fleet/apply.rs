//! A new Mac, from nothing to a Node.

use anyhow::{Result, ensure};

use super::scene::{BINARY, PLIST, Scene};

#[tokio::test]
async fn a_new_mac_is_a_ready_node_after_one_apply_and_a_second_one_changes_nothing() -> Result<()> {
    let Some(scene) = Scene::new("fleet-new").await? else { return Ok(()) };
    let plan = scene.host("plan", scene.agent(), &[]).await?.ok()?;
    ensure!(plan.contains("differs  passwordless sudo"), "{plan}");
    ensure!(!scene.mac.path(BINARY).exists(), "a plan has installed the agent");

    let applied = scene.host("apply", scene.agent(), &[]).await?.ok()?;
    ensure!(applied.contains("changed  agent\n") && applied.contains("done: "), "{applied}");
    scene.until_ready().await?;

    let before = (scene.pid().await?, scene.inode(PLIST)?, scene.inode(BINARY)?);
    let again = scene.host("roll", scene.agent(), &[]).await?.ok()?;
    ensure!(again.contains("nothing to change: the Mac is as it should be"), "{again}");
    ensure!(!again.contains("changed "), "{again}");
    ensure!(
        before == (scene.pid().await?, scene.inode(PLIST)?, scene.inode(BINARY)?),
        "a second run changed the Mac"
    );
    Ok(())
}

#[tokio::test]
async fn a_mac_with_another_host_key_gets_nothing() -> Result<()> {
    let Some(scene) = Scene::new("fleet-other-key").await? else { return Ok(()) };
    let other = format!("--host-key=SHA256:{}", "A".repeat(43));
    let refused = scene.host("apply", scene.agent(), &[&other]).await?.failed()?;
    ensure!(
        refused.contains(scene.mac.host_key_fingerprint()) && refused.contains("is expected"),
        "{refused}"
    );
    ensure!(!scene.mac.path(BINARY).exists(), "the agent was installed");
    let right = format!("--host-key={}", scene.mac.host_key_fingerprint());
    scene.host("plan", scene.agent(), &[&right]).await?.ok().map(drop)
}
