//! Host ports: an address of the host leads into the guest, whatever becomes of the agent.
//!
//! Simulated guests share the machine's network, so a server at a Pod's address is a server in its guest.

use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tart_kubelet_tests::wait;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

use crate::scene::{DEADLINE, Scene};

const GUEST_PORT: u16 = 8080;

fn with_ports(ports: &Value) -> Value {
    json!({"ports": ports})
}

/// A port that nothing listens at for now, and below those that systems give to whoever asks for any.
async fn free_port() -> Result<u16> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    wait::eventually("a free port", DEADLINE, async || {
        let number = std::process::id().wrapping_mul(16).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = u16::try_from(20_000 + number % 10_000)?;
        Ok(TcpListener::bind(("127.0.0.1", port)).await.map(|_| port)?)
    })
    .await
}

async fn address_of(scene: &Scene, pod: &str) -> Result<String> {
    let pod = scene.phase(pod, "Running").await?;
    pod.status.and_then(|status| status.pod_ip).context("no address")
}

#[tokio::test]
async fn connections_reach_the_guest_and_outlive_the_agent() -> Result<()> {
    let (scene, agent) = Scene::with_agent("ports").await?;
    let port = free_port().await?;
    let ports = json!([{"containerPort": GUEST_PORT, "hostPort": port}]);
    scene.create(&scene.pod("web", &with_ports(&ports), &json!({}))).await?;
    let server = TcpListener::bind((address_of(&scene, "web").await?.as_str(), GUEST_PORT)).await?;

    let mut client = TcpStream::connect(("127.0.0.1", port)).await?;
    let (mut guest, _) = server.accept().await?;
    client.write_all(b"ping").await?;
    let mut heard = [0; 4];
    guest.read_exact(&mut heard).await?;
    ensure!(&heard == b"ping");

    agent.kill9()?;
    // The end of what the client says gets through, and the guest still answers.
    client.shutdown().await?;
    ensure!(guest.read(&mut heard).await? == 0);
    guest.write_all(b"pong").await?;
    drop(guest);
    let mut answer = String::new();
    client.read_to_string(&mut answer).await?;
    assert_eq!(answer, "pong");
    TcpStream::connect(("127.0.0.1", port)).await.context("no new connection without the agent")?;

    let _agent = agent.restart()?;
    scene.kubectl.run(["delete", "pod", "web"]).await?;
    scene.nothing_left().await?;
    wait::eventually("a free port", DEADLINE, async || {
        Ok(TcpListener::bind(("127.0.0.1", port)).await.map(drop)?)
    })
    .await
}

#[tokio::test]
async fn datagrams_reach_the_guest_at_the_address_that_was_asked_for() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("datagrams").await?;
    let port = free_port().await?;
    let ports =
        json!([{"containerPort": GUEST_PORT, "hostPort": port, "protocol": "UDP", "hostIP": "127.0.0.2"}]);
    scene.create(&scene.pod("names", &with_ports(&ports), &json!({}))).await?;
    let server = UdpSocket::bind((address_of(&scene, "names").await?.as_str(), GUEST_PORT)).await?;
    UdpSocket::bind(("127.0.0.1", port)).await.context("the Node's own address was taken too")?;

    let client = UdpSocket::bind("127.0.0.1:0").await?;
    client.connect(("127.0.0.2", port)).await?;
    client.send(b"ping").await?;
    let mut heard = [0; 16];
    let (length, other_side) = server.recv_from(&mut heard).await?;
    ensure!(&heard[..length] == b"ping");
    server.send_to(b"pong", other_side).await?;
    let length = client.recv(&mut heard).await?;
    ensure!(&heard[..length] == b"pong");
    Ok(())
}

#[tokio::test]
async fn a_port_that_is_taken_is_told() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("taken").await?;
    let taken = TcpListener::bind("127.0.0.1:0").await?;
    let port = taken.local_addr()?.port();
    let ports = json!([{"containerPort": GUEST_PORT, "hostPort": port}]);
    scene.create(&scene.pod("late", &with_ports(&ports), &json!({}))).await?;
    scene.phase("late", "Failed").await?;
    scene.told("pod", "late", &format!("cannot listen at TCP port 127.0.0.1:{port}")).await?;
    scene.no_vms().await?;

    // What a Pod of this Node has, another one is not even tried with.
    let ports = json!([{"containerPort": GUEST_PORT, "hostPort": free_port().await?}]);
    let mut pods = ["first", "second"].map(|name| scene.pod(name, &with_ports(&ports), &json!({})));
    for pod in &mut pods {
        pod["spec"]["nodeName"] = json!(scene.node);
    }
    scene.create(&pods[0]).await?;
    scene.phase("first", "Running").await?;
    scene.create(&pods[1]).await?;
    let pod = scene.phase("second", "Failed").await?;
    assert_eq!(pod.status.and_then(|status| status.reason).as_deref(), Some("NodePorts"));
    Ok(())
}
