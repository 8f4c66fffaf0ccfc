//! The kernel's interface for links, addresses and routes: requests, and the kernel's answers.
//!
//! A socket belongs to the network namespace in which it was opened, wherever its process goes afterwards.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket};

/// The length of a message's header.
const HEADER: usize = 16;

/// Where a message about a link has the link's number: after the header, two families and the type.
const LINK_NUMBER: usize = HEADER + 4;

/// Longer than any answer that is asked for here.
const LONGEST_ANSWER: usize = 16 << 10;

// The attributes of links and of pairs of links that nix does not have.
const VETH_INFO_PEER: u16 = 1;
const IFLA_INET_CONF: u16 = 1;
const IPV4_DEVCONF_FORWARDING: u16 = 1;

/// IPv4 (`AF_INET`), as one byte.
const INTERNET: u8 = 2;

/// The number of a link in its network namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LinkNumber(i32);

/// The loopback link has this number in every network namespace.
pub(super) const LOOPBACK: LinkNumber = LinkNumber(1);

/// A connection to the kernel about one network namespace.
#[derive(Debug)]
pub(super) struct Netlink(OwnedFd);

impl Netlink {
    /// Connects for the network namespace that this process is in.
    pub(super) fn open() -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC;
        Ok(Self(socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute)?))
    }

    /// Makes a pair of links, both switched off: what is sent into one comes out of the other. The second is in another network namespace
    /// from the beginning, so that the pair ends with that namespace. A name that is taken is an error (`EEXIST`).
    pub(super) fn add_pair(&self, name: &str, other: &str, others_namespace: BorrowedFd) -> io::Result<()> {
        let namespace = others_namespace.as_raw_fd().to_ne_bytes();
        let peer = Message::new_link()
            .attribute(libc::IFLA_IFNAME, &with_nul(other))
            .attribute(libc::IFLA_NET_NS_FD, &namespace);
        let data = Message::default().attribute(VETH_INFO_PEER, &peer.0);
        let info = Message::default()
            .attribute(libc::IFLA_INFO_KIND, b"veth")
            .attribute(libc::IFLA_INFO_DATA, &data.0);
        let message = Message::new_link()
            .attribute(libc::IFLA_IFNAME, &with_nul(name))
            .attribute(libc::IFLA_LINKINFO, &info.0);
        self.change(libc::RTM_NEWLINK, libc::NLM_F_CREATE | libc::NLM_F_EXCL, &message)
    }

    /// The number of a link.
    pub(super) fn number_of(&self, name: &str) -> io::Result<LinkNumber> {
        let message = Message::new_link().attribute(libc::IFLA_IFNAME, &with_nul(name));
        let answer = self.ask(libc::RTM_GETLINK, 0, &message)?;
        let number = answer.get(LINK_NUMBER..LINK_NUMBER + 4).and_then(|bytes| bytes.try_into().ok());
        number.map(i32::from_ne_bytes).map(LinkNumber).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Switches a link on.
    pub(super) fn switch_on(&self, link: LinkNumber) -> io::Result<()> {
        self.change(libc::RTM_NEWLINK, 0, &Message::link(link))
    }

    /// Has the kernel pass on what arrives on a link and is for others. It does so for no other link.
    pub(super) fn forward_from(&self, link: LinkNumber) -> io::Result<()> {
        let settings = Message::default().attribute(IPV4_DEVCONF_FORWARDING, &1_u32.to_ne_bytes());
        let internet = Message::default().attribute(IFLA_INET_CONF, &settings.0);
        let families = Message::default().attribute(INTERNET.into(), &internet.0);
        let message = Message::link(link).attribute(libc::IFLA_AF_SPEC, &families.0);
        self.change(libc::RTM_NEWLINK, 0, &message)
    }

    /// Gives a link an address, and a route to the only other one on the wire.
    pub(super) fn add_address(&self, link: LinkNumber, own: Ipv4Addr, other: Ipv4Addr) -> io::Result<()> {
        let mut message = Message(vec![INTERNET, 32, 0, 0]);
        message.0.extend(link.0.to_ne_bytes());
        let message =
            message.attribute(libc::IFA_LOCAL, &own.octets()).attribute(libc::IFA_ADDRESS, &other.octets());
        self.change(libc::RTM_NEWADDR, libc::NLM_F_CREATE | libc::NLM_F_EXCL, &message)
    }

    /// Sends all else to this address.
    pub(super) fn add_default_route(&self, gateway: Ipv4Addr) -> io::Result<()> {
        let kind = [libc::RT_TABLE_MAIN, libc::RTPROT_STATIC, libc::RT_SCOPE_UNIVERSE, libc::RTN_UNICAST];
        let mut message = Message(vec![INTERNET, 0, 0, 0]);
        message.0.extend(kind);
        message.0.extend([0; 4]);
        let message = message.attribute(libc::RTA_GATEWAY, &gateway.octets());
        self.change(libc::RTM_NEWROUTE, libc::NLM_F_CREATE | libc::NLM_F_EXCL, &message)
    }

    fn change(&self, kind: u16, flags: libc::c_int, message: &Message) -> io::Result<()> {
        self.ask(kind, flags | libc::NLM_F_ACK, message).map(drop)
    }

    /// Sends a request, and returns the kernel's answer with its header. The kernel has answered when `send` returns.
    fn ask(&self, kind: u16, flags: libc::c_int, message: &Message) -> io::Result<Vec<u8>> {
        let length = u32::try_from(HEADER + message.0.len()).map_err(io::Error::other)?;
        let flags = u16::try_from(flags | libc::NLM_F_REQUEST).map_err(io::Error::other)?;
        let mut request = Vec::new();
        request.extend(length.to_ne_bytes());
        request.extend(kind.to_ne_bytes());
        request.extend(flags.to_ne_bytes());
        // Sequence and port: one request at a time has one answer.
        request.extend([0; 8]);
        request.extend(&message.0);
        send(self.0.as_raw_fd(), &request, MsgFlags::empty())?;
        let mut answer = vec![0; LONGEST_ANSWER];
        let length = recv(self.0.as_raw_fd(), &mut answer, MsgFlags::MSG_DONTWAIT)?;
        answer.truncate(length);
        refusal(&answer).map_or(Ok(answer), |error| Err(error.into()))
    }
}

/// The error that an answer is, unless it grants the request.
fn refusal(answer: &[u8]) -> Option<Errno> {
    let kind = answer.get(4..6).and_then(|bytes| bytes.try_into().ok()).map(u16::from_ne_bytes);
    if kind.map(libc::c_int::from) != Some(libc::NLMSG_ERROR) {
        return None;
    }
    let code = answer.get(HEADER..HEADER + 4).and_then(|bytes| bytes.try_into().ok()).map(i32::from_ne_bytes);
    match code {
        Some(0) => None,
        Some(code) => Some(Errno::from_raw(-code)),
        None => Some(Errno::EBADMSG),
    }
}

/// The body of a request: its fixed part, and attributes.
#[derive(Debug, Default)]
struct Message(Vec<u8>);

impl Message {
    /// The fixed part for a link that has no number yet.
    fn new_link() -> Self {
        Self(vec![0; 16])
    }

    /// The fixed part for a link that is to be switched on.
    fn link(LinkNumber(number): LinkNumber) -> Self {
        let mut fixed = vec![0; 4];
        fixed.extend(number.to_ne_bytes());
        let up = libc::IFF_UP.to_ne_bytes();
        // The flags, and which of them this request changes.
        fixed.extend(up);
        fixed.extend(up);
        Self(fixed)
    }

    /// Adds an attribute. Each begins at a multiple of four bytes.
    fn attribute(mut self, kind: u16, value: &[u8]) -> Self {
        // No attribute here is near 64 KiB.
        let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
        self.0.extend(length.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }
}

fn with_nul(name: &str) -> Vec<u8> {
    [name.as_bytes(), b"\0"].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_begin_at_multiples_of_four_and_count_their_header() {
        let message = Message::default().attribute(3, b"en0\0x").attribute(4, b"");
        let [length, kind, next] = [5_u16 + 4, 3, 4].map(u16::to_ne_bytes);
        let expected = [&length[..], &kind, b"en0\0x\0\0\0", &next, &next].concat();
        assert_eq!(message.0, expected);
    }

    #[test]
    fn an_answer_is_a_refusal_only_with_an_error_code() {
        let answer = |code: i32| {
            let mut bytes = vec![0; HEADER];
            bytes[4..6].copy_from_slice(&2_u16.to_ne_bytes());
            bytes.extend(code.to_ne_bytes());
            bytes
        };
        assert_eq!(refusal(&answer(0)), None);
        assert_eq!(refusal(&answer(-libc::EPERM)), Some(Errno::EPERM));
        assert_eq!(refusal(&answer(0)[..HEADER]), Some(Errno::EBADMSG));
        assert_eq!(refusal(&[0; HEADER]), None);
    }
}
