//! Facts about the machine that the agent runs on.

#[cfg_attr(target_os = "macos", path = "macos.rs")]
#[cfg_attr(not(target_os = "macos"), path = "linux.rs")]
mod system;

pub(crate) use system::{processes, vm_helpers};

use sysinfo::{Product, System};

use crate::os::availability::memory;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct HostFacts {
    pub(crate) hostname: String,
    /// Logical cores.
    pub(crate) cores: usize,
    /// In bytes.
    pub(crate) memory: u64,
    /// Such as `macOS 26.1 Tahoe`.
    pub(crate) os_image: String,
    /// Such as `26.1`.
    pub(crate) os_version: String,
    /// Such as `Mac16,10`.
    pub(crate) model: String,
    /// The kernel's version.
    pub(crate) kernel: String,
    /// Changes with each start of the machine.
    pub(crate) boot_id: String,
    /// Identifies the installation of the operating system.
    pub(crate) machine_id: String,
    /// Identifies the hardware.
    pub(crate) system_uuid: String,
    /// The maximum number of processes.
    pub(crate) max_pids: Option<u64>,
}

impl HostFacts {
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
            // macOS has no ID of the installation, so the agent uses that of the hardware.
            machine_id: own.machine_id.unwrap_or_else(|| system_uuid.clone()),
            system_uuid,
            max_pids: own.max_pids,
        }
    }
}

/// Facts that each operating system has in its own place.
#[derive(Debug, Default)]
struct SystemFacts {
    boot_id: Option<String>,
    machine_id: Option<String>,
    max_pids: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_machine_has_cores_memory_and_a_boot_id() {
        let facts = HostFacts::discover().await;
        assert!(facts.cores > 0 && facts.memory > 0 && !facts.boot_id.is_empty(), "{facts:?}");
    }
}
