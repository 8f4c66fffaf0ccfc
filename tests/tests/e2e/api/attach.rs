//! `kubectl attach` through the API server, over `WebSockets` and over SPDY.

use anyhow::{Context, Result, bail, ensure};
use http::Method;
use serde_json::json;
use tart_kubelet_tests::kubeconfig::Credentials;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout};
use tokio::time::timeout;

use super::kubectl::{TRANSPORTS, Transport, pipes};
use crate::scene::{DEADLINE, Scene, ask};

/// A command that answers each line of its standard input, and ends with it.
const ANSWERS: &str = "while read -r line; do echo \"got $line\"; done; echo over";

struct Client {
    child: Child,
    stderr: ChildStderr,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Client {
    fn attach(transport: Transport, scene: &Scene, pod: &str) -> Result<Self> {
        let mut child = transport.start(scene, &["attach", "-i", pod])?;
        let (stdin, stdout, stderr) = pipes(&mut child)?;
        Ok(Self { child, stderr, stdin, lines: BufReader::new(stdout).lines() })
    }

    /// Says something until it is answered: kubectl does not tell when it is attached.
    async fn talk(&mut self, word: &str) -> Result<()> {
        self.stdin.write_all(format!("{word}\n").as_bytes()).await?;
        self.hear(&format!("got {word}")).await
    }

    async fn hear(&mut self, expected: &str) -> Result<()> {
        loop {
            let line = timeout(DEADLINE, self.lines.next_line()).await.context("no output")??;
            let Some(line) = line else {
                let mut words = String::new();
                self.stderr.read_to_string(&mut words).await?;
                bail!("kubectl has ended: {words}");
            };
            if line == expected {
                return Ok(());
            }
        }
    }
}

/// Several clients at once share the command of the Pod `one`.
async fn clients_share_the_command(scene: &Scene) -> Result<()> {
    scene.pod("one").sh(ANSWERS).container(json!({"stdin": true})).create_until("Running").await?;
    for transport in TRANSPORTS {
        let mut first = Client::attach(transport, scene, "one")?;
        first.talk("first").await?;
        let mut second = Client::attach(transport, scene, "one")?;
        second.talk("second").await?;
        first.hear("got second").await?;
        first.child.kill().await?;
        // Its standard input stays open for others.
        second.talk("third").await?;
    }
    Ok(())
}

#[tokio::test]
async fn kubectl_attach_works_on_a_node_that_declares_no_web_sockets() -> Result<()> {
    let (scene, _agent) = Scene::without_declared_features("attach-spdy").await?;
    clients_share_the_command(&scene).await
}

#[tokio::test]
async fn kubectl_attach_joins_the_command_also_after_a_restart_of_the_agent() -> Result<()> {
    let (scene, mut agent) = Scene::with_api("attach").await?;
    clients_share_the_command(&scene).await?;
    agent.kill9()?;
    agent = agent.restart()?;
    scene.node_ready(&agent).await?;
    let mut again = Client::attach(Transport::WebSockets, &scene, "one")?;
    again.talk("again").await?;
    drop(agent);
    Ok(())
}

#[tokio::test]
async fn a_standard_input_for_once_ends_with_its_client() -> Result<()> {
    let (scene, _agent) = Scene::with_api("attach-once").await?;
    let once = scene.pod("once").sh(ANSWERS).container(json!({"stdin": true, "stdinOnce": true}));
    once.create_until("Running").await?;
    let mut client = Client::attach(Transport::WebSockets, &scene, "once")?;
    client.talk("hello").await?;
    drop(client);
    scene.phase("once", "Succeeded").await.map(drop)
}

#[tokio::test]
async fn an_attach_that_is_refused_leaves_a_standard_input_for_once_alone() -> Result<()> {
    let (scene, _agent) = Scene::with_api("attach-refused").await?;
    let once = scene.pod("once").sh(ANSWERS).container(json!({"stdin": true, "stdinOnce": true}));
    once.create_until("Running").await?;
    let api_server = Credentials::Certificate(scene.control_plane.kubelet_client().clone());
    let client = scene.node_client(&api_server).await?;
    let path = format!("/attach/{}/once/main?input=1&output=1", scene.namespace());
    let (status, words) = ask(&client, Method::POST, &path).await?;
    ensure!(status == 400 && words.contains("must upgrade"), "{status} {words}");
    Client::attach(Transport::WebSockets, &scene, "once")?.talk("hello").await
}

#[tokio::test]
async fn a_client_that_reads_gets_each_line_of_a_flood() -> Result<()> {
    const LINES: usize = 20_000;
    let (scene, _agent) = Scene::with_api("attach-flood").await?;
    let script =
        format!("while read -r _; do i=0; while [ $i -lt {LINES} ]; do i=$((i+1)); echo $i; done; done");
    scene.pod("one").sh(script).container(json!({"stdin": true})).create_until("Running").await?;
    for transport in TRANSPORTS {
        let mut client = Client::attach(transport, &scene, "one")?;
        client.stdin.write_all(b"go\n").await?;
        for number in 1..=LINES {
            let line = timeout(DEADLINE, client.lines.next_line()).await.context("no output")??;
            ensure!(line == Some(number.to_string()), "{transport:?}: {line:?} instead of {number}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn kubectl_attach_has_the_terminal_that_the_pod_asked_for() -> Result<()> {
    let (scene, _agent) = Scene::with_api("attach-tty").await?;
    a_terminal_is_attached(&scene).await
}

#[tokio::test]
async fn kubectl_attach_has_the_terminal_on_a_node_that_declares_no_web_sockets() -> Result<()> {
    let (scene, _agent) = Scene::without_declared_features("attach-tty-spdy").await?;
    a_terminal_is_attached(&scene).await
}

async fn a_terminal_is_attached(scene: &Scene) -> Result<()> {
    for (transport, name) in TRANSPORTS.into_iter().zip(["first", "second"]) {
        let script =
            "until [ \"$(stty size)\" = '33 101' ]; do sleep 0.1; done; read -r word; echo \"got $word\"";
        let terminal = json!({"stdin": true, "tty": true});
        scene.pod(name).sh(script).container(terminal).create_until("Running").await?;
        let mut child = transport.start_on_terminal(scene, (33, 101), &["attach", "-it", name])?;
        let (mut stdin, stdout, _stderr) = pipes(&mut child)?;
        stdin.write_all(b"hello\n").await?;
        let (mut lines, mut said) = (BufReader::new(stdout).lines(), Vec::new());
        loop {
            let line = timeout(DEADLINE, lines.next_line()).await.context("no output")??;
            let line = line.with_context(|| format!("{transport:?}: kubectl has ended: {said:?}"))?;
            if line.trim() == "got hello" {
                break;
            }
            said.push(line);
        }
        scene.phase(name, "Succeeded").await?;
    }
    Ok(())
}
