//! A flood on the kubelet API keeps no other client out, and delays neither the heartbeat nor Pods.

use anyhow::{Context, Result, ensure};
use http::{Method, Request};
use serde_json::json;
use tart_kubelet_tests::kubeconfig::Credentials;
use tart_kubelet_tests::kubelet::KubeletClient;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::scene::{PodView as _, Scene, ask};

/// More than the agent lets wait.
const SILENT: usize = 200;
/// The most bytes of a request's head.
const MAX_HEAD: usize = 128 << 10;

#[tokio::test]
async fn silent_and_slow_connections_keep_no_client_out_and_delay_nothing() -> Result<()> {
    let (scene, _agent) = Scene::with_api("flood").await?;
    let port = scene.kubelet_port().await?;
    let mut silent = Vec::new();
    for number in 0..SILENT {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        if number % 2 == 0 {
            // The first bytes of a handshake that never goes on.
            stream.write_all(&[0x16, 0x03, 0x01]).await?;
        }
        silent.push(stream);
    }
    let api_server = Credentials::Certificate(scene.control_plane.kubelet_client().clone());
    let client = scene.node_client(&api_server).await?;
    assert_eq!(ask(&client, Method::GET, "/healthz").await?, (200, "ok".to_owned()));
    scene.pod("starts").sh("echo here").create_until("Succeeded").await?;
    assert_eq!(scene.logs(["starts"]).await?, "here\n");
    scene.next_lease_renewal().await?;

    Ok(())
}

#[tokio::test]
async fn request_whose_head_is_larger_than_the_limit_is_refused() -> Result<()> {
    let (scene, _agent) = Scene::with_api("head").await?;
    let api_server = Credentials::Certificate(scene.control_plane.kubelet_client().clone());
    let client = scene.node_client(&api_server).await?;
    let ask_with = async |length: usize| {
        let long = Request::get("/healthz").header("x-long", "a".repeat(length));
        client
            .send(long.body(kube::client::Body::empty())?)
            .await
            .map(|answer| answer.status().as_u16())
            .context("no answer")
    };
    // The request line and the client's own headers have less than 1 KiB.
    assert_eq!(ask_with(MAX_HEAD - 1024).await?, 200);
    assert_eq!(ask_with(MAX_HEAD).await?, 431);
    // Beyond twice the limit the agent may close the connection before the client has sent all of it.
    match ask_with(3 * MAX_HEAD).await {
        Ok(status) => assert_eq!(status, 431),
        Err(error) => ensure!(!format!("{error:?}").contains("Elapsed"), "{error:?}"),
    }
    assert_eq!(ask(&client, Method::GET, "/healthz").await?, (200, "ok".to_owned()));
    Ok(())
}

#[tokio::test]
async fn request_with_a_body_is_refused() -> Result<()> {
    let (scene, _agent) = Scene::with_api("body").await?;
    let kubelet = KubeletClient::new(scene.control_plane, &scene.node).await?;
    // Some clients send an empty object.
    kubelet.announce_body("/healthz", 64 << 10, 200).await?;
    kubelet.announce_body("/healthz", (64 << 10) + 1, 413).await
}

#[tokio::test]
async fn host_port_of_the_agent_is_refused_on_every_address() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("own-ports").await?;
    let port = scene.kubelet_port().await?;
    ensure!(port != 0, "the Node publishes the port that is bound");
    for (name, fields) in [("node", json!({})), ("elsewhere", json!({"hostIP": "127.0.0.9"}))] {
        let mut fields = fields;
        fields["containerPort"] = json!(443);
        fields["hostPort"] = json!(port);
        let pod =
            scene.pod(name).container(json!({"ports": [fields]})).bound().create_until("Failed").await?;
        assert_eq!(pod.reason(), Some("NodePorts"));
        let message = pod.message().context("no message")?;
        ensure!(message.contains(&format!("hostPort {port} is a port of the Node's agent")), "{message}");
    }
    scene.no_vms().await
}
