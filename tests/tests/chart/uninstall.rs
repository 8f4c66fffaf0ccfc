//! What `helm uninstall` does to machines, and the way back.

use anyhow::{Result, ensure};
use tart_kubelet_tests::wait::eventually;

use super::install::{DEADLINE, RELEASE, Release};

/// Helm takes the provider and its rights away first. Its machines wait for it until the chart is installed again, as docs/run-a-fleet.md says.
#[tokio::test]
async fn machines_outlive_a_release_that_was_uninstalled_too_early_and_an_install_ends_them() -> Result<()> {
    let release = Release::new().await?;
    release.deploy("install", &[]).await?;
    let provider = release.provider().await?;
    let claims = ["get", "secret", "macs", "-o", "jsonpath={.metadata.annotations}"];
    eventually("a Mac for each machine", DEADLINE, async || {
        provider.ensure_running()?;
        let annotations = release.kubectl.run(claims).await?;
        let claimed = annotations.matches("claim.tuist.dev/").count();
        ensure!(claimed == 2, "{annotations}\n{}", provider.last_lines());
        Ok(())
    })
    .await?;

    // In a cluster the provider goes with its Deployment.
    drop(provider);
    release.helm.run(["uninstall", RELEASE]).await?;
    eventually("machines that are being deleted", DEADLINE, async || {
        let machines = release.get("scalewayapplesiliconmachines").await?;
        let going = machines.iter().filter(|one| one["metadata"]["deletionTimestamp"].is_string()).count();
        ensure!((machines.len(), going) == (2, 2), "{machines:?}");
        Ok(())
    })
    .await?;
    let annotations = release.kubectl.run(claims).await?;
    ensure!(annotations.matches("claim.tuist.dev/").count() == 2, "a Mac went back: {annotations}");

    release.deploy("install", &["macosFleet.enabled=false"]).await?;
    let provider = release.provider().await?;
    eventually("no machines and free Macs", DEADLINE, async || {
        provider.ensure_running()?;
        let left = release.get("scalewayapplesiliconmachines").await?;
        ensure!(left.is_empty(), "{left:?}\n{}", provider.last_lines());
        let annotations = release.kubectl.run(claims).await?;
        ensure!(!annotations.contains("claim.tuist.dev"), "{annotations}");
        Ok(())
    })
    .await
}
