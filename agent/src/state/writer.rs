//! Who can write to directories of the host: guests that have one as a share.

use std::path::{Path, PathBuf};

use super::file::StateError;
use super::{Attempt, StateDir};
use crate::pod::PodUid;

/// A Pod whose guest can write to a directory of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Writer {
    /// The Pod, as people call it.
    pub pod: String,
    /// The directory.
    pub path: PathBuf,
}

impl Writer {
    /// Whether it can put something else in the place of a directory. Nobody can replace the share that it has itself.
    pub fn can_replace(&self, path: &Path) -> bool {
        path != self.path && path.starts_with(&self.path)
    }
}

impl StateDir {
    /// All that other Pods write to, or will as soon as their VMs run.
    pub fn writers_but(&self, uid: &PodUid) -> Result<Vec<Writer>, StateError> {
        let mut found = Vec::new();
        for pod in self.pods()?.iter().filter(|pod| pod.uid() != uid) {
            let name = pod.record()?.map_or_else(|| pod.uid().to_string(), |record| record.pod.to_string());
            for attempt in pod.attempts()? {
                let Some(spec) = attempt.live_spec()? else { continue };
                let written = spec.shares.into_iter().filter(|share| !share.read_only);
                found.extend(written.map(|share| Writer { pod: name.clone(), path: share.path }));
            }
        }
        Ok(found)
    }
}

impl Attempt {
    /// The same as [`StateDir::writers_but`], for a shim.
    pub fn other_writers(&self) -> Result<Vec<Writer>, StateError> {
        // <state>/pods/<uid>/<restart>
        let Some(state) = self.path().ancestors().nth(3) else { return Ok(Vec::new()) };
        StateDir::at(state).writers_but(self.vm().uid())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{Ending, Outcome, Share, ShimSpec};
    use crate::vm::Restart;
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
        let writer = Writer { pod: "2d3e".to_owned(), path: "/shared".into() };
        assert_eq!(state.writers_but(&own).unwrap(), std::slice::from_ref(&writer));
        assert_eq!(state.writers_but(&other).unwrap(), []);
        let shim = state.pod(own.clone()).attempt(Restart(0));
        assert_eq!(shim.other_writers().unwrap(), std::slice::from_ref(&writer));
        for (path, can) in [("/shared/a/b", true), ("/shared", false), ("/shared2", false), ("/", false)] {
            assert_eq!(writer.can_replace(Path::new(path)), can, "{path}");
        }
        let now = Timestamp::now();
        attempt.finish(&Outcome { ending: Ending::Lost, started_at: None, finished_at: now }).unwrap();
        assert_eq!(state.writers_but(&own).unwrap(), []);
    }
}
