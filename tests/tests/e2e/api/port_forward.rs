//! `kubectl port-forward` through the API server, over `WebSockets` and over SPDY.

use anyhow::{Context, Result, ensure};
use sha2::{Digest as _, Sha256};
use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader, Lines,
};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout};
use tokio::time::timeout;

use super::kubectl::{TRANSPORTS, Transport, pipes};
use crate::scene::{DEADLINE, SLEEP, Scene};

/// How much one connection carries there and back. `make bench` has a gigabyte.
const BULK: usize = 200_000_000;
const PIECE: usize = 64 << 10;

/// Sends back what each connection sends, and its end.
pub(super) async fn echo(listener: TcpListener) {
    while let Ok((mut stream, _)) = listener.accept().await {
        tokio::spawn(async move {
            let (mut from, mut to) = stream.split();
            let _ = tokio::io::copy(&mut from, &mut to).await;
            let _ = to.shutdown().await;
        });
    }
}

/// A `kubectl port-forward` that listens.
pub(super) struct Forward {
    child: Child,
    /// kubectl's ports, in the order of the Pod's.
    pub(super) local: Vec<u16>,
    stderr: ChildStderr,
    /// kubectl ends when its pipes do.
    _pipes: (ChildStdin, Lines<BufReader<ChildStdout>>),
}

impl Forward {
    pub(super) async fn start(transport: Transport, scene: &Scene, pod: &str, ports: &[u16]) -> Result<Self> {
        let mut arguments = vec!["port-forward".to_owned(), pod.to_owned()];
        arguments.extend(ports.iter().map(|port| format!(":{port}")));
        let mut child = transport.start(scene, &arguments)?;
        let (stdin, stdout, stderr) = pipes(&mut child)?;
        let mut lines = BufReader::new(stdout).lines();
        let mut local = Vec::new();
        while local.len() < ports.len() {
            let line = timeout(DEADLINE, lines.next_line())
                .await
                .context("no ports")??
                .context("kubectl has ended")?;
            let Some(rest) = line.strip_prefix("Forwarding from 127.0.0.1:") else { continue };
            let (number, _) = rest.split_once(' ').context("no port")?;
            local.push(number.parse()?);
        }
        Ok(Self { child, local, stderr, _pipes: (stdin, lines) })
    }

    /// A connection to the first port that has carried something both ways.
    pub(super) async fn echoes(&self) -> Result<TcpStream> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.local[0])).await?;
        stream.write_all(b"x").await?;
        timeout(DEADLINE, stream.read_exact(&mut [0])).await.context("no echo")??;
        Ok(stream)
    }

    /// Makes a connection to the last port, which is the Pod's `port`, and waits until kubectl tells why it fails.
    pub(super) async fn is_refused(&mut self, port: u16, why: &str) -> Result<()> {
        let local = self.local.last().context("no port")?;
        let mut refused = TcpStream::connect(("127.0.0.1", *local)).await?;
        let mut nothing = Vec::new();
        let _ = timeout(DEADLINE, refused.read_to_end(&mut nothing)).await.context("no end")?;
        let mut told = BufReader::new(&mut self.stderr).lines();
        let words = format!("error forwarding port {port} to pod one, uid ");
        loop {
            let line = timeout(DEADLINE, told.next_line())
                .await
                .context("no words")??
                .context("kubectl has ended")?;
            if line.contains(&words) {
                ensure!(line.contains(why), "{line}");
                return Ok(());
            }
        }
    }
}

#[tokio::test]
async fn kubectl_port_forward_carries_many_connections_and_tells_of_a_refused_one() -> Result<()> {
    let (scene, _agent) = Scene::with_api("forward").await?;
    many_connections_are_carried_and_a_refused_one_is_told(&scene).await
}

#[tokio::test]
async fn kubectl_port_forward_works_on_a_node_that_declares_no_web_sockets() -> Result<()> {
    let (scene, _agent) = Scene::without_declared_features("forward-spdy").await?;
    many_connections_are_carried_and_a_refused_one_is_told(&scene).await
}

async fn many_connections_are_carried_and_a_refused_one_is_told(scene: &Scene) -> Result<()> {
    const CONNECTIONS: u8 = 50;
    let pod = scene.pod("one").command(SLEEP).create_until("Running").await?;
    let address = pod.status.and_then(|status| status.pod_ip).context("no address")?;
    // Simulated guests share the machine's network: what listens at the guest's address is in the guest.
    let listener = TcpListener::bind((address.as_str(), 0)).await?;
    let port = listener.local_addr()?.port();
    let closed = TcpListener::bind((address.as_str(), 0)).await?.local_addr()?.port();
    tokio::spawn(echo(listener));
    for transport in TRANSPORTS {
        let mut forward = Forward::start(transport, scene, "one", &[port, closed]).await?;
        let open = forward.local[0];
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
        forward.is_refused(closed, "refused").await?;
        // kubectl of 1.36 ends after an error; an older one goes on.
        let _ = forward.child.kill().await;
    }
    Ok(())
}

/// Bytes of all values, which begin anew at every start.
struct Noise(fastrand::Rng);

impl Noise {
    fn new() -> Self {
        Self(fastrand::Rng::with_seed(18))
    }

    /// Sends so many of them, and returns their hash.
    async fn send(&mut self, mut left: usize, to: &mut (impl AsyncWrite + Unpin)) -> Result<[u8; 32]> {
        let (mut piece, mut hash) = (vec![0; PIECE], Sha256::new());
        while left > 0 {
            let length = left.min(PIECE);
            self.0.fill(&mut piece[..length]);
            hash.update(&piece[..length]);
            to.write_all(&piece[..length]).await?;
            left -= length;
        }
        to.shutdown().await?;
        Ok(hash.finalize().into())
    }
}

/// The hash of all that arrives.
async fn receive(from: &mut (impl AsyncRead + Unpin)) -> Result<(usize, [u8; 32])> {
    let (mut piece, mut hash, mut length) = (vec![0; PIECE], Sha256::new(), 0);
    loop {
        let count = from.read(&mut piece).await?;
        if count == 0 {
            return Ok((length, hash.finalize().into()));
        }
        hash.update(&piece[..count]);
        length += count;
    }
}

#[tokio::test]
async fn kubectl_port_forward_carries_much_through_one_connection() -> Result<()> {
    let (scene, _agent) = Scene::with_api("forward-bulk").await?;
    much_is_carried(&scene).await
}

#[tokio::test]
async fn kubectl_port_forward_carries_much_on_a_node_that_declares_no_web_sockets() -> Result<()> {
    let (scene, _agent) = Scene::without_declared_features("forward-bulk-spdy").await?;
    much_is_carried(&scene).await
}

async fn much_is_carried(scene: &Scene) -> Result<()> {
    let pod = scene.pod("one").command(SLEEP).create_until("Running").await?;
    let address = pod.status.and_then(|status| status.pod_ip).context("no address")?;
    let listener = TcpListener::bind((address.as_str(), 0)).await?;
    let port = listener.local_addr()?.port();
    tokio::spawn(echo(listener));
    for transport in TRANSPORTS {
        let forward = Forward::start(transport, scene, "one", &[port]).await?;
        let mut stream = TcpStream::connect(("127.0.0.1", forward.local[0])).await?;
        let (mut from, mut to) = stream.split();
        let mut noise = Noise::new();
        let both = async { tokio::try_join!(noise.send(BULK, &mut to), receive(&mut from)) };
        let (sent, (length, received)) = timeout(DEADLINE, both).await.context("it does not end")??;
        ensure!(length == BULK && sent == received, "{transport:?}: {length} bytes, or others, came back");
    }
    Ok(())
}
