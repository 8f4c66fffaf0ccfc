//! `kubectl port-forward` through the API server, over `WebSockets` and over SPDY.

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::kubectl::{TRANSPORTS, pipes};
use crate::scene::{DEADLINE, SLEEP, Scene};

/// Sends back what each connection sends, and its end.
async fn echo(listener: TcpListener) {
    while let Ok((mut stream, _)) = listener.accept().await {
        tokio::spawn(async move {
            let (mut from, mut to) = stream.split();
            let _ = tokio::io::copy(&mut from, &mut to).await;
            let _ = to.shutdown().await;
        });
    }
}

#[tokio::test]
async fn kubectl_port_forward_carries_many_connections_and_tells_of_a_refused_one() -> Result<()> {
    const CONNECTIONS: u8 = 30;
    let (scene, _agent) = Scene::with_api("forward").await?;
    let pod = scene.pod("one").command(SLEEP).create_until("Running").await?;
    let address = pod.status.and_then(|status| status.pod_ip).context("no address")?;
    // Simulated guests share the machine's network: what listens at the guest's address is in the guest.
    let listener = TcpListener::bind((address.as_str(), 0)).await?;
    let port = listener.local_addr()?.port();
    let closed = TcpListener::bind((address.as_str(), 0)).await?.local_addr()?.port();
    tokio::spawn(echo(listener));
    for transport in TRANSPORTS {
        let ports = [format!(":{port}"), format!(":{closed}")];
        let mut child = transport.start(&scene, &["port-forward", "one", &ports[0], &ports[1]])?;
        let (_stdin, stdout, stderr) = pipes(&mut child)?;
        let mut lines = BufReader::new(stdout).lines();
        let mut local = Vec::new();
        while local.len() < 2 {
            let line = timeout(DEADLINE, lines.next_line())
                .await
                .context("no ports")??
                .context("kubectl has ended")?;
            let Some(rest) = line.strip_prefix("Forwarding from 127.0.0.1:") else { continue };
            let (number, _) = rest.split_once(' ').context("no port")?;
            local.push(number.parse::<u16>()?);
        }
        let open = local[0];
        let talk = |number: u8| async move {
            let sent = vec![number; 200_000];
            let mut stream = TcpStream::connect(("127.0.0.1", open)).await?;
            let (mut from, mut to) = stream.split();
            let mut received = Vec::new();
            let (written, read) = tokio::join!(
                async {
                    to.write_all(&sent).await?;
                    to.shutdown().await
                },
                from.read_to_end(&mut received)
            );
            written?;
            read?;
            ensure!(received == sent, "{} bytes came back", received.len());
            anyhow::Ok(())
        };
        let all = futures::future::try_join_all((0..CONNECTIONS).map(talk));
        timeout(DEADLINE, all)
            .await
            .context("the connections do not end")?
            .with_context(|| format!("{transport:?}"))?;
        let mut refused = TcpStream::connect(("127.0.0.1", local[1])).await?;
        let mut nothing = Vec::new();
        let _ = timeout(DEADLINE, refused.read_to_end(&mut nothing)).await.context("no end")?;
        let mut told = BufReader::new(stderr).lines();
        let words = format!("error forwarding port {closed} to pod one, uid ");
        loop {
            let line = timeout(DEADLINE, told.next_line())
                .await
                .context("no words")??
                .context("kubectl has ended")?;
            if line.contains(&words) {
                ensure!(line.contains("refused"), "{line}");
                break;
            }
        }
        // kubectl of 1.36 ends after an error; an older one goes on.
        let _ = child.kill().await;
    }
    Ok(())
}
