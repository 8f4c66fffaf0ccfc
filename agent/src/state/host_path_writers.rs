//! Guests that can write to directories of the host, because they have one as a share.

use std::path::{Path, PathBuf};

use super::{StateDir, VmRun};
use crate::fs::file::FileError;
use crate::names::PodUid;
use crate::tart::Share;

/// A Pod whose guest can write to a directory of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HostPathWriter {
    /// Its name, or its UID where the record is lost.
    pub(crate) pod: String,
    pub(crate) path: PathBuf,
}

impl HostPathWriter {
    /// Whether the guest can replace this directory by another one. It cannot replace the root of its own share.
    pub(crate) fn can_replace(&self, path: &Path) -> bool {
        path != self.path && path.starts_with(&self.path)
    }
}

/// A directory of the host that tart is to share with a guest by its path, and has not opened yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PlannedShare {
    /// Its name, or its UID where the record is lost.
    pub(crate) pod: String,
    pub(crate) path: PathBuf,
}

/// A run that is not over.
struct LiveRun {
    pod: String,
    run: VmRun,
    shares: Vec<Share>,
}

impl LiveRun {
    fn writers(self) -> impl Iterator<Item = HostPathWriter> {
        let written = self.shares.into_iter().filter(|share| !share.read_only);
        written.map(move |share| HostPathWriter { pod: self.pod.clone(), path: share.path })
    }
}

impl StateDir {
    /// The writers among other Pods, also those whose VMs are only planned.
    pub(crate) fn writers_of_others(&self, uid: &PodUid) -> Result<Vec<HostPathWriter>, FileError> {
        Ok(self.live_of_others(uid)?.into_iter().flat_map(LiveRun::writers).collect())
    }

    /// The directories that other Pods are about to get. Until their guests are up, no guest may be able to replace one.
    pub(crate) fn planned_shares_of_others(&self, uid: &PodUid) -> Result<Vec<PlannedShare>, FileError> {
        let mut found = Vec::new();
        for LiveRun { pod, run, shares } in self.live_of_others(uid)? {
            if !run.is_up()? {
                let of_host = shares.into_iter().filter(|share| share.identity.is_some());
                found.extend(of_host.map(|share| PlannedShare { pod: pod.clone(), path: share.path }));
            }
        }
        Ok(found)
    }

    fn live_of_others(&self, uid: &PodUid) -> Result<Vec<LiveRun>, FileError> {
        let mut found = Vec::new();
        for pod in self.pods()?.iter().filter(|pod| pod.uid() != uid) {
            let name = pod.record()?.map_or_else(|| pod.uid().to_string(), |record| record.pod.to_string());
            for run in pod.runs()? {
                let Some(spec) = run.live_spec()? else { continue };
                found.push(LiveRun { pod: name.clone(), run, shares: spec.shares });
            }
        }
        Ok(found)
    }
}

impl VmRun {
    /// The same as [`StateDir::writers_of_others`], for a shim: without planned VMs. Their guests have written nothing yet, and the agent
    /// plans no VM that could replace a share which is still planned.
    pub(crate) fn other_writers(&self) -> Result<Vec<HostPathWriter>, FileError> {
        let Some(state) = self.state() else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for live in state.live_of_others(self.vm().uid())? {
            if live.run.has_begun()? {
                found.extend(live.writers());
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::Restart;
    use crate::state::{Ending, Outcome, Progress, ShimSpec, Stage};
    use crate::testing::dir;
    use jiff::Timestamp;

    #[test]
    fn a_guest_writes_to_its_writable_shares_until_its_run_is_over() {
        let dir = dir();
        let state = StateDir::open(dir.path()).unwrap();
        let (own, other) = ("0b1c".parse().unwrap(), "2d3e".parse::<PodUid>().unwrap());
        let share = |path: &str, read_only| Share { path: path.into(), read_only, ..Share::default() };
        let run = state.pod(other.clone()).run(Restart(0));
        let shares = vec![share("/shared", false), share("/seen", true)];
        run.plan(&ShimSpec { shares, ..ShimSpec::example(run.vm()) }).unwrap();
        let writer = HostPathWriter { pod: "2d3e".to_owned(), path: "/shared".into() };
        assert_eq!(state.writers_of_others(&own).unwrap(), std::slice::from_ref(&writer));
        assert_eq!(state.writers_of_others(&other).unwrap(), []);
        let shim = state.pod(own.clone()).run(Restart(0));
        assert_eq!(shim.other_writers().unwrap(), [], "it is only planned");
        run.mark_begun().unwrap();
        assert_eq!(shim.other_writers().unwrap(), std::slice::from_ref(&writer));
        for (path, can) in [("/shared/a/b", true), ("/shared", false), ("/shared2", false), ("/", false)] {
            assert_eq!(writer.can_replace(Path::new(path)), can, "{path}");
        }
        let now = Timestamp::now();
        run.record_outcome(&Outcome { ending: Ending::Lost, started_at: None, finished_at: now }).unwrap();
        assert_eq!(state.writers_of_others(&own).unwrap(), []);
    }

    #[test]
    fn a_share_is_planned_until_its_guest_is_up() {
        let dir = dir();
        let state = StateDir::open(dir.path()).unwrap();
        let (own, other) = ("0b1c".parse().unwrap(), "2d3e".parse::<PodUid>().unwrap());
        let run = state.pod(other.clone()).run(Restart(0));
        let identity = Some(serde_json::from_value(serde_json::json!({"inode": 2})).unwrap());
        let of_host = Share { path: "/shared/a".into(), read_only: true, identity, ..Share::default() };
        let of_agent = Share { path: "/volumes/b".into(), ..Share::default() };
        let shares = vec![of_host, of_agent];
        run.plan(&ShimSpec { shares, ..ShimSpec::example(run.vm()) }).unwrap();
        let planned = || state.planned_shares_of_others(&own).unwrap();
        let share = [PlannedShare { pod: "2d3e".to_owned(), path: "/shared/a".into() }];
        assert_eq!(planned(), share);
        assert_eq!(state.planned_shares_of_others(&other).unwrap(), []);
        let reach = |stage| {
            run.record_progress(&Progress::example(stage)).unwrap();
        };
        reach(Stage::Booting);
        assert_eq!(planned(), share);
        reach(Stage::Up { address: [192, 168, 64, 2].into() });
        assert_eq!(planned(), []);
    }
}
