//! What the Node offers: all that the machine has, and what of it Pods may have.
//!
//! As in the kubelet, what Pods may have is the machine less a reservation less what must stay free. macOS and the agent get
//! 2 GiB of memory by default, and no core: VMs share the cores with the host anyway, and two VMs with half of them each is how
//! Macs are usually cut up. `--host-cpu` and `--host-memory-mb` say what Pods may have, whatever the machine looks like.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::thresholds::{Signal, Thresholds};
use crate::quantity;
use crate::quantity::ResourceList;

/// What is kept for the host when nothing else is said.
pub(crate) const RESERVED: &str = "memory=2Gi";

/// What is kept for the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Reserved {
    /// Thousandths of a core.
    pub(crate) cpu_milli: u64,
    /// Bytes of memory.
    pub(crate) memory: u64,
    /// Bytes on disk.
    pub(crate) storage: u64,
}

/// A reservation that is none, or too large.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum BadReservation {
    /// It has another form.
    #[error("`{0}` is not `cpu=…`, `memory=…` or `ephemeral-storage=…` with an amount")]
    Form(String),
    /// Nothing would be left.
    #[error(
        "nothing of this machine's {0} would be left for Pods; change --kube-reserved or --eviction-hard"
    )]
    TooLarge(&'static str),
}

impl Reserved {
    /// Reads `cpu=500m,memory=2Gi,ephemeral-storage=10Gi`.
    pub(crate) fn parse(text: &str) -> Result<Self, BadReservation> {
        let mut reserved = Self::default();
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let bad = || BadReservation::Form(item.to_owned());
            let (name, amount) = item.split_once('=').ok_or_else(bad)?;
            let amount = Quantity(amount.to_owned());
            let (place, value) = match name {
                "cpu" => (&mut reserved.cpu_milli, quantity::milli(&amount)),
                "memory" => (&mut reserved.memory, quantity::whole(&amount)),
                "ephemeral-storage" => (&mut reserved.storage, quantity::whole(&amount)),
                _ => return Err(bad()),
            };
            *place = value.ok_or_else(bad)?;
        }
        Ok(reserved)
    }
}

/// What the machine has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Machine {
    /// Cores.
    pub(crate) cores: u64,
    /// Bytes of memory.
    pub(crate) memory: u64,
    /// Bytes on the volume of tart's home, when it can be looked at.
    pub(crate) storage: Option<u64>,
}

/// What the operator wants instead of what is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CapacityOverrides {
    /// Cores for Pods.
    pub(crate) cores: Option<u32>,
    /// Memory for Pods in MiB.
    pub(crate) memory_mib: Option<u32>,
    /// How many VMs may run at once.
    pub(crate) pods: u32,
}

/// What the Node offers.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Resources {
    /// All there is.
    pub(crate) capacity: ResourceList,
    /// What Pods may have.
    pub(crate) allocatable: ResourceList,
}

impl Resources {
    /// What a machine offers.
    pub(crate) fn of(
        machine: Machine,
        reserved: Reserved,
        thresholds: &Thresholds,
        wishes: CapacityOverrides,
    ) -> Result<Self, BadReservation> {
        let free = |signal, total| thresholds.least(signal).map_or(0, |least| least.of(total));
        let left = |total: u64, kept: u64, what| {
            total.checked_sub(kept).filter(|left| *left > 0).ok_or(BadReservation::TooLarge(what))
        };
        let cpu = match wishes.cores {
            Some(cores) => u64::from(cores) * 1000,
            None => left(machine.cores * 1000, reserved.cpu_milli, "cores")?,
        };
        let memory = match wishes.memory_mib {
            Some(mib) => u64::from(mib) << 20,
            None => {
                let kept = reserved.memory.saturating_add(free(Signal::Memory, machine.memory));
                left(machine.memory, kept, "memory")?
            }
        };
        let mut capacity = amounts((machine.cores * 1000).max(cpu), machine.memory.max(memory), wishes.pods);
        let mut allocatable = amounts(cpu, memory, wishes.pods);
        if let Some(total) = machine.storage {
            let kept = reserved.storage.saturating_add(free(Signal::ImageFs, total));
            let name = "ephemeral-storage".to_owned();
            allocatable.insert(name.clone(), kibibytes(left(total, kept, "disk")?));
            capacity.insert(name, kibibytes(total));
        }
        Ok(Self { capacity, allocatable })
    }
}

/// Whether two lists say the same: the API server writes `16777216Ki` as `16Gi`.
pub(crate) fn same(ours: Option<&ResourceList>, theirs: Option<&ResourceList>) -> bool {
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

    const NOTHING: CapacityOverrides = CapacityOverrides { cores: None, memory_mib: None, pods: 2 };

    fn mac() -> Machine {
        Machine { cores: 10, memory: 16 << 30, storage: Some(100 << 30) }
    }

    #[test]
    fn the_host_keeps_its_share() {
        let thresholds = Thresholds::parse("memory.available<100Mi,imagefs.available<15%").unwrap();
        let resources =
            Resources::of(mac(), Reserved::parse(RESERVED).unwrap(), &thresholds, NOTHING).unwrap();
        let shown = |amounts: &ResourceList| {
            ["cpu", "memory", "pods", "ephemeral-storage"].map(|name| amounts[name].0.clone())
        };
        assert_eq!(shown(&resources.capacity), ["10", "16777216Ki", "2", "104857600Ki"]);
        assert_eq!(shown(&resources.allocatable), ["10", "14577664Ki", "2", "89128960Ki"]);
    }

    #[test]
    fn another_way_to_write_an_amount_is_no_other_amount() {
        let list = |memory: &str| BTreeMap::from([("memory".to_owned(), Quantity(memory.to_owned()))]);
        assert!(same(Some(&list("16777216Ki")), Some(&list("16Gi"))));
        assert!(!same(Some(&list("16777216Ki")), Some(&list("15Gi"))));
        assert!(!same(Some(&list("16Gi")), Some(&ResourceList::new())) && !same(Some(&list("16Gi")), None));
        assert!(same(None, None));
    }

    #[test]
    fn flags_say_what_pods_may_have() {
        let wishes = CapacityOverrides { cores: Some(12), memory_mib: Some(14_336), pods: 3 };
        let reserved = Reserved::parse("cpu=500m,memory=1Gi").unwrap();
        let Resources { capacity, allocatable } =
            Resources::of(mac(), reserved, &Thresholds::default(), wishes).unwrap();
        assert_eq!((&*allocatable["cpu"].0, &*allocatable["memory"].0), ("12", "14680064Ki"));
        assert_eq!((&*capacity["cpu"].0, &*capacity["memory"].0), ("12", "16777216Ki"));
        let reserved = Resources::of(mac(), reserved, &Thresholds::default(), NOTHING).unwrap();
        assert_eq!(reserved.allocatable["cpu"].0, "9500m");
    }

    #[test]
    fn a_reservation_is_read_or_refused_in_words() {
        for bad in ["memory", "memory=x", "pods=1", "=1"] {
            assert_eq!(Reserved::parse(bad), Err(BadReservation::Form(bad.to_owned())));
        }
        let all = Reserved::parse("memory=16Gi").unwrap();
        let refused = Resources::of(mac(), all, &Thresholds::default(), NOTHING);
        assert_eq!(refused, Err(BadReservation::TooLarge("memory")));
    }

    proptest! {
        #[test]
        fn pods_never_get_more_than_there_is(
            cores in 1u64..200, memory in 1u64 << 20..1 << 45, cpu in 0u64..300_000, reserved in 0u64..1 << 45,
        ) {
            let machine = Machine { cores, memory, storage: None };
            let reserved = Reserved { cpu_milli: cpu, memory: reserved, storage: 0 };
            if let Ok(resources) = Resources::of(machine, reserved, &Thresholds::default(), NOTHING) {
                for (name, amount) in &resources.allocatable {
                    prop_assert!(quantity::milli(amount) <= quantity::milli(&resources.capacity[name]));
                }
            }
        }
    }
}
