//! The guest's address. Host ports and probes lead there, so that the guest's own word is checked.

use std::io::ErrorKind;
use std::net::{IpAddr, UdpSocket};
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::{sleep, timeout};
use tracing::warn;

use crate::error_chain::chain;
use crate::guest::{Guest, GuestError};
use crate::os::dhcp_leases::{self, LeaseHolder};
use crate::shim::Shim;

/// How often the guest agent of a booting VM is asked for the guest's address.
const ASK_INTERVAL: Duration = Duration::from_millis(100);
/// How long one answer may take.
const ASK_LIMIT: Duration = Duration::from_secs(2);
/// How often the file of leases is read for the VM's lease. A guest agent may take its first connection a second late, so that the lease is often
/// what comes first.
const LEASE_INTERVAL: Duration = Duration::from_millis(100);
/// The file of leases for the spec of an agent that names none.
const LEASES: &str = "/var/db/dhcpd_leases";
/// How soon a guest is asked again whose address may be another machine's: that machine may be gone by then.
const CLAIM_INTERVAL: Duration = Duration::from_secs(2);

/// Which machine may have the address that a guest claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Claimant {
    /// None but the guest.
    Free,
    /// The host itself, or no machine at all.
    Host,
    /// The machine with the DHCP lease for it.
    LeaseHolder,
    /// No VM of this host.
    Outsider,
    /// Another VM of this host.
    OtherVm,
}

impl Shim {
    /// The guest's address, from the guest agent or from its DHCP lease, whichever is there first.
    pub(in crate::shim) async fn address(&self) -> IpAddr {
        let claimed = async {
            let mut warned = false;
            loop {
                // By one connection: tart keeps every connection that was closed.
                let (mut guest, mut answer) = self.guest_agent().await;
                loop {
                    if let Some(claimed) = answer {
                        let claimant = self.claimant(claimed);
                        if claimant == Claimant::Free {
                            return claimed;
                        }
                        if !std::mem::replace(&mut warned, true) {
                            warn!(vm = %self.spec.vm, %claimed, ?claimant, "the guest claims an address that another machine may have; waiting for its lease");
                        }
                    }
                    sleep(CLAIM_INTERVAL).await;
                    match timeout(ASK_LIMIT, answered(&mut guest)).await {
                        Ok(Ok(address)) => answer = address,
                        _ => break,
                    }
                }
            }
        };
        tokio::select! { address = claimed => address, address = self.leased() => address }
    }

    /// The address that is leased to the VM's own MAC address. No other VM ever had it, so that the lease is never a stale one.
    async fn leased(&self) -> IpAddr {
        let path = self.spec.dhcp_leases.as_deref().unwrap_or_else(|| Path::new(LEASES));
        let mut warned = false;
        loop {
            let mac = self.tart.mac_address(&self.spec.vm);
            match mac.and_then(|mac| dhcp_leases::leased_to(path, mac)) {
                Ok(Some(address)) => return address.into(),
                // There is no file before the first lease.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) if !std::mem::replace(&mut warned, true) => {
                    warn!(vm = %self.spec.vm, path = %path.display(), %error, "cannot look for the VM's lease; trying again");
                }
                Ok(None) | Err(_) => {}
            }
            sleep(LEASE_INTERVAL).await;
        }
    }

    fn claimant(&self, claimed: IpAddr) -> Claimant {
        let is_hosts = claimed.is_loopback() || UdpSocket::bind((claimed, 0)).is_ok();
        if is_hosts || claimed.is_unspecified() || claimed.is_multicast() {
            return Claimant::Host;
        }
        if let Some(claimant) = by_dhcp_leases(self.spec.dhcp_leases.as_deref(), claimed, Timestamp::now()) {
            return claimant;
        }
        match self.vm_run.addresses_of_others() {
            Ok(taken) if !taken.contains(&claimed) => Claimant::Free,
            Ok(_) => Claimant::OtherVm,
            Err(error) => {
                warn!(error = chain(&error), "cannot read the addresses of other VMs");
                Claimant::OtherVm
            }
        }
    }

    /// The guest agent, once it answers, and the address that it says the guest has, if it knows one.
    ///
    /// The address is asked for first: unlike a command, this question can be asked twice.
    pub(in crate::shim) async fn guest_agent(&self) -> (Guest, Option<IpAddr>) {
        let socket = self.tart.vm_dir(&self.spec.vm).join("control.sock");
        loop {
            let ask = async {
                let mut guest = Guest::connect(&socket).await?;
                let address = answered(&mut guest).await?;
                Ok::<_, GuestError>((guest, address))
            };
            // tart accepts the connection before the guest agent answers.
            if let Ok(Ok(answer)) = timeout(ASK_LIMIT, ask).await {
                break answer;
            }
            sleep(ASK_INTERVAL).await;
        }
    }
}

/// The address that the guest agent tells. One that knows none answers all the same: the guest may have none yet, and guest agents before 0.5
/// cannot tell.
async fn answered(guest: &mut Guest) -> Result<Option<IpAddr>, GuestError> {
    match guest.address().await {
        Ok(address) => Ok(Some(address)),
        Err(GuestError::Refused(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Which machine has an address by the leases of macOS, which gives VMs all their addresses; `None` when it may be any VM of this host.
fn by_dhcp_leases(leases: Option<&Path>, claimed: IpAddr, now: Timestamp) -> Option<Claimant> {
    // There are no IPv6 leases.
    let IpAddr::V4(claimed) = claimed else { return Some(Claimant::Outsider) };
    match leases.map_or(LeaseHolder::NoFile, |path| dhcp_leases::holder(path, claimed, now)) {
        LeaseHolder::Other => None,
        // Without the file, VMs may have any private address.
        LeaseHolder::NoFile if claimed.is_private() => None,
        LeaseHolder::Mac | LeaseHolder::Unknown => Some(Claimant::LeaseHolder),
        LeaseHolder::None | LeaseHolder::NoFile => Some(Claimant::Outsider),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::dir;

    #[test]
    fn a_guest_may_claim_only_a_lease_without_a_mac_address() {
        let dir = dir();
        let path = dir.path().join("dhcpd_leases");
        let entry = |address, hardware| {
            format!("{{\n\tip_address={address}\n\thw_address={hardware}\n\tlease=0x7fffffff\n}}\n")
        };
        let text = entry("192.168.64.2", "1,e:0:2:ab:c:d") + &entry("192.168.64.3", "ff,f1:f5:dd:7f:0:2");
        std::fs::write(&path, text).unwrap();
        let (outsider, borrower) = (Some(Claimant::Outsider), Some(Claimant::LeaseHolder));
        for (claimed, with_leases, without, unreadable) in [
            ("192.168.64.2", borrower, None, borrower),
            ("192.168.64.3", None, None, borrower),
            ("192.168.64.4", outsider, None, borrower),
            ("::ffff:192.168.64.2", borrower, None, borrower),
            ("::ffff:192.168.64.3", None, None, borrower),
            ("203.0.113.7", outsider, outsider, borrower),
            ("169.254.169.254", outsider, outsider, borrower),
            ("255.255.255.255", outsider, outsider, borrower),
            ("2001:db8::1", outsider, outsider, outsider),
        ] {
            // As the guest's answer is read.
            let address = claimed.parse::<IpAddr>().unwrap().to_canonical();
            let says = |leases| by_dhcp_leases(leases, address, Timestamp::now());
            assert_eq!(says(Some(&path)), with_leases, "{claimed}");
            assert_eq!(says(Some(Path::new("/nowhere"))), without, "{claimed}");
            assert_eq!(says(None), without, "{claimed}");
            assert_eq!(says(Some(dir.path())), unreadable, "{claimed}");
        }
    }
}
