//! The agent dies while clients use its streams: Pods do not notice, and the next agent serves new requests.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tart_kubelet_tests::wait;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;
use tokio::process::{Child, ChildStdin};
use tokio::time::timeout;

use super::kubectl::{TRANSPORTS, Transport, pipes};
use super::port_forward::{Forward, echo};
use crate::scene::{DEADLINE, PodView as _, SLEEP, Scene};

/// Says that it is up, then answers each line of its standard input.
const ANSWERS: &str = "echo up; while read -r line; do echo \"got $line\"; done";

const ATTACH: [&str; 3] = ["attach", "-i", "one"];

/// A kubectl whose stream has carried something.
async fn streaming(
    transport: Transport,
    scene: &Scene,
    arguments: &[&str],
    say: Option<&str>,
    hear: &str,
) -> Result<(Child, ChildStdin)> {
    let mut child = transport.start(scene, arguments)?;
    let (mut stdin, stdout, _stderr) = pipes(&mut child)?;
    if let Some(words) = say {
        stdin.write_all(words.as_bytes()).await?;
    }
    let mut lines = BufReader::new(stdout).lines();
    let line = timeout(DEADLINE, lines.next_line()).await.context("no output")??;
    ensure!(line.as_deref() == Some(hear), "{arguments:?}: {line:?}");
    Ok((child, stdin))
}

#[tokio::test]
async fn a_copy_ends_with_the_agent_and_the_next_agent_serves_another_one() -> Result<()> {
    let (scene, mut agent) = Scene::with_api("cp-restart").await?;
    let pod = scene.pod("one").command(SLEEP).create_until("Running").await?;
    let before = (pod.vm()?, pod.main().restart_count());
    let directory = tempfile::tempdir_in(scene.control_plane.sandbox().path())?;
    // It is far longer than what is copied before the agent dies, and takes no room.
    let make = "cd /private/tmp; truncate -s 8G long; echo short >short";
    let done = Transport::Spdy.run(&scene, &["exec", "one", "--", "sh", "-c", make], Vec::new()).await?;
    ensure!(done.code == Some(0), "{done:?}");
    for transport in TRANSPORTS {
        let (long, short) = (directory.path().join("long"), directory.path().join("short"));
        let copy = |name: &str, to: &Path| {
            [String::from("cp"), format!("one:/private/tmp/{name}"), to.display().to_string()]
        };
        let mut cut = transport.start(&scene, &copy("long", &long))?;
        wait::eventually("a copy under way", DEADLINE, async || {
            ensure!(long.metadata()?.len() > 0, "nothing is copied yet");
            Ok(())
        })
        .await?;
        agent = agent.restart()?;
        let status = timeout(DEADLINE, cut.wait()).await.context("cp does not end")??;
        ensure!(!status.success(), "{transport:?}: half a file counts as copied");
        wait::eventually("a copy by the next agent", DEADLINE, async || {
            let done = transport.run(&scene, &copy("short", &short), Vec::new()).await?;
            ensure!(done.code == Some(0) && std::fs::read(&short)? == b"short\n", "{done:?}");
            Ok(())
        })
        .await?;
        std::fs::remove_file(&long)?;
        std::fs::remove_file(&short)?;
    }
    let pod = scene.pods.get("one").await?;
    assert_eq!((pod.vm()?, pod.main().restart_count()), before, "the Pod has noticed");
    Ok(())
}

#[tokio::test]
async fn streams_end_with_the_agent_and_the_next_agent_serves_new_ones() -> Result<()> {
    let (scene, mut agent) = Scene::with_api("stream-restart").await?;
    let pod = scene.pod("one").sh(ANSWERS).container(json!({"stdin": true})).create_until("Running").await?;
    let before = (pod.vm()?, pod.main().restart_count());
    let address = pod.status.clone().and_then(|status| status.pod_ip).context("no address")?;
    let listener = TcpListener::bind((address.as_str(), 0)).await?;
    let port = listener.local_addr()?.port();
    tokio::spawn(echo(listener));
    for transport in TRANSPORTS {
        let exec = ["exec", "-i", "one", "--", "sh", "-c", ANSWERS];
        let (mut exec, _exec_stdin) = streaming(transport, &scene, &exec, None, "up").await?;
        let (mut attach, _attach_stdin) =
            streaming(transport, &scene, &ATTACH, Some("word\n"), "got word").await?;
        let (mut logs, _) = streaming(transport, &scene, &["logs", "-f", "one"], None, "up").await?;
        let forward = Forward::start(transport, &scene, "one", &[port]).await?;
        let mut stream = forward.echoes().await?;

        agent = agent.restart()?;
        for (what, child) in [("exec", &mut exec), ("attach", &mut attach), ("logs", &mut logs)] {
            timeout(DEADLINE, child.wait()).await.with_context(|| format!("{what} does not end"))??;
        }
        let mut rest = Vec::new();
        let _ = timeout(DEADLINE, stream.read_to_end(&mut rest)).await.context("the connection stays")?;
        drop(forward);

        wait::eventually("an answer of the next agent", DEADLINE, async || {
            let done = transport.run(&scene, &["exec", "one", "--", "echo", "again"], Vec::new()).await?;
            ensure!(done.code == Some(0) && done.text() == "again\n", "{done:?}");
            Ok(())
        })
        .await?;
        streaming(transport, &scene, &ATTACH, Some("again\n"), "got again").await?;
        streaming(transport, &scene, &["logs", "-f", "one"], None, "up").await?;
        let forward = Forward::start(transport, &scene, "one", &[port]).await?;
        forward.echoes().await?;
    }
    let pod = scene.pods.get("one").await?;
    assert_eq!((pod.vm()?, pod.main().restart_count()), before, "the Pod has noticed");
    Ok(())
}
