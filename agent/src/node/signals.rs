//! The eviction signals of the host: how much disk, memory, processes and addresses are left.

use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::pressure::Reading;
use crate::os::availability::{Availability, memory, volume};
use crate::os::dhcp_leases;
use crate::os::host::{HostFacts, processes};
use crate::state::StateDir;
use crate::tart::Tart;

/// Where to look for what is left.
#[derive(Debug, Clone)]
pub(crate) struct SignalSources {
    /// The state directory.
    pub(crate) state_dir: PathBuf,
    /// The home directory of tart.
    pub(crate) tart_home: PathBuf,
    /// How many processes there can be.
    pub(crate) max_pids: Option<u64>,
    /// Where macOS writes down which addresses VMs have.
    pub(crate) leases: PathBuf,
}

impl SignalSources {
    /// The gauges of a machine.
    pub(crate) fn of(state: &StateDir, tart: &Tart, facts: &HostFacts, leases: &Path) -> Self {
        let (state_dir, tart_home) = (state.path().to_owned(), tart.home().to_owned());
        Self { state_dir, tart_home, max_pids: facts.max_pids, leases: leases.to_owned() }
    }

    /// Looks at what is left now. It may block for as long as a broken volume does.
    pub(crate) fn read(&self) -> Reading {
        let pids = self.max_pids.zip(processes());
        Reading {
            memory: memory(),
            nodefs: volume(&self.state_dir),
            imagefs: volume(&self.tart_home),
            pids: pids.map(|(total, used)| Availability { available: total.saturating_sub(used), total }),
            addresses: dhcp_leases::read(&self.leases, Timestamp::now()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_signal_of_the_host_can_be_read() {
        let facts = HostFacts::discover().await;
        let gauges = SignalSources {
            state_dir: "/nowhere/at/all".into(),
            tart_home: "/".into(),
            max_pids: facts.max_pids,
            leases: "/nowhere/dhcpd_leases".into(),
        };
        let reading = gauges.read();
        for figure in [reading.memory, reading.nodefs, reading.imagefs, reading.pids] {
            let figure = figure.expect("it can be read everywhere");
            assert!(figure.available > 0 && figure.available <= figure.total, "{reading:?}");
        }
    }
}
