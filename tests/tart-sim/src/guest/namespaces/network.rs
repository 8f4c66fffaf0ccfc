//! A network of the guest's own: a wire to the host, with the guest's address at one end and the Mac's at the other.
//!
//! The host reaches the guest at its address, the guest reaches the Mac at the first address of the subnet, and the Mac passes on
//! what is for other guests. Nothing has to be taken down: the kernel removes the wire with the guest's last process.

use std::fs::{self, File};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsFd as _;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};

use super::netlink::{LOOPBACK, Netlink};

/// The guest's end of the wire has the name that macOS gives to its first interface.
const INTERFACE: &str = "en0";

/// The kernel removes the wire of a guest that was killed a moment after its last process.
const OLD_WIRE: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(5);

/// Gives this process, which has one thread, a network of its own with an address.
pub(super) fn enter(address: Option<Ipv4Addr>) -> io::Result<()> {
    let host = Netlink::open()?;
    unshare(CloneFlags::CLONE_NEWNET)?;
    let guest = Netlink::open()?;
    guest.switch_on(LOOPBACK)?;
    // Every user of a Mac may listen on any port. The file is read-only in most containers.
    let _ = fs::write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0");
    let Some(address) = address else { return Ok(()) };
    let name = wire(address);
    lay_wire(&host, &name)?;
    let mac = mac_address_of(address);
    let (host_end, guest_end) = (host.number_of(&name)?, guest.number_of(INTERFACE)?);
    host.switch_on(host_end)?;
    host.add_address(host_end, mac, address)?;
    host.forward_from(host_end)?;
    guest.switch_on(guest_end)?;
    guest.add_address(guest_end, address, mac)?;
    guest.add_default_route(mac)
}

/// Tries whether this machine lets a guest have a network of its own, and ends.
pub(in crate::guest) fn probe() -> ExitCode {
    let tried = Netlink::open().and_then(|host| {
        unshare(CloneFlags::CLONE_NEWNET)?;
        host.add_pair(&format!("tart{}", std::process::id()), INTERFACE, own_namespace()?.as_fd())
    });
    if tried.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Connects the host with this process's network. Waits for a guest that had the address, and was killed, to be gone.
fn lay_wire(host: &Netlink, name: &str) -> io::Result<()> {
    let namespace = own_namespace()?;
    let deadline = Instant::now() + OLD_WIRE;
    loop {
        match host.add_pair(name, INTERFACE, namespace.as_fd()) {
            Err(error) if error.raw_os_error() == Some(Errno::EEXIST as i32) && Instant::now() < deadline => {
                thread::sleep(POLL);
            }
            result => return result,
        }
    }
}

fn own_namespace() -> io::Result<File> {
    File::open("/proc/self/ns/net")
}

/// The name of the host's end of a wire. No two guests of this machine have the same address at a time.
fn wire(address: Ipv4Addr) -> String {
    format!("tart{:08x}", address.to_bits())
}

/// The Mac has the first address of a guest's subnet.
fn mac_address_of(guest: Ipv4Addr) -> Ipv4Addr {
    let [first, second, third, _] = guest.octets();
    Ipv4Addr::new(first, second, third, 1)
}
