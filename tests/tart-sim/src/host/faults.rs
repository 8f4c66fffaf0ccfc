//! The faults of this Mac, looked up at each use, so that a test can switch a fault while a VM runs.

use std::path::PathBuf;
use std::process;
use std::time::Duration;

use tart_sim::fault::{self, Fault, FaultDirectory, FaultError, FaultFile};

use crate::host;

/// Ends this process if the directory of faults has a file that is no fault, or a parameter that its fault cannot have.
pub(crate) fn check() {
    directory().check().unwrap_or_else(|error| refuse(&error));
}

/// The parameter of a fault without the white space around it; `None` if the fault is off.
pub(crate) fn parameter(fault: impl Into<FaultFile>) -> Option<String> {
    directory().parameter(&fault.into()).unwrap_or_else(|error| refuse(&error))
}

/// Whether a fault is on.
pub(crate) fn is_on(fault: Fault) -> bool {
    parameter(fault).is_some()
}

/// The duration that is a fault's parameter; `None` if the fault is off.
pub(crate) fn duration(fault: Fault) -> Option<Duration> {
    fault::duration(&parameter(fault)?)
}

/// Whether a fault is on for a command or a VM: one of the parameter's words is its name or `*`, or the parameter is empty.
pub(crate) fn is_on_for(fault: Fault, name: &str) -> bool {
    parameter(fault).is_some_and(|words| {
        words.is_empty() || words.split_whitespace().any(|word| word == name || word == "*")
    })
}

/// The file that switches a fault on.
pub(crate) fn path(fault: Fault) -> PathBuf {
    directory().path(&fault.into())
}

fn directory() -> FaultDirectory {
    FaultDirectory::of_host(&host::dir())
}

fn refuse(error: &FaultError) -> ! {
    eprintln!("tart-sim: {}: {error}", host::dir().join("faults").display());
    process::exit(fault::REFUSED.into())
}

/// The faults of one VM: the fault of this VM comes before the fault of all VMs.
#[derive(Debug, Clone)]
pub(crate) struct VmFaults {
    vm: String,
}

impl VmFaults {
    /// The faults of the VM of this name.
    pub(crate) fn of(vm: &str) -> Self {
        Self { vm: vm.into() }
    }

    /// The fault's parameter; `None` if the fault is off.
    pub(crate) fn parameter(&self, fault: Fault) -> Option<String> {
        parameter(fault.of_vm(&self.vm)).or_else(|| parameter(fault))
    }

    /// Whether the fault is on.
    pub(crate) fn is_on(&self, fault: Fault) -> bool {
        self.parameter(fault).is_some()
    }

    /// The duration that is the fault's parameter; `None` if the fault is off.
    pub(crate) fn duration(&self, fault: Fault) -> Option<Duration> {
        fault::duration(&self.parameter(fault)?)
    }
}
