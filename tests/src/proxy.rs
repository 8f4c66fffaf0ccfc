//! A way to the API server that can be made slow, or a dead end. What it carries is real: TLS, to the real server.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::control_plane::ControlPlane;

/// A proxy for as long as it is not dropped, on the runtime that made it.
#[derive(Debug)]
pub struct Proxy {
    address: String,
    server: String,
    pace: watch::Sender<Pace>,
    bytes: Arc<AtomicU64>,
    _tasks: JoinSet<()>,
}

/// How a proxy passes on what it gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pace {
    /// Each piece after this time.
    After(Duration),
    /// Not at all.
    Never,
    /// Not at all, and every connection breaks.
    Broken,
}

impl Proxy {
    /// A proxy to a control plane's API server.
    pub async fn start(control_plane: &ControlPlane) -> Result<Self> {
        let server = control_plane.server().to_owned();
        let target = server.strip_prefix("https://").context("not an https server")?.to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.context("no free port")?;
        let address = listener.local_addr()?.to_string();
        let (pace, paced) = watch::channel(Pace::After(Duration::ZERO));
        let bytes = Arc::new(AtomicU64::new(0));
        let mut tasks = JoinSet::new();
        let counter = bytes.clone();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let (target, mut paced, counter) = (target.clone(), paced.clone(), counter.clone());
                connections.spawn(async move {
                    let Ok(server) = TcpStream::connect(target).await else { return };
                    let (mut from_client, mut to_client) = client.into_split();
                    let (mut from_server, mut to_server) = server.into_split();
                    tokio::select! {
                        () = pass(&mut from_client, &mut to_server, paced.clone(), &counter) => {}
                        () = pass(&mut from_server, &mut to_client, paced.clone(), &counter) => {}
                        _ = paced.wait_for(|pace| *pace == Pace::Broken) => {}
                    }
                });
            }
        });
        Ok(Self { address, server, pace, bytes, _tasks: tasks })
    }

    /// From now on, every piece in either direction takes this much longer.
    pub fn delay(&self, delay: Duration) {
        self.pace.send_replace(Pace::After(delay));
    }

    /// From now on, nothing gets through, and no connection breaks.
    pub fn block(&self) {
        self.pace.send_replace(Pace::Never);
    }

    /// From now on, every connection breaks.
    pub fn sever(&self) {
        self.pace.send_replace(Pace::Broken);
    }

    /// How many bytes have passed in both directions.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Makes a kubeconfig that goes through the proxy from one that does not.
    pub fn kubeconfig(&self, direct: &Path) -> Result<PathBuf> {
        let text =
            std::fs::read_to_string(direct).with_context(|| format!("cannot read {}", direct.display()))?;
        let path = direct.with_extension("proxied");
        std::fs::write(&path, text.replace(&self.server, &format!("https://{}", self.address)))
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }
}

async fn pass(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    mut pace: watch::Receiver<Pace>,
    counter: &AtomicU64,
) {
    let mut piece = vec![0; 64 << 10];
    while let Ok(length @ 1..) = from.read(&mut piece).await {
        let Ok(now) = pace.wait_for(|pace| *pace != Pace::Never).await.map(|pace| *pace) else { return };
        if let Pace::After(delay) = now
            && !delay.is_zero()
        {
            sleep(delay).await;
        }
        counter.fetch_add(length as u64, Ordering::Relaxed);
        if to.write_all(&piece[..length]).await.is_err() {
            return;
        }
    }
}
