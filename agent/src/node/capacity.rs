//! The Node's capacity and allocatable resources.
//!
//! As in the kubelet, allocatable is capacity less `--kube-reserved` less the hard eviction thresholds. By default 2 GiB of memory are
//! reserved for macOS and the agent, and no core: VMs share the cores with the host anyway, and two VMs with half of the cores each are
//! the usual split of a Mac. `--host-cpu` and `--host-memory-mb` override what is allocatable.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::signals::thresholds::{Signal, Thresholds};
use crate::quantity::{self, ResourceList};

/// The default of `--kube-reserved`.
pub(crate) const RESERVED: &str = "memory=2Gi";

/// `--kube-reserved`: what is kept for the host; memory and storage in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Reserved {
    cpu_milli: u64,
    memory: u64,
    storage: u64,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum BadReservation {
    #[error("`{0}` is not `cpu=…`, `memory=…` or `ephemeral-storage=…` with an amount")]
    Form(String),
    #[error(
        "nothing of this machine's {0} would be left for Pods; change --kube-reserved or --eviction-hard"
    )]
    TooLarge(&'static str),
}

impl Reserved {
    /// Parses `cpu=500m,memory=2Gi,ephemeral-storage=10Gi`.
    pub(crate) fn parse(text: &str) -> Result<Self, BadReservation> {
        let mut reserved = Self::default();
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let bad = || BadReservation::Form(item.to_owned());
            let (name, amount) = item.split_once('=').ok_or_else(bad)?;
            let amount = Quantity(amount.to_owned());
            let (field, value) = match name {
                "cpu" => (&mut reserved.cpu_milli, quantity::milli(&amount)),
                "memory" => (&mut reserved.memory, quantity::whole(&amount)),
                "ephemeral-storage" => (&mut reserved.storage, quantity::whole(&amount)),
                _ => return Err(bad()),
            };
            *field = value.ok_or_else(bad)?;
        }
        Ok(reserved)
    }
}

/// What the machine has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Machine {
    pub(crate) cores: u64,
    /// In bytes.
    pub(crate) memory: u64,
    /// In bytes, of the volume of tart's home; `None` if it cannot be read.
    pub(crate) storage: Option<u64>,
}

/// What flags say is allocatable, instead of what the machine has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CapacityOverrides {
    pub(crate) cores: Option<u32>,
    pub(crate) memory_mib: Option<u32>,
    /// The number of VMs that run at once.
    pub(crate) pods: u32,
}

/// What the Node's status shows.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Resources {
    pub(super) capacity: ResourceList,
    pub(crate) allocatable: ResourceList,
}

impl Resources {
    pub(crate) fn new(
        machine: Machine,
        reserved: Reserved,
        thresholds: &Thresholds,
        overrides: CapacityOverrides,
    ) -> Result<Self, BadReservation> {
        let threshold = |signal, total| thresholds.value(signal).map_or(0, |value| value.of(total));
        let left = |total: u64, kept: u64, what| {
            total.checked_sub(kept).filter(|left| *left > 0).ok_or(BadReservation::TooLarge(what))
        };
        let cpu = match overrides.cores {
            Some(cores) => u64::from(cores) * 1000,
            None => left(machine.cores * 1000, reserved.cpu_milli, "cores")?,
        };
        let memory = match overrides.memory_mib {
            Some(mib) => u64::from(mib) << 20,
            None => {
                let kept = reserved.memory.saturating_add(threshold(Signal::Memory, machine.memory));
                left(machine.memory, kept, "memory")?
            }
        };
        let mut capacity =
            amounts((machine.cores * 1000).max(cpu), machine.memory.max(memory), overrides.pods);
        let mut allocatable = amounts(cpu, memory, overrides.pods);
        if let Some(total) = machine.storage {
            let kept = reserved.storage.saturating_add(threshold(Signal::ImageFs, total));
            let name = "ephemeral-storage".to_owned();
            allocatable.insert(name.clone(), kibibytes(left(total, kept, "disk")?));
            capacity.insert(name, kibibytes(total));
        }
        Ok(Self { capacity, allocatable })
    }
}

/// Whether two lists have the same amounts: the API server writes `16777216Ki` as `16Gi`.
pub(super) fn same(ours: Option<&ResourceList>, theirs: Option<&ResourceList>) -> bool {
    let (Some(ours), Some(theirs)) = (ours, theirs) else { return ours.is_none() && theirs.is_none() };
    let equal = |a: &Quantity, b: &Quantity| {
        a == b || (quantity::milli(a).is_some() && quantity::milli(a) == quantity::milli(b))
    };
    ours.len() == theirs.len()
        && ours.iter().all(|(name, our)| theirs.get(name).is_some_and(|their| equal(our, their)))
}

fn amounts(cpu_milli: u64, memory: u64, pods: u32) -> ResourceList {
    let cpu =
        if cpu_milli.is_multiple_of(1000) { (cpu_milli / 1000).to_string() } else { format!("{cpu_milli}m") };
    BTreeMap::from([
        ("cpu".to_owned(), Quantity(cpu)),
        ("memory".to_owned(), kibibytes(memory)),
        ("pods".to_owned(), Quantity(pods.to_string())),
    ])
}

fn kibibytes(bytes: u64) -> Quantity {
    Quantity(format!("{}Ki", bytes >> 10))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NO_OVERRIDES: CapacityOverrides = CapacityOverrides { cores: None, memory_mib: None, pods: 2 };

    fn mac() -> Machine {
        Machine { cores: 10, memory: 16 << 30, storage: Some(100 << 30) }
    }

    #[test]
    fn reservation_and_thresholds_are_not_allocatable() {
        let thresholds = Thresholds::parse("memory.available<100Mi,imagefs.available<15%").unwrap();
        let resources =
            Resources::new(mac(), Reserved::parse(RESERVED).unwrap(), &thresholds, NO_OVERRIDES).unwrap();
        let shown = |amounts: &ResourceList| {
            ["cpu", "memory", "pods", "ephemeral-storage"].map(|name| amounts[name].0.clone())
        };
        assert_eq!(shown(&resources.capacity), ["10", "16777216Ki", "2", "104857600Ki"]);
        assert_eq!(shown(&resources.allocatable), ["10", "14577664Ki", "2", "89128960Ki"]);
    }

    #[test]
    fn two_spellings_of_an_amount_are_the_same() {
        let list = |memory: &str| BTreeMap::from([("memory".to_owned(), Quantity(memory.to_owned()))]);
        assert!(same(Some(&list("16777216Ki")), Some(&list("16Gi"))));
        assert!(!same(Some(&list("16777216Ki")), Some(&list("15Gi"))));
        assert!(!same(Some(&list("16Gi")), Some(&ResourceList::new())) && !same(Some(&list("16Gi")), None));
        assert!(same(None, None));
    }

    #[test]
    fn flags_override_what_is_allocatable() {
        let overrides = CapacityOverrides { cores: Some(12), memory_mib: Some(14_336), pods: 3 };
        let reserved = Reserved::parse("cpu=500m,memory=1Gi").unwrap();
        let Resources { capacity, allocatable } =
            Resources::new(mac(), reserved, &Thresholds::default(), overrides).unwrap();
        assert_eq!((&*allocatable["cpu"].0, &*allocatable["memory"].0), ("12", "14680064Ki"));
        assert_eq!((&*capacity["cpu"].0, &*capacity["memory"].0), ("12", "16777216Ki"));
        let reserved = Resources::new(mac(), reserved, &Thresholds::default(), NO_OVERRIDES).unwrap();
        assert_eq!(reserved.allocatable["cpu"].0, "9500m");
    }

    #[test]
    fn a_bad_reservation_is_refused_with_its_fault() {
        for bad in ["memory", "memory=x", "pods=1", "=1"] {
            assert_eq!(Reserved::parse(bad), Err(BadReservation::Form(bad.to_owned())));
        }
        let all = Reserved::parse("memory=16Gi").unwrap();
        let refused = Resources::new(mac(), all, &Thresholds::default(), NO_OVERRIDES);
        assert_eq!(refused, Err(BadReservation::TooLarge("memory")));
    }

    proptest! {
        #[test]
        fn allocatable_is_never_more_than_capacity(
            cores in 1u64..200, memory in 1u64 << 20..1 << 45, cpu in 0u64..300_000, reserved in 0u64..1 << 45,
        ) {
            let machine = Machine { cores, memory, storage: None };
            let reserved = Reserved { cpu_milli: cpu, memory: reserved, storage: 0 };
            if let Ok(resources) = Resources::new(machine, reserved, &Thresholds::default(), NO_OVERRIDES) {
                for (name, amount) in &resources.allocatable {
                    prop_assert!(quantity::milli(amount) <= quantity::milli(&resources.capacity[name]));
                }
            }
        }
    }
}
