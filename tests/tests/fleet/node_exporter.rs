//! The exporter of a Mac's metrics.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tart_kubelet_tests::programs;
use tart_kubelet_tests::wait::eventually;

use super::scene::Scene;

pub(crate) const PLIST: &str = "/Library/LaunchDaemons/dev.tuist.node-exporter.plist";
const LABEL: &str = "dev.tuist.node-exporter";

/// An exporter, and one that does the same with other bytes.
pub(crate) fn exporters(scene: &Scene) -> Result<(PathBuf, PathBuf)> {
    let directory = scene.mac.sandbox().directory("node-exporter")?;
    let (one, other) = (directory.join("one"), directory.join("other"));
    let mut bytes = std::fs::read(programs::find("node_exporter")?)?;
    std::fs::write(&one, &bytes)?;
    bytes.extend_from_slice(b"another release");
    std::fs::write(&other, bytes)?;
    Ok((one, other))
}

async fn pid(scene: &Scene) -> Result<u32> {
    let printed = scene.mac.ssh(&format!("launchctl print system/{LABEL}")).await?.ok()?;
    let line = printed.lines().find_map(|line| line.strip_prefix("\tpid = "));
    line.context("the exporter does not run")?.parse().context("a PID")
}

#[tokio::test]
async fn an_exporter_is_installed_brought_up_to_date_and_removed() -> Result<()> {
    let Some(scene) = Scene::new("fleet-exporter").await? else { return Ok(()) };
    let (one, other) = exporters(&scene)?;
    // The Mac's ports are this machine's.
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let flags = |program: &Path| {
        [format!("--node-exporter={}", program.display()), format!("--node-exporter-listen={address}")]
    };
    let run = async |verb: &str, program: &Path| {
        let flags = flags(program);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        scene.host(verb, scene.agent(), &flags).await?.ok()
    };
    let applied = run("apply", &one).await?;
    ensure!(applied.contains("changed  node_exporter\n"), "{applied}");
    eventually("the exporter to serve metrics", Duration::from_mins(1), async || {
        let served = scene.mac.ssh(&format!("curl -s http://{address}/metrics")).await?.ok()?;
        ensure!(served.contains("node_exporter_build_info"), "{served}");
        Ok(())
    })
    .await?;
    let first = pid(&scene).await?;
    let again = run("roll", &one).await?;
    ensure!(again.contains("nothing to change"), "{again}");

    let agent = scene.pid().await?;
    let rolled = run("roll", &other).await?;
    ensure!(rolled.contains("changed  node_exporter\n") && !rolled.contains("changed  agent\n"), "{rolled}");
    ensure!(pid(&scene).await? != first, "the old process still runs");
    ensure!(scene.pid().await? == agent, "the agent was restarted");

    let removed = scene.host("roll", scene.agent(), &[]).await?.ok()?;
    ensure!(removed.contains("changed  node_exporter\n"), "{removed}");
    let left = scene
        .mac
        .ssh("ls -A /usr/local/bin /Library/LaunchDaemons /var/db/dev.tuist.tart-provider")
        .await?
        .ok()?;
    ensure!(!left.contains("node_exporter") && !left.contains("node-exporter"), "{left}");
    let printed = scene.mac.ssh(&format!("launchctl print system/{LABEL}")).await?;
    ensure!(printed.code() == 113, "{printed:?}");
    Ok(())
}
