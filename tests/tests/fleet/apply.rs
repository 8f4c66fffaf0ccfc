//! A new Mac, from nothing to a Node.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use tart_kubelet_tests::programs;
use tart_kubelet_tests::wait::eventually;

use super::scene::{BINARY, LABEL, PLIST, Scene};

#[tokio::test]
async fn a_new_mac_is_a_ready_node_after_one_apply_and_a_second_one_changes_nothing() -> Result<()> {
    let Some(scene) = Scene::new("fleet-new").await? else { return Ok(()) };
    let plan = scene.host("plan", scene.agent(), &[]).await?.ok()?;
    ensure!(plan.contains("differs  passwordless sudo"), "{plan}");
    ensure!(!scene.mac.path(BINARY).exists(), "a plan has installed the agent");

    let applied = scene.host("apply", scene.agent(), &[]).await?.ok()?;
    ensure!(applied.contains("changed  agent\n") && applied.contains("done: "), "{applied}");
    scene.until_ready().await?;
    scene.keeps_its_secrets(&[]).await?;

    let before = (scene.pid().await?, scene.inode(PLIST)?, scene.inode(BINARY)?);
    for verb in ["apply", "roll", "plan"] {
        let again = scene.host(verb, scene.agent(), &[]).await?.ok()?;
        ensure!(again.contains("nothing to change: the Mac is as it should be"), "{verb}: {again}");
        ensure!(!again.contains("changed ") && !again.contains("copying"), "{verb}: {again}");
        ensure!(
            before == (scene.pid().await?, scene.inode(PLIST)?, scene.inode(BINARY)?),
            "a second run, {verb}, changed the Mac"
        );
    }
    Ok(())
}

/// An archive of tart, laid out as its makers release it. The program in it starts the Mac's simulated tart.
pub(crate) fn tart_archive(scene: &Scene) -> Result<PathBuf> {
    let directory = scene.mac.sandbox().directory("tart-archive")?;
    let programs = directory.join("tart.app/Contents/MacOS");
    std::fs::create_dir_all(&programs)?;
    programs::write(&programs.join("tart"), "#!/bin/sh\nexec /opt/homebrew/bin/tart \"$@\"\n")?;
    let archive = directory.join("tart.tar.gz");
    let made =
        Command::new("tar").arg("-czf").arg(&archive).arg("-C").arg(&directory).arg("tart.app").status()?;
    ensure!(made.success(), "cannot make {}", archive.display());
    Ok(archive)
}

#[tokio::test]
async fn tart_comes_from_an_archive_if_it_is_the_version_that_was_asked_for() -> Result<()> {
    let Some(scene) = Scene::new("fleet-tart").await? else { return Ok(()) };
    let archive = format!("--tart-archive={}", tart_archive(&scene)?.display());
    let wrong = scene.host("apply", scene.agent(), &[&archive, "--tart-version=2.0.0"]).await?.failed()?;
    ensure!(wrong.contains("failed   tart: ") && wrong.contains("not 2.0.0"), "{wrong}");
    ensure!(!scene.mac.path("/usr/local/bin/tart").exists(), "a tart of another version is installed");

    let version = scene.mac.ssh("/opt/homebrew/bin/tart --version").await?.ok()?;
    let flags = [archive, format!("--tart-version={}", version.trim())];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let applied = scene.host("apply", scene.agent(), &flags).await?.ok()?;
    ensure!(applied.contains("changed  tart\n") && applied.contains("copying  tart.tar.gz: "), "{applied}");
    scene.until_ready().await?;
    let job = scene.mac.ssh(&format!("launchctl print system/{LABEL}")).await?.ok()?;
    ensure!(job.contains("--tart-binary=/usr/local/bin/tart"), "{job}");
    let again = scene.host("roll", scene.agent(), &flags).await?.ok()?;
    ensure!(again.contains("nothing to change"), "{again}");
    Ok(())
}

#[tokio::test]
async fn the_copy_of_a_binary_is_shown_as_it_goes() -> Result<()> {
    let Some(scene) = Scene::new("fleet-copy").await? else { return Ok(()) };
    let megabytes = |agent: &Path| -> Result<String> {
        let tenths = agent.metadata()?.len() / 100_000;
        Ok(format!("{}.{} MB", tenths / 10, tenths % 10))
    };
    let size = megabytes(scene.agent())?;
    let applied = scene.host("apply", scene.agent(), &[]).await?.ok()?;
    let lines: Vec<&str> =
        applied.lines().filter(|line| line.contains("  copying  tart-kubelet: ")).collect();
    ensure!(lines.len() == 4 && lines.iter().all(|line| line.ends_with(&format!(" of {size}"))), "{applied}");
    ensure!(lines[3].ends_with(&format!(": {} of {size}", size.trim_end_matches(" MB"))), "{applied}");
    ensure!(!applied.contains('\r') && !applied.contains('\x1b'), "{applied}");

    // A terminal shows a bar that moves, and nothing of it is left at the end.
    let size = megabytes(scene.other_agent())?;
    let shown = scene.host_on_terminal("roll", scene.other_agent()).await?;
    let bars: Vec<&str> = shown.split("\r\x1b[K").filter(|text| text.starts_with("  copying  ")).collect();
    ensure!(bars.len() > 20 && bars.iter().all(|bar| !bar.contains('\n')), "{shown}");
    ensure!(bars[0].contains("tart-kubelet.other [....") && bars[0].ends_with(&size), "{shown}");
    ensure!(bars[bars.len() - 1].contains("####] "), "{shown}");
    let last = shown.lines().last().unwrap_or_default();
    ensure!(last.ends_with("steps changed the Mac"), "{shown}");
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
