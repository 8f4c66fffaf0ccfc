//! The tart home that a state directory belongs to: its VMs can be stopped and deleted nowhere else.

use std::path::{Path, PathBuf};

use super::{FileError, StateDir};
use crate::fs::file;
use crate::names::VmName;

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
    #[error("cannot tell which tart home the state directory belongs to")]
    State(#[from] FileError),
}

impl StateDir {
    /// Has the directory belong to a tart home. It leaves another home only when none of its VMs is left.
    pub(crate) fn belong_to(&self, home: &Path) -> Result<(), TartHomeRecordError> {
        let path = self.path().join("tart-home.json");
        let before = file::read::<PathBuf>(&path)?;
        if before.as_deref() == Some(home) {
            return Ok(());
        }
        if let Some(before) = before
            && let Some(vm) = self.remaining_vm()?
        {
            let (state, now) = (self.path().to_owned(), home.to_owned());
            return Err(TartHomeRecordError::Another { state, home: before, now, vm });
        }
        Ok(file::write_durably(&path, &home)?)
    }

    /// A VM of which tart may still have something.
    fn remaining_vm(&self) -> Result<Option<VmName>, FileError> {
        for pod in self.pods()? {
            if let Some(run) = pod.runs()?.iter().find(|run| !run.is_cleaned()) {
                return Ok(Some(run.vm()));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::Restart;
    use crate::testing;

    #[test]
    fn a_state_directory_leaves_its_home_when_no_vm_of_it_is_left() {
        let dir = testing::dir();
        let state = StateDir::open(dir.path()).unwrap();
        let (first, second) = (Path::new("/first"), Path::new("/second"));
        state.belong_to(first).unwrap();
        state.belong_to(second).unwrap();
        state.belong_to(first).unwrap();
        let run = state.pod("0b1c".parse().unwrap()).run(Restart(0));
        std::fs::create_dir_all(run.path()).unwrap();
        let error = state.belong_to(second).unwrap_err().to_string();
        for words in ["/first", "/second", "tk-0b1c-0", "TART_HOME=/first", "--state-dir"] {
            assert!(error.contains(words), "no {words} in {error}");
        }
        state.belong_to(first).unwrap();
        std::fs::write(run.path().join("cleaned"), "").unwrap();
        state.belong_to(second).unwrap();
        assert_eq!(
            file::read::<PathBuf>(&dir.path().join("tart-home.json")).unwrap().as_deref(),
            Some(second)
        );
    }
}
