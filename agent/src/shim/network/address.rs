//! The guest's address: where host ports and probes lead, so that a guest is not simply believed about it.

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
/// How long one such question may take.
const ASK_LIMIT: Duration = Duration::from_secs(2);
/// How long tart waits for a lease before it is asked again.
const LEASE_WAIT: Duration = Duration::from_mins(1);
/// How soon it is asked again after a failure.
const LEASE_INTERVAL: Duration = Duration::from_secs(1);

/// How soon a guest that was not believed is asked again: who had its address before may be gone by then.
const CLAIM_INTERVAL: Duration = Duration::from_secs(2);

/// Who may have the address that a guest says it has, when that is not the guest's word alone to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Claimant {
    /// Nobody is known to.
    Free,
    /// The host itself, or no machine at all.
    Host,
    /// Whoever macOS has lent it to.
    LeaseHolder,
    /// A machine that is no VM of this host, or nobody.
    Outsider,
    /// Another VM of this host.
    Neighbour,
}

impl Shim {
    /// The guest's address, from the guest agent or from its DHCP lease, whichever is there first.
    pub(crate) async fn address(&self) -> IpAddr {
        let asked = async {
            let claimed = self.guest_agent().await.1;
            if self.is_credible(claimed).await {
                return claimed;
            }
            loop {
                sleep(CLAIM_INTERVAL).await;
                let claimed = self.guest_agent().await.1;
                if self.claimant(claimed) == Claimant::Free {
                    return claimed;
                }
            }
        };
        let leased = async {
            loop {
                // The MAC address is this VM's alone, so a lease for it is never a stale one.
                match self.tart.wait_for_address(&self.spec.vm, LEASE_WAIT).await {
                    Ok(address) => break address,
                    Err(error) => {
                        warn!(error = chain(&error), "no address yet");
                        sleep(LEASE_INTERVAL).await;
                    }
                }
            }
        };
        tokio::select! { address = asked => address, address = leased => address }
    }

    /// Whether a guest can be believed that it has an address. One that somebody else may have takes the lease of the VM's own MAC
    /// address to be believed.
    async fn is_credible(&self, claimed: IpAddr) -> bool {
        let claimant = self.claimant(claimed);
        if claimant == Claimant::Free {
            return true;
        }
        let leased = self.tart.wait_for_address(&self.spec.vm, Duration::ZERO).await;
        let proven = matches!(leased, Ok(leased) if leased == claimed);
        if !proven {
            warn!(vm = %self.spec.vm, %claimed, ?claimant, "the guest claims an address of somebody else's; waiting for its lease");
        }
        proven
    }

    fn claimant(&self, claimed: IpAddr) -> Claimant {
        let is_hosts = claimed.is_loopback() || UdpSocket::bind((claimed, 0)).is_ok();
        if is_hosts || claimed.is_unspecified() || claimed.is_multicast() {
            return Claimant::Host;
        }
        if let Some(claimant) = lender_says(self.spec.dhcp_leases.as_deref(), claimed, Timestamp::now()) {
            return claimant;
        }
        match self.attempt.addresses_of_others() {
            Ok(taken) if !taken.contains(&claimed) => Claimant::Free,
            Ok(_) => Claimant::Neighbour,
            Err(error) => {
                warn!(error = chain(&error), "it is not known which addresses other VMs have");
                Claimant::Neighbour
            }
        }
    }

    /// The guest agent, once it answers, and the address that it says the guest has.
    ///
    /// A question that can be asked twice comes first: a command must not be sent before somebody is there to take it.
    pub(crate) async fn guest_agent(&self) -> (Guest, IpAddr) {
        let socket = self.tart.vm_dir(&self.spec.vm).join("control.sock");
        loop {
            let ask = async {
                let mut guest = Guest::connect(&socket).await?;
                let address = guest.address().await?;
                Ok::<_, GuestError>((guest, address))
            };
            // Whoever listens there may accept and then say nothing.
            if let Ok(Ok(answer)) = timeout(ASK_LIMIT, ask).await {
                break answer;
            }
            sleep(ASK_INTERVAL).await;
        }
    }
}

/// Who has an address by the word of macOS, which lends all addresses that VMs have; `None` when it may be any VM of this host.
fn lender_says(leases: Option<&Path>, claimed: IpAddr, now: Timestamp) -> Option<Claimant> {
    // It lends none of IPv6.
    let IpAddr::V4(claimed) = claimed else { return Some(Claimant::Outsider) };
    match leases.map_or(LeaseHolder::NoFile, |path| dhcp_leases::holder(path, claimed, now)) {
        LeaseHolder::Other => None,
        // Where nothing is written down, this is all that is known of its networks.
        LeaseHolder::NoFile if claimed.is_private() => None,
        LeaseHolder::Mac | LeaseHolder::Unknown => Some(Claimant::LeaseHolder),
        LeaseHolder::None | LeaseHolder::NoFile => Some(Claimant::Outsider),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_macos_has_lent_to_nobody_in_particular_is_the_guests_word_to_say() {
        let dir =
            tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap();
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
            let says = |leases| lender_says(leases, address, Timestamp::now());
            assert_eq!(says(Some(&path)), with_leases, "{claimed}");
            assert_eq!(says(Some(Path::new("/nowhere"))), without, "{claimed}");
            assert_eq!(says(None), without, "{claimed}");
            assert_eq!(says(Some(dir.path())), unreadable, "{claimed}");
        }
    }
}
