//! What was measured at one moment.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use nix::unistd::Pid;

use crate::names::{PodName, PodUid, VmName};
use crate::os::availability::Availability;
use crate::os::process_usage::ProcessUsage;

/// The Node and its VMs at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) at: Timestamp,
    pub(crate) node: NodeSample,
    pub(crate) vms: Vec<VmSample>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeSample {
    pub(crate) cpu: Option<CpuSample>,
    pub(crate) memory: Option<Availability>,
    /// The volume of the state directory.
    pub(crate) node_fs: Option<Availability>,
    /// The volume of VMs and images.
    pub(crate) image_fs: Option<Availability>,
    pub(crate) processes: Option<u64>,
}

/// A VM that runs for a Pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VmSample {
    pub(crate) vm: VmName,
    pub(crate) pod: PodName,
    pub(crate) uid: PodUid,
    pub(crate) container: String,
    pub(crate) image: String,
    /// When the container started.
    pub(crate) started_at: Timestamp,
    pub(crate) cpu: CpuSample,
    /// The resident memory of its processes, in bytes.
    pub(crate) memory: u64,
    /// The bytes of its logs.
    pub(crate) logs: Option<u64>,
    /// The bytes that it has on the disk, logs included and volumes not.
    pub(crate) disk: Option<u64>,
}

/// Processor time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct CpuSample {
    /// All of it so far.
    pub(crate) total: Duration,
    /// In billionths of a core, since the sample before; absent in the first one.
    pub(crate) nano_cores: Option<u64>,
}

impl CpuSample {
    /// The sample that follows after some time.
    pub(super) fn after(before: Option<Self>, elapsed: Duration, total: Duration) -> Self {
        let used = before.and_then(|before| total.checked_sub(before.total));
        let nano_cores = used.filter(|_| !elapsed.is_zero()).and_then(|used| {
            u64::try_from(used.as_nanos().saturating_mul(1_000_000_000) / elapsed.as_nanos()).ok()
        });
        Self { total, nano_cores }
    }
}

/// The processor time of a group of processes, of which some end. It never goes back.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct GroupCpu {
    /// Of processes that have ended, as far as it was seen.
    ended: Duration,
    live: HashMap<(Pid, u64), Duration>,
}

impl GroupCpu {
    /// Takes in the processes that there are now, and returns the time of all that there were.
    pub(super) fn add(&mut self, processes: &HashMap<Pid, ProcessUsage>) -> Duration {
        let now: HashMap<_, _> =
            processes.iter().map(|(pid, process)| ((*pid, process.started), process.cpu)).collect();
        self.ended += self
            .live
            .iter()
            .filter(|(key, _)| !now.contains_key(*key))
            .map(|(_, cpu)| *cpu)
            .sum::<Duration>();
        let before = std::mem::replace(&mut self.live, now);
        for (key, cpu) in &mut self.live {
            *cpu = (*cpu).max(before.get(key).copied().unwrap_or_default());
        }
        self.ended + self.live.values().sum::<Duration>()
    }
}

#[cfg(test)]
impl Sample {
    pub(super) fn example() -> Self {
        let at = "2026-11-16T08:00:00Z".parse().unwrap();
        let cpu = |seconds, nano_cores| CpuSample { total: Duration::from_secs(seconds), nano_cores };
        let space = Some(Availability { available: 40, total: 100 });
        Self {
            at,
            node: NodeSample {
                cpu: Some(cpu(100, Some(2_000_000_000))),
                memory: Some(Availability { available: 3 << 30, total: 8 << 30 }),
                node_fs: space,
                image_fs: space,
                processes: Some(300),
            },
            vms: vec![VmSample {
                vm: VmName::new("0b1c".parse().unwrap(), crate::names::Restart(0)),
                pod: PodName { namespace: "n".into(), name: "p".into() },
                uid: "0b1c".parse().unwrap(),
                container: "main".into(),
                image: "registry.test/macos:15".into(),
                started_at: at,
                cpu: cpu(7, None),
                memory: 1 << 20,
                logs: Some(10),
                disk: Some(30),
            }],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_rate_needs_two_samples() {
        let seconds = Duration::from_secs;
        let first = CpuSample::after(None, seconds(5), seconds(10));
        assert_eq!(first, CpuSample { total: seconds(10), nano_cores: None });
        let second = CpuSample::after(Some(first), seconds(4), seconds(12));
        assert_eq!(second.nano_cores, Some(500_000_000));
        assert_eq!(CpuSample::after(Some(second), seconds(0), seconds(13)).nano_cores, None);
        assert_eq!(CpuSample::after(Some(second), seconds(1), seconds(1)).nano_cores, None);
    }

    fn processes(all: &[(i32, u64, u64)]) -> HashMap<Pid, ProcessUsage> {
        all.iter()
            .map(|(pid, started, cpu)| {
                let cpu = Duration::from_secs(*cpu);
                (Pid::from_raw(*pid), ProcessUsage { parent: None, started: *started, cpu, memory: 0 })
            })
            .collect()
    }

    #[test]
    fn the_time_of_processes_that_end_stays() {
        let mut group = GroupCpu::default();
        let mut add = |all: &[(i32, u64, u64)]| group.add(&processes(all)).as_secs();
        assert_eq!(add(&[(1, 0, 5), (2, 0, 3)]), 8);
        assert_eq!(add(&[(1, 0, 6)]), 9);
        assert_eq!(add(&[(1, 0, 6), (2, 7, 1)]), 10, "another process with the same ID");
    }

    proptest! {
        #[test]
        fn the_time_of_a_group_never_goes_back(
            samples in proptest::collection::vec(proptest::collection::vec((1i32..4, 0u64..2, 0u64..9), 0..4), 1..20),
        ) {
            let (mut group, mut last) = (GroupCpu::default(), Duration::ZERO);
            for sample in samples {
                let total = group.add(&processes(&sample));
                prop_assert!(total >= last);
                last = total;
            }
        }
    }
}
