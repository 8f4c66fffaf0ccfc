//! A new Mac, from nothing to a Node.

use std::time::Duration;

use anyhow::{Result, ensure};
use tart_kubelet_tests::wait::eventually;

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

#[tokio::test]
async fn the_agent_follows_its_log_when_newsyslog_rotates_it() -> Result<()> {
    let Some(scene) = Scene::applied("fleet-log").await? else { return Ok(()) };
    let log = "/var/log/tart-kubelet.log";
    let (pid, before) = (scene.pid().await?, scene.inode(log)?);
    scene.mac.ssh("sudo -n newsyslog -F -f /etc/newsyslog.d/tart-kubelet.conf").await?.ok()?;
    ensure!(scene.inode(log)? != before, "newsyslog has made no new log");
    let access = scene.mac.ssh(&format!("stat -f '%Su:%Sg %Lp' {log}")).await?.ok()?;
    assert_eq!(access.trim(), "m1:staff 600");
    // A process of the Mac is a process of this machine, under another number.
    let open = format!("sudo -n readlink /proc/{pid}/fd/2");
    eventually("the agent to open its new log", Duration::from_mins(1), async || {
        let target = scene.mac.ssh(&open).await?.ok()?;
        ensure!(target.trim().ends_with("/var/log/tart-kubelet.log"), "it writes to {target}");
        Ok(())
    })
    .await?;
    assert_eq!(scene.pid().await?, pid, "the agent was restarted");
    Ok(())
}
