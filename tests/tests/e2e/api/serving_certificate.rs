//! The certificate of the kubelet API.

use std::os::unix::fs::PermissionsExt;

use anyhow::{Result, ensure};
use http::Method;
use tart_kubelet_tests::kubeconfig::Credentials;
use tart_kubelet_tests::wait;

use crate::scene::{DEADLINE, Scene, ask};

#[tokio::test]
async fn serving_certificate_is_the_clusters_once_it_is_approved_and_survives_the_agent() -> Result<()> {
    let (scene, agent) = Scene::with_agent("serves").await?;
    let api_server = || Credentials::Certificate(scene.control_plane.kubelet_client().clone());
    let healthz = async || {
        let client = scene.node_client(&api_server()).await?;
        ask(&client, Method::GET, "/healthz").await
    };
    let before = healthz().await;
    ensure!(format!("{:?}", before.unwrap_err()).contains("UnknownIssuer"), "it is self-signed at first");
    scene.approve_serving_certificate(&agent).await?;
    assert_eq!(healthz().await?, (200, "ok".to_owned()));
    let key = scene.agent.state_dir().join("pki/server-current.pem");
    assert_eq!(std::fs::metadata(&key)?.permissions().mode() & 0o777, 0o600);
    ensure!(!key.with_file_name("server-pending.key").exists(), "nothing is pending");

    let request = scene.serving_request(&[]).await?;
    let agent = agent.restart()?;
    wait::eventually("the same certificate", DEADLINE, async || {
        assert_eq!(healthz().await?, (200, "ok".to_owned()));
        Ok(())
    })
    .await?;
    assert_eq!(scene.serving_request(&[]).await?, request, "the next agent asks for no other certificate");

    // Another address needs another certificate.
    agent.kill9()?;
    let _agent = scene.agent.clone().flag("--node-ip", "127.0.0.2").start()?;
    let other = scene.serving_request(&[&request]).await?;
    ensure!(other != request);
    Ok(())
}
