//! `tcpSocket`: a port that accepts a connection passes. The other network probes connect by this module, too.

use std::io;
use std::time::Duration;

use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

use super::reach::Reach;
use super::result::ProbeResult;
use crate::os::privacy;

pub(super) async fn probe(host: &str, port: u16, reach: Reach, limit: Duration) -> ProbeResult {
    match timeout(limit, connect(host, port, reach)).await {
        Ok(Ok(_)) => ProbeResult::Passed,
        Ok(Err(why)) => ProbeResult::Failed(why),
        Err(_) => ProbeResult::Failed(format!("dial tcp {}: i/o timeout", address(host, port))),
    }
}

/// Connects to the first address of a host that answers and that the guest's probes may reach; the error is in the kubelet's words, as far as
/// the system's go.
///
/// The address is checked, and not the name: a name can lead to another address each time that it is looked up.
pub(super) async fn connect(host: &str, port: u16, reach: Reach) -> Result<TcpStream, String> {
    let failed = |why: String| format!("dial tcp {}: {why}", address(host, port));
    let found = lookup_host((host, port)).await.map_err(|error| failed(describe(&error, host)))?;
    let mut why = "no such host".to_owned();
    for address in found {
        match reach.check(address.ip()) {
            Ok(()) => match TcpStream::connect(address).await {
                Ok(stream) => return Ok(stream),
                Err(error) => why = describe(&error, host),
            },
            Err(refusal) => why = refusal.to_string(),
        }
    }
    Err(failed(why))
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
    use std::net::{IpAddr, Ipv4Addr};
    use tokio::net::TcpListener;

    const LIMIT: Duration = Duration::from_secs(20);
    const LOCAL: Reach = Reach { guest: IpAddr::V4(Ipv4Addr::LOCALHOST), local: false };

    #[tokio::test]
    async fn an_open_port_passes_and_a_closed_port_fails() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = server.local_addr().unwrap().port();
        assert_eq!(probe("127.0.0.1", port, LOCAL, LIMIT).await, ProbeResult::Passed);
        drop(server);
        let refused = format!("dial tcp 127.0.0.1:{port}: connect: connection refused");
        assert_eq!(probe("127.0.0.1", port, LOCAL, LIMIT).await, ProbeResult::Failed(refused));
    }

    #[tokio::test]
    async fn a_name_or_spelling_that_leads_to_the_mac_itself_is_refused_before_a_connection() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = server.local_addr().unwrap().port();
        let guest = IpAddr::V4(Ipv4Addr::new(192, 168, 64, 5));
        for host in ["127.0.0.1", "localhost", "127.1", "2130706433", "0.0.0.0", "::ffff:127.0.0.1"] {
            let refused = probe(host, port, Reach { guest, local: false }, LIMIT).await;
            let ProbeResult::Failed(why) = refused else { panic!("{host}: {refused:?}") };
            assert!(why.starts_with("dial tcp ") && why.contains("leave `host` out"), "{why}");
        }
        assert_eq!(probe("localhost", port, Reach { guest, local: true }, LIMIT).await, ProbeResult::Passed);
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
        let late = probe("127.0.0.1", 1, LOCAL, Duration::ZERO).await;
        let words =
            ["dial tcp 127.0.0.1:1: i/o timeout", "dial tcp 127.0.0.1:1: connect: connection refused"];
        assert!(matches!(&late, ProbeResult::Failed(why) if words.contains(&why.as_str())), "{late:?}");
        assert_eq!(address("::1", 80), "[::1]:80");
    }
}
