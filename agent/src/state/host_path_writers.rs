//! Who can write to directories of the host: guests that have one as a share.

use std::path::{Path, PathBuf};

use super::{StateDir, VmRun};
use crate::fs::file::FileError;
use crate::names::PodUid;
use crate::tart::Share;

/// A Pod whose guest can write to a directory of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HostPathWriter {
    /// The Pod, as people call it.
    pub(crate) pod: String,
    /// The directory.
    pub(crate) path: PathBuf,
}

impl HostPathWriter {
    /// Whether it can put something else in the place of a directory. Nobody can replace the share that it has itself.
    pub(crate) fn can_replace(&self, path: &Path) -> bool {
        path != self.path && path.starts_with(&self.path)
    }
}

/// A directory of the host that a VM is to be given by its path, and has not got yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Promise {
    /// The Pod, as people call it.
    pub(crate) pod: String,
    /// The directory.
    pub(crate) path: PathBuf,
}

/// A VM of a Pod that is not over.
struct Live {
    pod: String,
    attempt: VmRun,
    shares: Vec<Share>,
}

impl Live {
    fn writers(self) -> impl Iterator<Item = HostPathWriter> {
        let written = self.shares.into_iter().filter(|share| !share.read_only);
        written.map(move |share| HostPathWriter { pod: self.pod.clone(), path: share.path })
    }
}

impl StateDir {
    /// All that other Pods write to, or will as soon as their VMs run.
    pub(crate) fn writers_but(&self, uid: &PodUid) -> Result<Vec<HostPathWriter>, FileError> {
        Ok(self.live_but(uid)?.into_iter().flat_map(Live::writers).collect())
    }

    /// The directories that other Pods are about to get. Until their guests are up, nobody may put anything else in their place.
    pub(crate) fn promises_but(&self, uid: &PodUid) -> Result<Vec<Promise>, FileError> {
        let mut found = Vec::new();
        for Live { pod, attempt, shares } in self.live_but(uid)? {
            if !attempt.is_up()? {
                let of_host = shares.into_iter().filter(|share| share.identity.is_some());
                found.extend(of_host.map(|share| Promise { pod: pod.clone(), path: share.path }));
            }
        }
        Ok(found)
    }

    fn live_but(&self, uid: &PodUid) -> Result<Vec<Live>, FileError> {
        let mut found = Vec::new();
        for pod in self.pods()?.iter().filter(|pod| pod.uid() != uid) {
            let name = pod.record()?.map_or_else(|| pod.uid().to_string(), |record| record.pod.to_string());
            for attempt in pod.attempts()? {
                let Some(spec) = attempt.live_spec()? else { continue };
                found.push(Live { pod: name.clone(), attempt, shares: spec.shares });
            }
        }
        Ok(found)
    }
}

impl VmRun {
    /// The same as [`StateDir::writers_but`], for a shim: without those that are only planned. They have written nothing yet, and
    /// whoever plans a VM waits for this one.
    pub(crate) fn other_writers(&self) -> Result<Vec<HostPathWriter>, FileError> {
        // <state>/pods/<uid>/<restart>
        let Some(state) = self.path().ancestors().nth(3) else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for live in StateDir::at(state).live_but(self.vm().uid())? {
            if live.attempt.has_begun()? {
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
    use jiff::Timestamp;

    #[test]
    fn who_is_over_or_only_reads_writes_nothing() {
        let sandbox = tart_kubelet_tests::sandbox::Sandbox::shared().unwrap();
        let dir = tempfile::tempdir_in(sandbox.path()).unwrap();
        let state = StateDir::open(dir.path()).unwrap();
        let (own, other) = ("0b1c".parse().unwrap(), "2d3e".parse::<PodUid>().unwrap());
        let share = |path: &str, read_only| Share { path: path.into(), read_only, ..Share::default() };
        let attempt = state.pod(other.clone()).attempt(Restart(0));
        let shares = vec![share("/shared", false), share("/seen", true)];
        attempt.plan(&ShimSpec { shares, ..ShimSpec::example(attempt.vm()) }).unwrap();
        let writer = HostPathWriter { pod: "2d3e".to_owned(), path: "/shared".into() };
        assert_eq!(state.writers_but(&own).unwrap(), std::slice::from_ref(&writer));
        assert_eq!(state.writers_but(&other).unwrap(), []);
        let shim = state.pod(own.clone()).attempt(Restart(0));
        assert_eq!(shim.other_writers().unwrap(), [], "it is only planned");
        attempt.begin().unwrap();
        assert_eq!(shim.other_writers().unwrap(), std::slice::from_ref(&writer));
        for (path, can) in [("/shared/a/b", true), ("/shared", false), ("/shared2", false), ("/", false)] {
            assert_eq!(writer.can_replace(Path::new(path)), can, "{path}");
        }
        let now = Timestamp::now();
        attempt.finish(&Outcome { ending: Ending::Lost, started_at: None, finished_at: now }).unwrap();
        assert_eq!(state.writers_but(&own).unwrap(), []);
    }

    #[test]
    fn a_directory_is_promised_until_its_guest_is_up() {
        let sandbox = tart_kubelet_tests::sandbox::Sandbox::shared().unwrap();
        let dir = tempfile::tempdir_in(sandbox.path()).unwrap();
        let state = StateDir::open(dir.path()).unwrap();
        let (own, other) = ("0b1c".parse().unwrap(), "2d3e".parse::<PodUid>().unwrap());
        let attempt = state.pod(other.clone()).attempt(Restart(0));
        let identity = Some(serde_json::from_value(serde_json::json!({"inode": 2})).unwrap());
        let of_host = Share { path: "/shared/a".into(), read_only: true, identity, ..Share::default() };
        let of_agent = Share { path: "/volumes/b".into(), ..Share::default() };
        let shares = vec![of_host, of_agent];
        attempt.plan(&ShimSpec { shares, ..ShimSpec::example(attempt.vm()) }).unwrap();
        let promised = || state.promises_but(&own).unwrap();
        let promise = [Promise { pod: "2d3e".to_owned(), path: "/shared/a".into() }];
        assert_eq!(promised(), promise);
        assert_eq!(state.promises_but(&other).unwrap(), []);
        let reach = |stage| {
            let (enter, probe) = (Vec::new(), Vec::new());
            attempt.progress(&Progress { stage, since: Timestamp::now(), enter, probe }).unwrap();
        };
        reach(Stage::Booting);
        assert_eq!(promised(), promise);
        reach(Stage::Up { address: [192, 168, 64, 2].into() });
        assert_eq!(promised(), []);
    }
}
