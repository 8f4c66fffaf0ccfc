//! The eviction signals of the host: how much disk, memory, processes and addresses for VMs are left.

pub(crate) mod pressure;
pub(crate) mod thresholds;

use std::path::{Path, PathBuf};

use jiff::Timestamp;

use crate::os::availability::{Availability, memory, volume};
use crate::os::dhcp_leases;
use crate::os::host::{HostFacts, processes};
use crate::state::StateDir;
use crate::tart::Tart;

#[derive(Debug, Clone)]
pub(crate) struct SignalSources {
    /// The state directory.
    pub(crate) nodefs: PathBuf,
    /// The home directory of tart.
    pub(crate) imagefs: PathBuf,
    max_pids: Option<u64>,
    /// The file in which macOS records the addresses of VMs.
    dhcp_leases: PathBuf,
}

/// What the host has left, memory and disks in bytes; `None` for what could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct SignalObservations {
    pub(super) memory: Option<Availability>,
    pub(super) nodefs: Option<Availability>,
    pub(super) imagefs: Option<Availability>,
    pub(super) pids: Option<Availability>,
    pub(super) dhcp_addresses: Option<Availability>,
}

impl SignalSources {
    pub(crate) fn new(state: &StateDir, tart: &Tart, facts: &HostFacts, dhcp_leases: &Path) -> Self {
        Self {
            nodefs: state.path().to_owned(),
            imagefs: tart.home().to_owned(),
            max_pids: facts.max_pids,
            dhcp_leases: dhcp_leases.to_owned(),
        }
    }

    /// Reads all signals. A broken volume may block it.
    pub(super) fn observe(&self) -> SignalObservations {
        let pids = self.max_pids.zip(processes());
        SignalObservations {
            memory: memory(),
            nodefs: volume(&self.nodefs),
            imagefs: volume(&self.imagefs),
            pids: pids.map(|(total, used)| Availability { available: total.saturating_sub(used), total }),
            dhcp_addresses: dhcp_leases::read(&self.dhcp_leases, Timestamp::now()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_signal_of_the_host_is_readable() {
        let facts = HostFacts::discover().await;
        let sources = SignalSources {
            nodefs: "/nowhere/at/all".into(),
            imagefs: "/".into(),
            max_pids: facts.max_pids,
            dhcp_leases: "/nowhere/dhcpd_leases".into(),
        };
        let seen = sources.observe();
        for signal in [seen.memory, seen.nodefs, seen.imagefs, seen.pids] {
            let signal = signal.expect("every host has it");
            assert!(signal.available > 0 && signal.available <= signal.total, "{seen:?}");
        }
    }
}
