//! `tcpSocket`: a port that accepts a connection passes. The other network probes connect by this module, too.

use std::io;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;

use super::result::ProbeResult;
use crate::os::privacy;

pub(super) async fn probe(host: &str, port: u16, limit: Duration) -> ProbeResult {
    match timeout(limit, connect(host, port)).await {
        Ok(Ok(_)) => ProbeResult::Passed,
        Ok(Err(why)) => ProbeResult::Failed(why),
        Err(_) => ProbeResult::Failed(format!("dial tcp {}: i/o timeout", address(host, port))),
    }
}

/// Connects; the error is in the kubelet's words, as far as the system's go.
pub(super) async fn connect(host: &str, port: u16) -> Result<TcpStream, String> {
    let connected = TcpStream::connect((host, port)).await;
    connected.map_err(|error| format!("dial tcp {}: {}", address(host, port), describe(&error, host)))
}

/// An address as it is written in a URL.
pub(super) fn address(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

fn describe(error: &io::Error, host: &str) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connect: connection refused".to_owned(),
        io::ErrorKind::HostUnreachable => match privacy::local_network_hint(error, host) {
            Some(hint) => format!("connect: no route to host; {hint}"),
            None => "connect: no route to host".to_owned(),
        },
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    const LIMIT: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn an_open_port_passes_and_a_closed_port_fails() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = server.local_addr().unwrap().port();
        assert_eq!(probe("127.0.0.1", port, LIMIT).await, ProbeResult::Passed);
        drop(server);
        let refused = format!("dial tcp 127.0.0.1:{port}: connect: connection refused");
        assert_eq!(probe("127.0.0.1", port, LIMIT).await, ProbeResult::Failed(refused));
    }

    #[test]
    fn a_guest_without_a_route_may_be_hidden_by_a_privacy_setting() {
        let error = io::Error::from(io::ErrorKind::HostUnreachable);
        let words = describe(&error, "192.168.64.5");
        assert!(words.starts_with("connect: no route to host; macOS may keep"), "{words}");
        assert_eq!(describe(&error, "203.0.113.7"), "connect: no route to host");
    }

    #[tokio::test]
    async fn a_host_that_does_not_answer_fails_at_the_time_out() {
        let late = probe("127.0.0.1", 1, Duration::ZERO).await;
        let words =
            ["dial tcp 127.0.0.1:1: i/o timeout", "dial tcp 127.0.0.1:1: connect: connection refused"];
        assert!(matches!(&late, ProbeResult::Failed(why) if words.contains(&why.as_str())), "{late:?}");
        assert_eq!(address("::1", 80), "[::1]:80");
    }
}
