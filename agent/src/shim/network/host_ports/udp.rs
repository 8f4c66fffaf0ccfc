//! UDP: the shim has one socket towards the guest per client, so that answers reach their client.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::debug;

use super::{MAX_CLIENTS, PAUSE};

/// A client without a datagram in either direction for this long is forgotten.
const IDLE: Duration = Duration::from_mins(1);
const MAX_DATAGRAM: usize = 65_536;
/// Datagrams per client that may wait for the guest; further ones are lost.
const MAX_WAITING: usize = 16;

/// Forwards datagrams to the guest, and its answers back.
pub(super) async fn forward(socket: Arc<UdpSocket>, guest: SocketAddr) {
    let mut clients: HashMap<SocketAddr, mpsc::Sender<Vec<u8>>> = HashMap::new();
    let mut tasks = JoinSet::new();
    let mut buffer = vec![0; MAX_DATAGRAM];
    loop {
        let (length, client) = match socket.recv_from(&mut buffer).await {
            Ok(received) => received,
            Err(error) => {
                debug!(%error, "cannot receive at a host port");
                sleep(PAUSE).await;
                continue;
            }
        };
        while tasks.try_join_next().is_some() {}
        clients.retain(|_, sender| !sender.is_closed());
        if !clients.contains_key(&client) {
            if clients.len() >= MAX_CLIENTS {
                continue;
            }
            let (sender, datagrams) = mpsc::channel(MAX_WAITING);
            clients.insert(client, sender);
            tasks.spawn(serve(socket.clone(), client, guest, datagrams));
        }
        if let Some(sender) = clients.get(&client) {
            // A guest that is too slow loses datagrams, as on any network.
            let _ = sender.try_send(buffer[..length].to_vec());
        }
    }
}

/// Serves one client until it is idle.
async fn serve(
    socket: Arc<UdpSocket>,
    client: SocketAddr,
    guest: SocketAddr,
    mut datagrams: mpsc::Receiver<Vec<u8>>,
) {
    let any = match guest.ip() {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let towards = match UdpSocket::bind((any, 0)).await {
        Ok(towards) => towards,
        Err(error) => return debug!(%error, "cannot open a socket for a client"),
    };
    if let Err(error) = towards.connect(guest).await {
        return debug!(%error, "cannot reach the guest");
    }
    let mut buffer = vec![0; MAX_DATAGRAM];
    loop {
        tokio::select! {
            datagram = datagrams.recv() => match datagram {
                Some(datagram) => drop(towards.send(&datagram).await),
                None => return,
            },
            received = towards.recv(&mut buffer) => match received {
                Ok(length) => drop(socket.send_to(&buffer[..length], client).await),
                // No program listens in the guest yet.
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {}
                Err(error) => return debug!(%error, "lost the guest"),
            },
            () = sleep(IDLE) => return,
        }
    }
}
