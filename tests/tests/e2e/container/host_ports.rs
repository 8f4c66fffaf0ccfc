//! Host ports: a port of the host leads into the guest, also while the agent is dead.
//!
//! Simulated guests share the machine's network, so a server at a Pod's address is a server in its guest.

use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tart_kubelet_tests::wait;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

use crate::scene::{DEADLINE, PodBuilder, PodView as _, Scene};

const GUEST_PORT: u16 = 8080;

/// A Pod with a host port that leads to [`GUEST_PORT`].
fn with_port<'a>(scene: &'a Scene, name: &str, port: u16) -> PodBuilder<'a> {
    scene.pod(name).container(json!({"ports": [{"containerPort": GUEST_PORT, "hostPort": port}]}))
}

/// A free port below the range from which systems choose ports.
async fn free_port() -> Result<u16> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    wait::eventually("a free port", DEADLINE, async || {
        let number = std::process::id().wrapping_mul(16).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = u16::try_from(20_000 + number % 10_000)?;
        Ok(TcpListener::bind(("127.0.0.1", port)).await.map(|_| port)?)
    })
    .await
}

#[tokio::test]
async fn tcp_host_port_reaches_the_guest_and_outlives_the_agent() -> Result<()> {
    let (scene, agent) = Scene::with_agent("ports").await?;
    let port = free_port().await?;
    let pod = with_port(&scene, "web", port).create_until("Running").await?;
    let server = TcpListener::bind((pod.ip().context("no address")?, GUEST_PORT)).await?;

    let mut client = TcpStream::connect(("127.0.0.1", port)).await?;
    let (mut guest, _) = server.accept().await?;
    client.write_all(b"ping").await?;
    let mut heard = [0; 4];
    guest.read_exact(&mut heard).await?;
    ensure!(&heard == b"ping");

    agent.kill9()?;
    // The client's end of file gets through, and the guest still answers.
    client.shutdown().await?;
    ensure!(guest.read(&mut heard).await? == 0);
    guest.write_all(b"pong").await?;
    drop(guest);
    let mut answer = String::new();
    client.read_to_string(&mut answer).await?;
    assert_eq!(answer, "pong");
    TcpStream::connect(("127.0.0.1", port)).await.context("no new connection without the agent")?;

    let _agent = agent.restart()?;
    scene.delete("web").await?;
    scene.nothing_left().await?;
    wait::eventually("a free port", DEADLINE, async || {
        Ok(TcpListener::bind(("127.0.0.1", port)).await.map(drop)?)
    })
    .await
}

#[tokio::test]
async fn udp_host_port_listens_at_the_host_ip() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("datagrams").await?;
    let port = free_port().await?;
    let ports =
        json!([{"containerPort": GUEST_PORT, "hostPort": port, "protocol": "UDP", "hostIP": "127.0.0.2"}]);
    let pod = scene.pod("names").container(json!({"ports": ports})).create_until("Running").await?;
    let server = UdpSocket::bind((pod.ip().context("no address")?, GUEST_PORT)).await?;
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
async fn taken_host_port_fails_the_pod() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("taken").await?;
    let taken = TcpListener::bind("127.0.0.1:0").await?;
    let port = taken.local_addr()?.port();
    with_port(&scene, "late", port).create_until("Failed").await?;
    scene.described("late", &format!("cannot listen at TCP port 127.0.0.1:{port}")).await?;
    scene.no_vms().await?;

    // The agent refuses a Pod whose port another Pod of the Node has.
    let port = free_port().await?;
    with_port(&scene, "first", port).bound().create_until("Running").await?;
    let pod = with_port(&scene, "second", port).bound().create_until("Failed").await?;
    assert_eq!(pod.reason(), Some("NodePorts"));
    Ok(())
}
