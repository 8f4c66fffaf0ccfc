//! The faults of one VM.

use std::time::Duration;

use crate::faults;

/// Looks a fault up for one VM: the file `<fault>.<VM>` comes before the file `<fault>`, which is for all VMs.
#[derive(Debug, Clone)]
pub(crate) struct VmFaults {
    vm: String,
}

impl VmFaults {
    /// The faults of this VM.
    pub(crate) fn of(vm: &str) -> Self {
        Self { vm: vm.into() }
    }

    /// The fault's parameter, or nothing when it is off.
    pub(crate) fn parameter(&self, fault: &str) -> Option<String> {
        faults::parameter(&format!("{fault}.{}", self.vm)).or_else(|| faults::parameter(fault))
    }

    /// Whether the fault is on.
    pub(crate) fn is_on(&self, fault: &str) -> bool {
        self.parameter(fault).is_some()
    }

    /// The duration that the fault carries, if it is on and says one.
    pub(crate) fn duration(&self, fault: &str) -> Option<Duration> {
        faults::parse_duration(&self.parameter(fault)?)
    }
}
