//! Facts of the machine that the agent runs on.

use std::net::{IpAddr, Ipv4Addr};

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use sysinfo::{MemoryRefreshKind, RefreshKind, System};

/// What the machine is and has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostFacts {
    /// Its own name.
    pub hostname: String,
    /// Logical cores.
    pub cores: usize,
    /// Memory in bytes.
    pub memory: u64,
    /// Such as `macOS 26.1`.
    pub os_image: String,
    /// The kernel's version.
    pub kernel: String,
    /// Differs from one start of the machine to the next.
    pub boot_id: String,
}

impl HostFacts {
    /// Looks at the machine.
    pub fn discover() -> Self {
        let what = RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram());
        let system = System::new_with_specifics(what);
        Self {
            hostname: System::host_name().unwrap_or_default(),
            cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            memory: system.map_or(0, |system| system.total_memory()),
            os_image: System::long_os_version().unwrap_or_default(),
            kernel: System::kernel_version().unwrap_or_default(),
            boot_id: System::boot_time().map(|time| time.to_string()).unwrap_or_default(),
        }
    }
}

/// The first address that other machines can reach this one at; a VM bridge's never is.
pub fn routable_address() -> Option<IpAddr> {
    let interfaces = getifaddrs().ok()?;
    let candidates = interfaces.filter(|interface| interface.flags.contains(InterfaceFlags::IFF_UP));
    let mut addresses = candidates.filter_map(|interface| {
        let address = interface.address?.as_sockaddr_in()?.ip();
        is_routable(&interface.interface_name, address).then_some(IpAddr::V4(address))
    });
    addresses.next()
}

fn is_routable(interface: &str, address: Ipv4Addr) -> bool {
    let virtual_bridge =
        ["bridge", "vmnet", "docker", "veth"].iter().any(|prefix| interface.starts_with(prefix));
    !(virtual_bridge || address.is_loopback() || address.is_link_local() || address.is_unspecified())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bridge_of_vms_is_not_a_way_to_this_machine() {
        let address = Ipv4Addr::new(192, 168, 64, 1);
        assert!(is_routable("en0", address));
        for interface in ["bridge100", "vmnet1"] {
            assert!(!is_routable(interface, address), "{interface}");
        }
        assert!(!is_routable("en0", Ipv4Addr::new(169, 254, 1, 1)));
        assert!(!is_routable("lo0", Ipv4Addr::LOCALHOST));
    }

    #[test]
    fn the_machine_has_something_to_run_on() {
        let facts = HostFacts::discover();
        assert!(facts.cores > 0 && facts.memory > 0, "{facts:?}");
    }
}
