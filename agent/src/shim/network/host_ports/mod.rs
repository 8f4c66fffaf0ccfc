//! Ports of the host that lead into the guest. The shim has them, so that connections outlive the agent.

mod udp;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, warn};

use crate::state::{HostPort, Protocol};

/// Connections at once, and clients of a UDP port: each takes two files, and macOS gives a process 256. The rest waits.
const MOST: usize = 100;
/// How long the guest may take to accept a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// A shim that is on its way out may still have the port.
const BIND_PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(100);

/// A port that cannot be had.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot listen at {protocol} port {address} of the host; something else may use it, or the address is not the host's"
)]
pub(crate) struct HostPortError {
    address: SocketAddr,
    protocol: Protocol,
    #[source]
    source: io::Error,
}

/// Ports that are ours, so that nobody else can have them. Until they lead somewhere, clients wait.
#[derive(Debug, Default)]
pub(crate) struct HostPorts {
    tcp: Vec<(Arc<TcpListener>, u16)>,
    udp: Vec<(Arc<UdpSocket>, u16)>,
}

/// Ports that lead into a guest, for as long as this lives.
#[derive(Debug)]
pub(crate) struct Forwarding {
    _tasks: JoinSet<()>,
}

impl HostPorts {
    /// Takes the ports.
    pub(crate) async fn bind(ports: &[HostPort]) -> Result<Self, HostPortError> {
        let mut bound = Self::default();
        for port in ports {
            let address =
                SocketAddr::new(port.address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)), port.port);
            let failed = |source| HostPortError { address, protocol: port.protocol, source };
            match port.protocol {
                Protocol::Tcp => {
                    let listener = patiently(|| TcpListener::bind(address)).await.map_err(failed)?;
                    bound.tcp.push((Arc::new(listener), port.guest_port));
                }
                Protocol::Udp => {
                    let socket = patiently(|| UdpSocket::bind(address)).await.map_err(failed)?;
                    bound.udp.push((Arc::new(socket), port.guest_port));
                }
            }
        }
        Ok(bound)
    }

    /// Leads the ports to a guest.
    pub(crate) fn serve(&self, guest: IpAddr) -> Forwarding {
        self.lead_to(guest, MOST)
    }

    fn lead_to(&self, guest: IpAddr, most: usize) -> Forwarding {
        let mut tasks = JoinSet::new();
        let places = Arc::new(Semaphore::new(most));
        for (listener, port) in &self.tcp {
            tasks.spawn(accept(listener.clone(), SocketAddr::new(guest, *port), places.clone()));
        }
        for (socket, port) in &self.udp {
            tasks.spawn(udp::forward(socket.clone(), SocketAddr::new(guest, *port)));
        }
        Forwarding { _tasks: tasks }
    }
}

/// Tries for a while to take a port that is still in use.
async fn patiently<T, F: Future<Output = io::Result<T>>>(bind: impl Fn() -> F) -> io::Result<T> {
    let end = Instant::now() + BIND_PATIENCE;
    loop {
        match bind().await {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < end => {
                sleep(PAUSE).await;
            }
            result => return result,
        }
    }
}

/// Takes connections, as many at once as there are places; the others wait in the kernel's queue.
async fn accept(listener: Arc<TcpListener>, guest: SocketAddr, places: Arc<Semaphore>) {
    let mut connections = JoinSet::new();
    loop {
        match listener.accept().await {
            Ok((client, _)) => {
                let Ok(place) = places.clone().acquire_owned().await else { return };
                connections.spawn(async move {
                    if let Err(error) = connect(client, guest).await {
                        debug!(%guest, %error, "a connection to a host port broke off");
                    }
                    drop(place);
                });
            }
            Err(error) => {
                // Out of file descriptors, most likely: at once it would only fail again.
                warn!(%error, "cannot take a connection to a host port");
                sleep(PAUSE).await;
            }
        }
        while connections.try_join_next().is_some() {}
    }
}

/// Copies both ways. The end of one direction is passed on, and the other goes on until its own end.
async fn connect(mut client: TcpStream, guest: SocketAddr) -> io::Result<()> {
    let mut guest = timeout(CONNECT_LIMIT, TcpStream::connect(guest)).await??;
    for stream in [&client, &guest] {
        stream.set_nodelay(true)?;
        // A peer that is gone without a word must not keep its place for ever.
        setsockopt(stream, sockopt::KeepAlive, &true)?;
    }
    copy_bidirectional(&mut client, &mut guest).await.map(drop)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const HOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    /// Where nothing on the machine listens.
    const GUEST: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 77));

    /// A port that is forwarded, and the address to reach it at.
    async fn forwarded(protocol: Protocol, guest_port: u16) -> (HostPorts, Forwarding, SocketAddr) {
        let port = HostPort { protocol, address: Some(HOST), port: 0, guest_port };
        let ports = HostPorts::bind(&[port]).await.unwrap();
        let address = match protocol {
            Protocol::Tcp => ports.tcp[0].0.local_addr().unwrap(),
            Protocol::Udp => ports.udp[0].0.local_addr().unwrap(),
        };
        let forwarding = ports.serve(GUEST);
        (ports, forwarding, address)
    }

    #[tokio::test]
    async fn a_half_closed_connection_still_gets_its_answer() {
        let server = TcpListener::bind((GUEST, 0)).await.unwrap();
        let guest_port = server.local_addr().unwrap().port();
        tokio::spawn(async move {
            let (mut stream, _) = server.accept().await.unwrap();
            let mut question = String::new();
            // It answers only when it knows that nothing more will come.
            stream.read_to_string(&mut question).await.unwrap();
            stream.write_all(question.to_uppercase().as_bytes()).await.unwrap();
        });
        let (_ports, _forwarding, address) = forwarded(Protocol::Tcp, guest_port).await;
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(b"hello").await.unwrap();
        client.shutdown().await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "HELLO");
    }

    #[tokio::test]
    async fn who_finds_no_place_waits_for_one() {
        let server = TcpListener::bind((GUEST, 0)).await.unwrap();
        let guest_port = server.local_addr().unwrap().port();
        let port = HostPort { protocol: Protocol::Tcp, address: Some(HOST), port: 0, guest_port };
        let ports = HostPorts::bind(&[port]).await.unwrap();
        let _forwarding = ports.lead_to(GUEST, 1);
        let address = ports.tcp[0].0.local_addr().unwrap();
        let first = TcpStream::connect(address).await.unwrap();
        let (in_guest, _) = server.accept().await.unwrap();
        let mut second = TcpStream::connect(address).await.unwrap();
        second.write_all(b"me too").await.unwrap();
        assert!(timeout(Duration::from_millis(100), server.accept()).await.is_err(), "two at once");
        drop((first, in_guest));
        server.accept().await.unwrap();
    }

    #[tokio::test]
    async fn a_guest_that_does_not_listen_costs_the_client_its_connection_only() {
        let free = TcpListener::bind((GUEST, 0)).await.unwrap().local_addr().unwrap().port();
        let (_ports, _forwarding, address) = forwarded(Protocol::Tcp, free).await;
        for _ in 0..2 {
            let mut client = TcpStream::connect(address).await.unwrap();
            assert_eq!(client.read(&mut [0; 8]).await.unwrap_or(0), 0);
        }
    }

    #[tokio::test]
    async fn datagrams_find_their_way_back_to_each_client() {
        let server = UdpSocket::bind((GUEST, 0)).await.unwrap();
        let guest_port = server.local_addr().unwrap().port();
        tokio::spawn(async move {
            let mut buffer = [0; 64];
            while let Ok((length, client)) = server.recv_from(&mut buffer).await {
                server.send_to(&buffer[..length].to_ascii_uppercase(), client).await.unwrap();
            }
        });
        let (_ports, _forwarding, address) = forwarded(Protocol::Udp, guest_port).await;
        let mut clients = Vec::new();
        for name in ["one", "two"] {
            let client = UdpSocket::bind((HOST, 0)).await.unwrap();
            client.connect(address).await.unwrap();
            client.send(name.as_bytes()).await.unwrap();
            clients.push((client, name));
        }
        for (client, name) in clients {
            let mut buffer = [0; 64];
            let length = client.recv(&mut buffer).await.unwrap();
            assert_eq!(buffer[..length], *name.to_ascii_uppercase().as_bytes());
        }
    }

    #[tokio::test]
    async fn forwarding_ends_with_its_value_and_the_port_is_free_again() {
        let (ports, forwarding, address) = forwarded(Protocol::Tcp, 1).await;
        drop(forwarding);
        drop(ports);
        patiently(|| TcpListener::bind(address)).await.unwrap();
    }

    #[tokio::test]
    async fn a_port_in_use_is_named() {
        let taken = std::net::TcpListener::bind((HOST, 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        let wanted = HostPort { protocol: Protocol::Tcp, address: Some(HOST), port, guest_port: 80 };
        let error = HostPorts::bind(&[wanted]).await.unwrap_err();
        assert!(error.to_string().contains(&format!("TCP port 127.0.0.1:{port}")), "{error}");
    }
}
