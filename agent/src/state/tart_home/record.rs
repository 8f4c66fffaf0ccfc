//! The tart home that a state directory belongs to: its VMs can be stopped and deleted nowhere else.

use std::path::PathBuf;

use crate::fs::file;
use crate::names::VmName;
use crate::state::{FileError, StateDir, VmRun};
use crate::tart::Tart;

/// Why a state directory cannot be used with a tart home.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TartHomeRecordError {
    #[error(
        "the state directory {} belongs to tart's home {}, where VMs of its Pods may still run ({}); this agent's TART_HOME is {}: start \
         it with TART_HOME={} until these Pods are gone, or give it a --state-dir of its own",
        .state.display(), .home.display(), .vm, .now.display(), .home.display()
    )]
    Another {
        state: PathBuf,
        /// The home of the record.
        home: PathBuf,
        now: PathBuf,
        /// One of the VMs.
        vm: VmName,
    },
    /// The record is spoilt, and this home has none of the VMs.
    #[error(
        "{} is spoilt, so that it is unknown which tart home has the VM {vm} of the state directory; {} does not have it. Start the agent \
         with the TART_HOME that it had before, or remove the file if that home is gone",
        .path.display(), .now.display()
    )]
    Spoilt {
        /// The file of the record.
        path: PathBuf,
        now: PathBuf,
        /// One of the VMs.
        vm: VmName,
    },
    #[error("cannot tell which tart home the state directory belongs to")]
    State(#[from] FileError),
}

impl StateDir {
    /// Has the directory belong to a tart home. It leaves another home only when none of its VMs is left. A directory whose record is
    /// spoilt belongs to the home that has one of its VMs.
    pub(crate) fn belong_to(&self, tart: &Tart) -> Result<(), TartHomeRecordError> {
        let (path, home) = (self.path().join("tart-home.json"), tart.home());
        let is_spoilt = file::condition::<PathBuf>(&path)?.is_unreadable();
        let before = if is_spoilt { None } else { file::read::<PathBuf>(&path)? };
        if before.as_deref() == Some(home) {
            return Ok(());
        }
        let remaining = self.remaining_vms()?;
        let now = home.to_owned();
        match (before, remaining.first().cloned()) {
            (Some(home), Some(vm)) => {
                let state = self.path().to_owned();
                return Err(TartHomeRecordError::Another { state, home, now, vm });
            }
            // No other home has a VM of that name.
            (None, Some(vm)) if is_spoilt && !remaining.iter().any(|vm| tart.vm_dir(vm).exists()) => {
                return Err(TartHomeRecordError::Spoilt { path, now, vm });
            }
            _ => {}
        }
        Ok(file::write_durably(&path, &home)?)
    }

    /// The VMs of which tart may still have something.
    fn remaining_vms(&self) -> Result<Vec<VmName>, FileError> {
        let mut found = Vec::new();
        for pod in self.pods()? {
            found.extend(pod.runs()?.iter().filter(|run| !run.is_cleaned()).map(VmRun::vm));
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    use crate::names::Restart;
    use crate::testing;

    /// tart with this home.
    fn tart(home: &Path) -> Tart {
        Tart::in_home("tart".as_ref(), home)
    }

    #[test]
    fn a_state_directory_leaves_its_home_when_no_vm_of_it_is_left() {
        let dir = testing::dir();
        let state = StateDir::open(dir.path()).unwrap();
        let (first, second) = (tart(Path::new("/first")), tart(Path::new("/second")));
        state.belong_to(&first).unwrap();
        state.belong_to(&second).unwrap();
        state.belong_to(&first).unwrap();
        let run = state.pod("0b1c".parse().unwrap()).run(Restart(0));
        std::fs::create_dir_all(run.path()).unwrap();
        let error = state.belong_to(&second).unwrap_err().to_string();
        for words in ["/first", "/second", "tk-0b1c-0", "TART_HOME=/first", "--state-dir"] {
            assert!(error.contains(words), "no {words} in {error}");
        }
        state.belong_to(&first).unwrap();
        std::fs::write(run.path().join("cleaned"), "").unwrap();
        state.belong_to(&second).unwrap();
        assert_eq!(
            file::read::<PathBuf>(&dir.path().join("tart-home.json")).unwrap().as_deref(),
            Some(Path::new("/second"))
        );
    }

    #[test]
    fn a_state_directory_with_a_spoilt_record_belongs_to_the_home_that_has_its_vms() {
        let dir = testing::dir();
        let state = StateDir::open(&dir.path().join("state")).unwrap();
        let (own, other) = (tart(&dir.path().join("own")), tart(&dir.path().join("other")));
        state.belong_to(&own).unwrap();
        let run = state.pod("0b1c".parse().unwrap()).run(Restart(0));
        std::fs::create_dir_all(run.path()).unwrap();
        std::fs::create_dir_all(own.vm_dir(&run.vm())).unwrap();
        let record = state.path().join("tart-home.json");
        for spoilt in ["", "\"/ow", "{}"] {
            std::fs::write(&record, spoilt).unwrap();
            let error = state.belong_to(&other).unwrap_err().to_string();
            for words in ["tart-home.json is spoilt", "tk-0b1c-0", "other", "TART_HOME"] {
                assert!(error.contains(words), "no {words} in {error}");
            }
            state.belong_to(&own).unwrap();
            assert_eq!(file::read::<PathBuf>(&record).unwrap().as_deref(), Some(own.home()));
        }
        std::fs::write(&record, "").unwrap();
        run.mark_cleaned().unwrap();
        state.belong_to(&other).unwrap();
    }
}
