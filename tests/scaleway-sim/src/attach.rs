//! A Mac behind the address of a server: an address of its own on the loopback, whose port 22 leads to the Mac's sshd.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

/// The port on which a Mac is reached.
const SSH: u16 = 22;
const ATTEMPTS: u32 = 20;

/// A Mac behind an address. It is gone with this value.
#[derive(Debug)]
pub(crate) struct Attachment {
    ip: Ipv4Addr,
    task: AbortHandle,
}

impl Attachment {
    pub(crate) fn ip(&self) -> Ipv4Addr {
        self.ip
    }

    /// Takes an address, and leads what connects to it to the Mac. Needs root, for the port.
    pub(crate) async fn new(mac: SocketAddr) -> io::Result<Self> {
        let mut refused = None;
        for _ in 0..ATTEMPTS {
            let [a, b, c] = rand::random::<[u8; 3]>();
            let ip = Ipv4Addr::new(127, a.max(2), b, c.clamp(1, 254));
            match TcpListener::bind((ip, SSH)).await {
                Ok(listener) => {
                    let task = tokio::spawn(relay(listener, mac)).abort_handle();
                    return Ok(Self { ip, task });
                }
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => refused = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(refused.unwrap_or_else(|| io::ErrorKind::AddrInUse.into()))
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn relay(listener: TcpListener, mac: SocketAddr) {
    // The connections end with the task.
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let Ok((mut client, _)) = listener.accept().await else { return };
        connections.spawn(async move {
            if let Ok(mut server) = TcpStream::connect(mac).await {
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            }
        });
        while connections.try_join_next().is_some() {}
    }
}
