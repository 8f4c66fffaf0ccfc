//! What the streams of the kubelet API cost, and how fast they are. Clients speak to the agent itself, as the API server does.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tart_kubelet_tests::agent::RunningAgent;
use tart_kubelet_tests::control_plane::ControlPlane;
use tart_kubelet_tests::kubelet::{KubeletClient, WebSocket};
use tart_kubelet_tests::mac::Mac;
use tart_kubelet_tests::wait::eventually;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::NODE;
use super::figure::median;
use super::pods::Streamed;

const DEADLINE: Duration = Duration::from_mins(1);
/// Streams that are open at once.
const OPEN: usize = 50;
const ROUNDS: usize = 25;
const RESTARTS: usize = 5;
const PROTOCOL: &str = "v5.channel.k8s.io";

/// Streams that stay open until they are dropped.
pub(crate) struct OpenStreams {
    _logs: Vec<TlsStream<TcpStream>>,
    _commands: Vec<WebSocket>,
}

/// Opens as many streams as the budget of memory is for: half of them follow a log, half of them run a command.
pub(crate) async fn open(kubelet: &KubeletClient, pod: &Streamed) -> Result<OpenStreams> {
    let (mut logs, mut commands) = (Vec::new(), Vec::new());
    for _ in 0..OPEN / 2 {
        logs.push(kubelet.get(&format!("/containerLogs/{}?follow=true", pod.container())).await?);
        let path = format!("/exec/{}?command=sleep&command=1000&input=1&output=1", pod.container());
        commands.push(kubelet.web_socket(&path, PROTOCOL).await?);
    }
    Ok(OpenStreams { _logs: logs, _commands: commands })
}

/// Milliseconds from a client's first byte to the end of a command that does nothing, less what the guest takes for it.
pub(crate) async fn exec_round_trip(kubelet: &KubeletClient, mac: &Mac, pod: &Streamed) -> Result<f64> {
    let (mut commands, mut tarts, mut starts) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        commands.push(timed(exec(kubelet, pod)).await?);
        // A tart that asks the guest agent for the same, less what any tart takes to start.
        tarts.push(timed(async { mac.tart(["exec", &pod.vm, "/usr/bin/true"]).await.map(drop) }).await?);
        starts.push(timed(async { mac.tart(["--version"]).await.map(drop) }).await?);
    }
    let guest = (median(tarts) - median(starts)).max(0.0);
    Ok(median(commands) - guest)
}

/// Milliseconds from the start of an agent that was killed until it runs a command for a client.
pub(crate) async fn restart_to_exec(
    agent: &mut RunningAgent,
    control_plane: &ControlPlane,
    pod: &Streamed,
) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..RESTARTS {
        agent.kill9()?;
        let begun = Instant::now();
        *agent = agent.agent().start()?;
        eventually("an answer of the next agent", DEADLINE, async || {
            // The port is another one, and the Node publishes it.
            exec(&KubeletClient::new(control_plane, NODE).await?, pod).await
        })
        .await?;
        times.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    Ok(median(times))
}

/// Runs a command that does nothing, to its end.
async fn exec(kubelet: &KubeletClient, pod: &Streamed) -> Result<()> {
    let path = format!("/exec/{}?command=/usr/bin/true&output=1", pod.container());
    let mut socket = kubelet.web_socket(&path, PROTOCOL).await?;
    let mut last = Vec::new();
    while let Some(message) = socket.next().await? {
        last = message.to_vec();
    }
    let end = String::from_utf8_lossy(last.get(1..).context("no status")?);
    ensure!(end.contains("\"Success\""), "{end}");
    Ok(())
}

async fn timed(act: impl Future<Output = Result<()>>) -> Result<f64> {
    let begun = Instant::now();
    act.await?;
    Ok(begun.elapsed().as_secs_f64() * 1e3)
}
