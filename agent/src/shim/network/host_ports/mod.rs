//! Host ports that are forwarded to the guest. The shim listens, so that connections outlive the agent.

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

use crate::os::privacy;
use crate::state::{HostPort, Protocol};

/// Connections at once, and clients of a UDP port. Each takes two files, and macOS allows a process 256. Further TCP clients wait.
const MAX_CLIENTS: usize = 100;
/// How long the guest may take to accept a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// How long a port may be in use: the shim of the run before may be about to exit.
const BIND_LIMIT: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug, thiserror::Error)]
#[error("cannot listen at {protocol} port {address} of the host; {}", advice(.source))]
pub(in crate::shim) struct HostPortError {
    address: SocketAddr,
    protocol: Protocol,
    #[source]
    source: io::Error,
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        // Every user may listen at any port of all addresses, and at any port from 1024 on.
        io::ErrorKind::PermissionDenied => {
            "macOS lets only root listen at a port below 1024 of a single address: leave out `hostIP`, or choose a port above 1023"
        }
        _ => "something else may use it, or the address is not the host's",
    }
}

/// Bound ports. Until they are forwarded, clients wait.
#[derive(Debug, Default)]
pub(in crate::shim) struct HostPorts {
    tcp: Vec<(Arc<TcpListener>, u16)>,
    udp: Vec<(Arc<UdpSocket>, u16)>,
}

/// Forwards ports to a guest for as long as it lives.
#[derive(Debug)]
pub(in crate::shim) struct Forwarding {
    _tasks: JoinSet<()>,
}

impl HostPorts {
    pub(in crate::shim) async fn bind(ports: &[HostPort]) -> Result<Self, HostPortError> {
        let mut bound = Self::default();
        for port in ports {
            let address =
                SocketAddr::new(port.address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)), port.port);
            let failed = |source| HostPortError { address, protocol: port.protocol, source };
            match port.protocol {
                Protocol::Tcp => {
                    let listener = bind_in_time(|| TcpListener::bind(address)).await.map_err(failed)?;
                    bound.tcp.push((Arc::new(listener), port.guest_port));
                }
                Protocol::Udp => {
                    let socket = bind_in_time(|| UdpSocket::bind(address)).await.map_err(failed)?;
                    bound.udp.push((Arc::new(socket), port.guest_port));
                }
            }
        }
        Ok(bound)
    }

    pub(in crate::shim) fn forward_to(&self, guest: IpAddr) -> Forwarding {
        self.forward(guest, MAX_CLIENTS)
    }

    fn forward(&self, guest: IpAddr, max_clients: usize) -> Forwarding {
        let mut tasks = JoinSet::new();
        let permits = Arc::new(Semaphore::new(max_clients));
        for (listener, port) in &self.tcp {
            tasks.spawn(accept(listener.clone(), SocketAddr::new(guest, *port), permits.clone()));
        }
        for (socket, port) in &self.udp {
            tasks.spawn(udp::forward(socket.clone(), SocketAddr::new(guest, *port)));
        }
        Forwarding { _tasks: tasks }
    }
}

/// Binds a port, and tries for a while when it is in use.
async fn bind_in_time<T, F: Future<Output = io::Result<T>>>(bind: impl Fn() -> F) -> io::Result<T> {
    let end = Instant::now() + BIND_LIMIT;
    loop {
        match bind().await {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < end => {
                sleep(PAUSE).await;
            }
            result => return result,
        }
    }
}

/// Accepts connections, as many at once as there are permits; the others wait in the kernel's queue.
async fn accept(listener: Arc<TcpListener>, guest: SocketAddr, permits: Arc<Semaphore>) {
    let mut connections = JoinSet::new();
    loop {
        match listener.accept().await {
            Ok((client, _)) => {
                let Ok(permit) = permits.clone().acquire_owned().await else { return };
                connections.spawn(async move {
                    if let Err(error) = connect(client, guest).await {
                        match privacy::local_network_hint(&error, &guest.ip().to_string()) {
                            Some(hint) => warn!(%guest, %error, "no host port leads to the guest; {hint}"),
                            None => debug!(%guest, %error, "a connection to a host port broke"),
                        }
                    }
                    drop(permit);
                });
            }
            Err(error) => {
                // Most likely out of file descriptors: it would fail again at once.
                warn!(%error, "cannot accept a connection to a host port");
                sleep(PAUSE).await;
            }
        }
        while connections.try_join_next().is_some() {}
    }
}

/// Copies both ways. A half-closed connection stays open in the other direction.
async fn connect(mut client: TcpStream, guest: SocketAddr) -> io::Result<()> {
    let mut guest = timeout(CONNECT_LIMIT, TcpStream::connect(guest)).await??;
    for stream in [&client, &guest] {
        stream.set_nodelay(true)?;
        // A peer that vanishes must not keep its permit for ever.
        setsockopt(stream, sockopt::KeepAlive, &true)?;
    }
    copy_bidirectional(&mut client, &mut guest).await.map(drop)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const HOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[test]
    fn a_low_port_of_one_address_is_refused_with_advice() {
        let words = |kind: io::ErrorKind| {
            let address = SocketAddr::new(HOST, 80);
            HostPortError { address, protocol: Protocol::Tcp, source: kind.into() }.to_string()
        };
        assert!(words(io::ErrorKind::PermissionDenied).contains("leave out `hostIP`"));
        assert!(words(io::ErrorKind::AddrInUse).contains("something else may use it"));
    }

    /// No program of the machine listens there.
    const GUEST: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 77));

    /// A forwarded port, and its address.
    async fn forwarded(protocol: Protocol, guest_port: u16) -> (HostPorts, Forwarding, SocketAddr) {
        let port = HostPort { protocol, address: Some(HOST), port: 0, guest_port };
        let ports = HostPorts::bind(&[port]).await.unwrap();
        let address = match protocol {
            Protocol::Tcp => ports.tcp[0].0.local_addr().unwrap(),
            Protocol::Udp => ports.udp[0].0.local_addr().unwrap(),
        };
        let forwarding = ports.forward_to(GUEST);
        (ports, forwarding, address)
    }

    #[tokio::test]
    async fn a_half_closed_connection_still_gets_its_answer() {
        let server = TcpListener::bind((GUEST, 0)).await.unwrap();
        let guest_port = server.local_addr().unwrap().port();
        tokio::spawn(async move {
            let (mut stream, _) = server.accept().await.unwrap();
            let mut question = String::new();
            // The server answers only after the end of the request.
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
    async fn a_client_beyond_the_maximum_waits() {
        let server = TcpListener::bind((GUEST, 0)).await.unwrap();
        let guest_port = server.local_addr().unwrap().port();
        let port = HostPort { protocol: Protocol::Tcp, address: Some(HOST), port: 0, guest_port };
        let ports = HostPorts::bind(&[port]).await.unwrap();
        let _forwarding = ports.forward(GUEST, 1);
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
    async fn a_client_is_disconnected_when_the_guest_does_not_listen() {
        let free = TcpListener::bind((GUEST, 0)).await.unwrap().local_addr().unwrap().port();
        let (_ports, _forwarding, address) = forwarded(Protocol::Tcp, free).await;
        for _ in 0..2 {
            let mut client = TcpStream::connect(address).await.unwrap();
            assert_eq!(client.read(&mut [0; 8]).await.unwrap_or(0), 0);
        }
    }

    #[tokio::test]
    async fn answers_to_datagrams_reach_their_client() {
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
    async fn a_port_is_free_when_its_forwarding_is_dropped() {
        let (ports, forwarding, address) = forwarded(Protocol::Tcp, 1).await;
        drop(forwarding);
        drop(ports);
        bind_in_time(|| TcpListener::bind(address)).await.unwrap();
    }

    #[tokio::test]
    async fn the_error_names_a_port_in_use() {
        let taken = std::net::TcpListener::bind((HOST, 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        let wanted = HostPort { protocol: Protocol::Tcp, address: Some(HOST), port, guest_port: 80 };
        let error = HostPorts::bind(&[wanted]).await.unwrap_err();
        assert!(error.to_string().contains(&format!("TCP port 127.0.0.1:{port}")), "{error}");
    }
}
