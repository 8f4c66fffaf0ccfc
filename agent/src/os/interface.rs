//! The network interfaces of this machine, and their addresses.

use std::net::IpAddr;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;

/// One address of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Interface {
    pub(crate) name: String,
    pub(crate) address: IpAddr,
    pub(crate) is_up: bool,
}

pub(crate) fn interfaces() -> nix::Result<Vec<Interface>> {
    let found = getifaddrs()?.filter_map(|found| {
        let socket = found.address?;
        let v4 = socket.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
        let address = v4.or_else(|| socket.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))?;
        let is_up = found.flags.contains(InterfaceFlags::IFF_UP);
        Some(Interface { name: found.interface_name, address, is_up })
    });
    Ok(found.collect())
}
