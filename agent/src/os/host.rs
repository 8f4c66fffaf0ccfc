//! The machine that the agent runs on: what it is, and how much of everything it has left.

#[cfg_attr(target_os = "macos", path = "host/macos.rs")]
#[cfg_attr(not(target_os = "macos"), path = "host/linux.rs")]
mod system;

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use nix::sys::statvfs::statvfs;
use sysinfo::{MemoryRefreshKind, Product, RefreshKind, System};

use super::dhcp_leases;
use crate::node::pressure::Reading;
use crate::node::thresholds::Figure;
use crate::state::StateDir;
use crate::tart::Tart;

/// What the machine is and has.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct HostFacts {
    /// Its own name.
    pub(crate) hostname: String,
    /// Logical cores.
    pub(crate) cores: usize,
    /// Memory in bytes.
    pub(crate) memory: u64,
    /// Such as `macOS 26.1 Tahoe`.
    pub(crate) os_image: String,
    /// Such as `26.1`.
    pub(crate) os_version: String,
    /// Such as `Mac16,10`.
    pub(crate) model: String,
    /// The kernel's version.
    pub(crate) kernel: String,
    /// Differs from one start of the machine to the next.
    pub(crate) boot_id: String,
    /// Stays with the installation of the operating system.
    pub(crate) machine_id: String,
    /// Stays with the hardware.
    pub(crate) system_uuid: String,
    /// How many processes there can be.
    pub(crate) max_pids: Option<u64>,
}

impl HostFacts {
    /// Looks at the machine.
    pub(crate) async fn discover() -> Self {
        let own = system::facts().await;
        let system_uuid = Product::uuid().unwrap_or_default();
        Self {
            hostname: System::host_name().unwrap_or_default(),
            cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            memory: memory().map_or(0, |memory| memory.total),
            os_image: System::long_os_version().unwrap_or_default().trim().to_owned(),
            os_version: System::os_version().unwrap_or_default(),
            model: Product::family().ok().filter(|model| !model.is_empty()).unwrap_or_default(),
            kernel: System::kernel_version().unwrap_or_default(),
            boot_id: own
                .boot_id
                .unwrap_or_else(|| System::boot_time().map(|time| time.to_string()).unwrap_or_default()),
            // macOS has no id of the installation; the one of the hardware stands in, as it does for other agents there.
            machine_id: own.machine_id.unwrap_or_else(|| system_uuid.clone()),
            system_uuid,
            max_pids: own.max_pids,
        }
    }
}

/// What only the operating system itself can tell.
#[derive(Debug, Default)]
struct SystemFacts {
    boot_id: Option<String>,
    machine_id: Option<String>,
    max_pids: Option<u64>,
}

/// Where to look for what is left.
#[derive(Debug, Clone)]
pub(crate) struct Gauges {
    /// The state directory.
    pub(crate) state_dir: PathBuf,
    /// The home directory of tart.
    pub(crate) tart_home: PathBuf,
    /// How many processes there can be.
    pub(crate) max_pids: Option<u64>,
    /// Where macOS writes down which addresses VMs have.
    pub(crate) leases: PathBuf,
}

impl Gauges {
    /// The gauges of a machine.
    pub(crate) fn of(state: &StateDir, tart: &Tart, facts: &HostFacts, leases: &Path) -> Self {
        let (state_dir, tart_home) = (state.path().to_owned(), tart.home().to_owned());
        Self { state_dir, tart_home, max_pids: facts.max_pids, leases: leases.to_owned() }
    }

    /// Looks at what is left now. It may block for as long as a broken volume does.
    pub(crate) fn read(&self) -> Reading {
        let pids = self.max_pids.zip(system::processes());
        Reading {
            memory: memory(),
            nodefs: volume(&self.state_dir),
            imagefs: volume(&self.tart_home),
            pids: pids.map(|(total, used)| Figure { available: total.saturating_sub(used), total }),
            addresses: dhcp_leases::read(&self.leases, Timestamp::now()),
        }
    }
}

/// The volume that holds a path, whether or not the path exists yet.
pub(crate) fn volume(path: &Path) -> Option<Figure> {
    let stat = path.ancestors().find_map(|path| statvfs(path).ok())?;
    // The types differ from one system to the next.
    #[allow(clippy::useless_conversion)]
    let bytes = |blocks| u64::from(blocks).saturating_mul(u64::from(stat.fragment_size()));
    Some(Figure { available: bytes(stat.blocks_available()), total: bytes(stat.blocks()) })
}

fn memory() -> Option<Figure> {
    let what = RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram());
    let system = System::new_with_specifics(what).ok()?;
    let total = system.total_memory();
    (total > 0).then(|| Figure { available: system.available_memory(), total })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_machine_is_something_and_has_something() {
        let facts = HostFacts::discover().await;
        assert!(facts.cores > 0 && facts.memory > 0 && !facts.boot_id.is_empty(), "{facts:?}");
        let gauges = Gauges {
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
