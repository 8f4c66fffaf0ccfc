//! `kubectl debug`.

use anyhow::{Result, ensure};

use super::kubectl::{TRANSPORTS, Transport};
use crate::scene::{SLEEP, Scene};

#[tokio::test]
async fn kubectl_debug_shows_why_no_container_joins_a_vm() -> Result<()> {
    let (scene, _agent) = Scene::with_api("debug").await?;
    scene.pod("one").command(SLEEP).create_until("Running").await?;
    for (transport, name) in TRANSPORTS.into_iter().zip(["first", "second"]) {
        let arguments = ["debug", "one", "-i", "--image=busybox", "-c", name];
        let done = transport.run(&scene, &arguments, Vec::new()).await?;
        let said = format!("{}{}", done.text(), done.stderr);
        let words = format!("container {name} cannot be started: a VM cannot be joined by a container");
        ensure!(said.contains(&words) && said.contains("kubectl exec"), "{transport:?}: {done:?}");
    }
    // The Pod itself does not notice.
    let done = Transport::WebSockets.run(&scene, &["exec", "one", "--", "true"], Vec::new()).await?;
    ensure!(done.code == Some(0), "{done:?}");
    Ok(())
}
