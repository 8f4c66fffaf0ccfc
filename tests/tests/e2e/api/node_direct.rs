//! What clients get that speak to the Node itself: each protocol of `WebSockets`, `/run`, and logs of one stream.

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::Method;
use tart_kubelet_tests::kubeconfig::Credentials;
use tart_kubelet_tests::kubelet::KubeletClient;
use tokio::time::timeout;

use crate::scene::{DEADLINE, SLEEP, Scene, ask};

/// A message as its channel and its bytes.
fn parse(message: &[u8], is_base64: bool) -> Result<(u8, Vec<u8>)> {
    let (channel, bytes) = message.split_first().context("a message without a channel")?;
    Ok(if is_base64 {
        (channel.checked_sub(b'0').context("not a digit")?, BASE64_STANDARD.decode(bytes)?)
    } else {
        (*channel, bytes.to_vec())
    })
}

#[tokio::test]
async fn a_command_has_its_streams_over_each_protocol_of_web_sockets() -> Result<()> {
    let (scene, _agent) = Scene::with_api("protocols").await?;
    scene.pod("one").command(SLEEP).create_until("Running").await?;
    let kubelet = KubeletClient::new(scene.control_plane, &scene.node).await?;
    let script = "command=sh&command=-c&command=echo+out%3B+echo+err+%3E%262%3B+exit+3";
    let path = format!("/exec/{}/one/main?{script}&output=1&error=1", scene.namespace());
    for (protocol, is_base64, has_status) in [
        ("v5.channel.k8s.io", false, true),
        ("v4.channel.k8s.io", false, true),
        ("v4.base64.channel.k8s.io", true, true),
        ("channel.k8s.io", false, false),
        ("base64.channel.k8s.io", true, false),
    ] {
        let mut socket = kubelet.web_socket(&path, protocol).await.context(protocol)?;
        let mut channels = <[String; 4]>::default();
        let read = async {
            while let Some(message) = socket.next().await? {
                let (channel, bytes) = parse(message, is_base64)?;
                let text = channels.get_mut(usize::from(channel)).context("an unknown channel")?;
                text.push_str(std::str::from_utf8(&bytes)?);
            }
            anyhow::Ok(())
        };
        timeout(DEADLINE, read).await.context("no end")?.context(protocol)?;
        let [_, out, err, end] = channels;
        assert_eq!((out.as_str(), err.as_str()), ("out\n", "err\n"), "{protocol}");
        if has_status {
            let status: serde_json::Value = serde_json::from_str(&end).context(protocol)?;
            assert_eq!(status["details"]["causes"][0]["message"], "3", "{protocol}");
        } else {
            ensure!(end.contains('3'), "{protocol}: {end}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn run_answers_with_the_output_of_a_command_and_logs_with_those_of_one_stream() -> Result<()> {
    let (scene, _agent) = Scene::with_api("run").await?;
    scene.pod("one").sh("echo out; echo err >&2; sleep 1000").create_until("Running").await?;
    let api_server = Credentials::Certificate(scene.control_plane.kubelet_client().clone());
    let client = scene.node_client(&api_server).await?;
    let target = format!("{}/one/main", scene.namespace());
    let run = async |command: &str| ask(&client, Method::POST, &format!("/run/{target}?cmd={command}")).await;
    assert_eq!(run("echo+hello").await?, (200, "hello\n".to_owned()));
    let (status, words) = run("false").await?;
    ensure!(status == 500 && words.starts_with("command 'false' exited with 1"), "{status} {words}");

    for (stream, text) in [("Stdout", "out\n"), ("Stderr", "err\n")] {
        tart_kubelet_tests::wait::eventually(stream, DEADLINE, async || {
            let path = format!("/containerLogs/{target}?stream={stream}");
            let answer = ask(&client, Method::GET, &path).await?;
            ensure!(answer == (200, text.to_owned()), "{answer:?}");
            Ok(())
        })
        .await?;
    }
    Ok(())
}
