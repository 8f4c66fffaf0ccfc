//! kube-rs as a client: through the API server, and straight to the node.

use std::future::Future;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{AttachParams, AttachedProcess, Portforwarder};
use kube::core::kubelet_debug::KubeletDebugParams;
use kube::{Api, Client};
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;
use tokio::time::timeout;

use super::port_forward::echo;
use crate::scene::{DEADLINE, Scene};

/// A command that answers each line of its standard input, until one says "end".
const ANSWERS: &str =
    "while read -r line; do echo \"got $line\"; if [ \"$line\" = end ]; then exit 0; fi; done";

/// How a client reaches the Pod.
enum Way {
    ApiServer(Api<Pod>),
    Node { client: Client, namespace: String },
}

impl Way {
    async fn exec(&self, script: &str, with: &AttachParams) -> Result<AttachedProcess> {
        let command = ["sh", "-c", script];
        Ok(match self {
            Self::ApiServer(pods) => pods.exec("one", command, with).await?,
            Self::Node { client, namespace } => {
                client.kubelet_node_exec(&params(namespace), "main", command, with).await?
            }
        })
    }

    async fn attach(&self, with: &AttachParams) -> Result<AttachedProcess> {
        Ok(match self {
            Self::ApiServer(pods) => pods.attach("one", with).await?,
            Self::Node { client, namespace } => {
                client.kubelet_node_attach(&params(namespace), "main", with).await?
            }
        })
    }

    async fn port_forward(&self, port: u16) -> Result<Portforwarder> {
        Ok(match self {
            Self::ApiServer(pods) => pods.portforward("one", &[port]).await?,
            Self::Node { client, namespace } => {
                client.kubelet_node_portforward(&params(namespace), &[port]).await?
            }
        })
    }
}

fn params(namespace: &str) -> KubeletDebugParams<'_> {
    KubeletDebugParams { name: "one", namespace, pod_uid: None }
}

async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> Result<T> {
    timeout(DEADLINE, future).await.with_context(|| format!("no end of {what}"))
}

async fn exec_has_streams_and_an_exit_code(way: &Way) -> Result<()> {
    let with = AttachParams::default().stdin(true).stdout(true).stderr(true);
    let mut process = way.exec("cat; echo err >&2; exit 7", &with).await?;
    let (mut stdin, mut stdout, mut stderr) = (
        process.stdin().context("no stdin")?,
        process.stdout().context("no stdout")?,
        process.stderr().context("no stderr")?,
    );
    let status = process.take_status().context("no status")?;
    stdin.write_all(b"hello").await?;
    stdin.shutdown().await?;
    let (mut out, mut err) = (String::new(), String::new());
    in_time("the output", async {
        tokio::try_join!(stdout.read_to_string(&mut out), stderr.read_to_string(&mut err))
    })
    .await??;
    assert_eq!((out.as_str(), err.as_str()), ("hello", "err\n"));
    let status = in_time("the command", status).await?.context("no status")?;
    let details = status.details.context("no details")?;
    let code = details.causes.iter().flatten().find(|cause| cause.reason.as_deref() == Some("ExitCode"));
    assert_eq!(code.and_then(|cause| cause.message.as_deref()), Some("7"));
    Ok(())
}

async fn attach_joins_the_command(way: &Way) -> Result<()> {
    let with = AttachParams::default().stdin(true).stdout(true).stderr(false);
    let mut process = way.attach(&with).await?;
    let mut stdin = process.stdin().context("no stdin")?;
    let mut lines = BufReader::new(process.stdout().context("no stdout")?).lines();
    stdin.write_all(b"hello\n").await?;
    let line = in_time("the answer", lines.next_line()).await??;
    assert_eq!(line.as_deref(), Some("got hello"));
    process.abort();
    Ok(())
}

async fn port_forward_carries_bytes(way: &Way, port: u16) -> Result<()> {
    let sent = vec![7; 1 << 20];
    let mut forwarder = way.port_forward(port).await?;
    let stream = forwarder.take_stream(port).context("no stream")?;
    let (mut from, mut to) = tokio::io::split(stream);
    let mut received = vec![0; sent.len()];
    let (written, read) =
        in_time("the echo", async { tokio::join!(to.write_all(&sent), from.read_exact(&mut received)) })
            .await?;
    written?;
    read?;
    ensure!(received == sent, "other bytes came back");
    forwarder.abort();
    Ok(())
}

/// A client of channels learns of the end of a connection only by that of its WebSocket.
async fn port_forward_ends_with_the_server(way: &Way, address: &str) -> Result<()> {
    let listener = TcpListener::bind((address, 0)).await?;
    let port = listener.local_addr()?.port();
    let mut forwarder = way.port_forward(port).await?;
    let mut stream = forwarder.take_stream(port).context("no stream")?;
    let (mut server, _) = in_time("the connection", listener.accept()).await??;
    server.write_all(b"goodbye").await?;
    drop(server);
    let mut said = String::new();
    in_time("the stream", stream.read_to_string(&mut said)).await??;
    assert_eq!(said, "goodbye");
    Ok(())
}

#[tokio::test]
async fn kube_rs_execs_attaches_and_forwards_through_the_api_server_and_straight_to_the_node() -> Result<()> {
    let (scene, _agent) = Scene::with_api("kube-rs").await?;
    let pod = scene.pod("one").sh(ANSWERS).container(json!({"stdin": true})).create_until("Running").await?;
    let address = pod.status.and_then(|status| status.pod_ip).context("no address")?;
    let listener = TcpListener::bind((address.as_str(), 0)).await?;
    let port = listener.local_addr()?.port();
    tokio::spawn(echo(listener));
    scene.allow("--user=straight", "get,create", &["nodes/proxy"]).await?;
    let client = scene.node_client_as("straight").await?;
    for way in
        [Way::ApiServer(scene.pods.clone()), Way::Node { client, namespace: scene.namespace().to_owned() }]
    {
        exec_has_streams_and_an_exit_code(&way).await?;
        attach_joins_the_command(&way).await?;
        port_forward_carries_bytes(&way, port).await?;
        port_forward_ends_with_the_server(&way, &address).await?;
    }
    Ok(())
}
