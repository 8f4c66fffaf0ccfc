//! Guests with a network of their own.

use std::fs;
use std::io::Read as _;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};

use tart_kubelet_tests::{programs, skip};
use tart_sim::Fault;

use crate::mac::{Mac, Running, eventually};

/// What a process must be allowed to do (`capabilities(7)`) to make networks.
const NET_ADMIN: u64 = 1 << 12;
const SYS_ADMIN: u64 = 1 << 21;

/// A Mac whose guests have networks of their own; `None` on a machine that does not let them.
fn mac() -> Option<Mac> {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    let capabilities = u64::from_str_radix(capabilities.trim(), 16).unwrap();
    if capabilities & (NET_ADMIN | SYS_ADMIN) != NET_ADMIN | SYS_ADMIN {
        skip::say("this machine gives guests no network of their own").unwrap();
        return None;
    }
    let mac = Mac::new();
    mac.switch_on(Fault::OwnNetwork, "");
    Some(mac)
}

fn address(mac: &Mac, vm: &str) -> Ipv4Addr {
    mac.tart(&["ip", vm]).ok().trim().parse().unwrap()
}

/// The host's end of the wire to a guest.
fn wire(address: Ipv4Addr) -> PathBuf {
    Path::new("/sys/class/net").join(format!("tart{:08x}", address.to_bits()))
}

/// Boots a guest with a server on port 8080.
fn boot_server(mac: &Mac, vm: &str) -> Running {
    let programs = mac.directory(&format!("programs-of-{vm}"));
    fs::copy(programs::find("guest-server").unwrap(), programs.join("guest-server")).unwrap();
    mac.create(vm);
    let running = mac.run(&[vm, "--dir", &format!("programs:{}:ro", programs.display())]);
    mac.wait_for_agent(vm);
    let server = "'/Volumes/My Shared Files/programs/guest-server' up >/dev/null 2>&1 </dev/null &";
    mac.sh(vm, server).ok();
    running
}

#[test]
fn guests_have_addresses_of_their_own_and_the_same_ports() {
    let Some(mac) = mac() else { return };
    let _a = boot_server(&mac, "a");
    let _b = boot_server(&mac, "b");
    let [a, b] = ["a", "b"].map(|vm| address(&mac, vm));
    assert_ne!(a, b);
    for (vm, guest, other) in [("a", a, b), ("b", b, a)] {
        assert_eq!(guest.octets()[0], 10, "{guest}");
        eventually("the host reaches the server", || TcpStream::connect((guest, 8080)).ok());
        // A guest has only its own server on its loopback address, and reaches another guest at that one's.
        assert_ne!(mac.sh(vm, "bash -c ': </dev/tcp/127.0.0.1/8080'").code(), 0);
        eventually("a guest reaches another", || {
            let script = format!("bash -c ': </dev/tcp/{other}/8080'");
            mac.sh(vm, &script).status.success().then_some(())
        });
    }
}

#[test]
fn a_guest_reaches_the_mac_from_its_own_address() {
    let Some(mac) = mac() else { return };
    let _a = mac.boot("a");
    let guest = address(&mac, "a");
    let [first, second, third, _] = guest.octets();
    let host = TcpListener::bind((Ipv4Addr::new(first, second, third, 1), 0)).unwrap();
    let to = host.local_addr().unwrap();
    mac.sh("a", &format!("bash -c 'echo hello >/dev/tcp/{}/{}'", to.ip(), to.port())).ok();
    let (mut stream, from) = host.accept().unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    assert_eq!((from.ip(), said.as_str()), (guest.into(), "hello\n"));
    // What listens on the machine's loopback address is not the guest's.
    let own = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = own.local_addr().unwrap().port();
    assert_ne!(mac.sh("a", &format!("bash -c ': </dev/tcp/127.0.0.1/{port}'")).code(), 0);
}

#[test]
fn a_guests_network_ends_with_it_and_comes_back_with_a_reboot() {
    let Some(mac) = mac() else { return };
    let a = mac.boot("a");
    let guest = address(&mac, "a");
    assert!(wire(guest).exists());
    mac.sh("a", "touch /tmp/before; sudo reboot");
    eventually("the guest is back", || mac.sh("a", "echo back").status.success().then_some(()));
    eventually("the host reaches it again", || {
        // The guest refuses the connection, which only a reachable one does.
        let error = TcpStream::connect((guest, 8080)).err()?;
        (error.kind() == std::io::ErrorKind::ConnectionRefused).then_some(())
    });
    a.kill();
    eventually("the wire is gone", || (!wire(guest).exists()).then_some(()));
}

#[test]
fn a_machine_without_namespaces_gives_loopback_addresses() {
    let Some(mac) = mac() else { return };
    mac.switch_on(Fault::NoNamespaces, "");
    let _a = mac.boot("a");
    assert_eq!(address(&mac, "a").octets()[0], 127);
}
