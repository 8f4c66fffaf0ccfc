//! The memory of VMs that are planned or run.

use std::collections::HashMap;

use super::StateDir;
use crate::fs::file::FileError;
use crate::names::PodUid;

impl StateDir {
    /// The memory of the VMs of other Pods, in MiB. The VM of an older agent's plan may have an unknown size, and is left out.
    pub(crate) fn vm_memory_of_others(&self, uid: &PodUid) -> Result<HashMap<PodUid, u64>, FileError> {
        let mut found = HashMap::new();
        for pod in self.pods()?.iter().filter(|pod| pod.uid() != uid) {
            for run in pod.runs()? {
                let memory = run.live_spec()?.and_then(|spec| spec.memory_mib);
                if let Some(memory) = memory {
                    *found.entry(pod.uid().clone()).or_default() += memory;
                }
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::Restart;
    use crate::state::{Ending, Outcome, ShimSpec};
    use crate::testing::dir;

    #[test]
    fn vms_that_are_planned_or_run_have_memory_and_ended_ones_have_none() {
        let dir = dir();
        let state = StateDir::open(dir.path()).unwrap();
        let [own, planned, ended, old] = ["a", "b", "c", "d"].map(|uid| uid.parse::<PodUid>().unwrap());
        for (uid, memory_mib) in [(&own, Some(1)), (&planned, Some(2)), (&ended, Some(4)), (&old, None)] {
            let run = state.pod(uid.clone()).run(Restart(0));
            run.plan(&ShimSpec { memory_mib, ..ShimSpec::example(run.vm()) }).unwrap();
        }
        let run = state.pod(ended.clone()).run(Restart(0));
        let (ending, finished_at) = (Ending::Lost, jiff::Timestamp::UNIX_EPOCH);
        run.record_outcome(&Outcome { ending, started_at: None, finished_at }).unwrap();
        assert_eq!(state.vm_memory_of_others(&own).unwrap(), HashMap::from([(planned, 2)]));
    }
}
