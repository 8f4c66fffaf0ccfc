//! Nothing is left of a client that vanishes: no command in the guest, no open file of the agent.

use anyhow::{Context, Result, ensure};
use http::Method;
use serde_json::json;
use tart_kubelet_tests::agent::RunningAgent;
use tart_kubelet_tests::kubeconfig::Credentials;
use tart_kubelet_tests::wait;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;
use tokio::process::Child;
use tokio::time::timeout;

use super::kubectl::{TRANSPORTS, Transport, pipes};
use super::port_forward::{Forward, echo};
use crate::scene::{DEADLINE, PodView as _, SLEEP, Scene, ask};

/// Notes its process in the guest, then runs on.
const RUNS_ON: &str = "echo $$ >begun; mv begun running; sleep 1000 & wait";

/// Has a client of `/run` vanish while its command runs, and waits for the end of the command.
async fn run_and_vanish(scene: &Scene, vm: &str) -> Result<()> {
    scene.sh("one", &format!("echo '{RUNS_ON}' >run.sh; rm -f running")).await?;
    let api_server = Credentials::Certificate(scene.control_plane.kubelet_client().clone());
    let client = scene.node_client(&api_server).await?;
    let path = format!("/run/{}/one/main?cmd=sh+run.sh", scene.namespace());
    let asks = tokio::spawn(async move { ask(&client, Method::POST, &path).await });
    scene.guest_file(vm, "/private/tmp/running").await?;
    ensure!(!asks.is_finished(), "the command has ended: {:?}", asks.await);
    asks.abort();
    let _ = asks.await;
    wait::eventually("the end of the command", DEADLINE, async || {
        let alive = scene.sh("one", "kill -0 $(cat running)").await;
        ensure!(alive.is_err(), "it runs");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_command_of_run_is_killed_when_its_client_vanishes() -> Result<()> {
    let (scene, _agent) = Scene::with_api("run-vanish").await?;
    let pod = scene.pod("one").command(SLEEP).container(json!({"workingDir": "/private/tmp"}));
    let vm = pod.create_until("Running").await?.vm()?;
    run_and_vanish(&scene, &vm).await
}

/// A kubectl that streams, once it has shown something.
async fn streaming(
    transport: Transport,
    scene: &Scene,
    arguments: &[&str],
    say: Option<&str>,
) -> Result<Child> {
    let mut child = transport.start(scene, arguments)?;
    let (mut stdin, stdout, stderr) = pipes(&mut child)?;
    if let Some(words) = say {
        stdin.write_all(words.as_bytes()).await?;
    }
    let line = timeout(DEADLINE, BufReader::new(stdout).lines().next_line()).await.context("no output")??;
    ensure!(line.is_some(), "{arguments:?} has ended");
    (child.stdin, child.stderr) = (Some(stdin), Some(stderr));
    Ok(child)
}

/// Uses each kind of stream of the Pod `one`, and has all clients vanish at once.
async fn use_streams_and_vanish(scene: &Scene, vm: &str, port: u16) -> Result<()> {
    for transport in TRANSPORTS {
        let mut children = Vec::new();
        for _ in 0..3 {
            let exec = ["exec", "-i", "one", "--", "sh", "-c", "echo up; cat"];
            children.push(streaming(transport, scene, &exec, None).await?);
            children.push(streaming(transport, scene, &["attach", "-i", "one"], Some("word\n")).await?);
            children.push(streaming(transport, scene, &["logs", "-f", "one"], None).await?);
        }
        let forward = Forward::start(transport, scene, "one", &[port]).await?;
        let mut connections = Vec::new();
        for _ in 0..5 {
            connections.push(forward.echoes().await?);
        }
        for child in &mut children {
            child.kill().await?;
        }
        drop(forward);
        for mut connection in connections {
            let _ = timeout(DEADLINE, connection.read(&mut [0])).await.context("the connection stays")?;
        }
    }
    run_and_vanish(scene, vm).await
}

/// How many files the agent has open, sockets among them.
fn open_files(agent: &RunningAgent) -> Result<usize> {
    Ok(std::fs::read_dir(format!("/proc/{}/fd", agent.process().pid()))?.count())
}

#[tokio::test]
async fn no_file_of_the_agent_stays_open_for_clients_that_vanish() -> Result<()> {
    let (scene, agent) = Scene::with_api("leaks").await?;
    let script = "echo up; while read -r line; do echo \"got $line\"; done";
    let fields = json!({"stdin": true, "workingDir": "/private/tmp"});
    let pod = scene.pod("one").sh(script).container(fields).create_until("Running").await?;
    let (vm, address) = (pod.vm()?, pod.status.and_then(|status| status.pod_ip).context("no address")?);
    let listener = TcpListener::bind((address.as_str(), 0)).await?;
    let port = listener.local_addr()?.port();
    tokio::spawn(echo(listener));
    // The agent keeps its connection to the guest.
    let done = Transport::WebSockets.run(&scene, &["exec", "one", "--", "true"], Vec::new()).await?;
    ensure!(done.code == Some(0), "{done:?}");
    let before = open_files(&agent)?;
    use_streams_and_vanish(&scene, &vm, port).await?;
    wait::eventually("as few open files as before", DEADLINE, async || {
        let now = open_files(&agent)?;
        ensure!(now <= before, "{now} instead of {before}");
        Ok(())
    })
    .await
}
