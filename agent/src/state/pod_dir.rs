//! One Pod, as the files of its directories tell it.

use std::path::{Path, PathBuf};

use super::disk_reserve;
use super::log_files;
use super::records::PodRecord;
use super::vm_run::{Holder, VmRun};
use crate::crash_point;
use crate::fs::file::{self, FileError};
use crate::names::PodUid;
use crate::names::Restart;

/// How the directories of boot shares begin: no volume can have such a name.
pub(crate) const BOOT_DIR_PREFIX: &str = ".boot-";

/// The directory of one VM's boot shares among the Pod's volumes. No guest sees the name.
pub(crate) fn boot_dir_name(restart: Restart) -> String {
    format!("{BOOT_DIR_PREFIX}{restart}")
}

/// What is kept of one Pod.
#[derive(Debug, Clone)]
pub(crate) struct PodDir {
    pub(super) uid: PodUid,
    pub(super) path: PathBuf,
    pub(super) logs: PathBuf,
    /// The volumes of all Pods.
    pub(super) volumes: PathBuf,
}

impl PodDir {
    /// The Pod's UID.
    pub(crate) fn uid(&self) -> &PodUid {
        &self.uid
    }

    /// What is written down of it.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// All that there can be of the Pod.
    pub(crate) fn paths(&self) -> [PathBuf; 3] {
        [self.path.clone(), self.logs.clone(), self.volumes_path()]
    }

    /// Who is at work on any of the Pod's VMs.
    pub(crate) fn holder(&self) -> Result<Holder, FileError> {
        let holders = self.attempts()?.iter().map(VmRun::holder).collect::<Result<Vec<_>, _>>()?;
        let one_is = |holder| holders.contains(&holder).then_some(holder);
        Ok(one_is(Holder::Shim).or_else(|| one_is(Holder::Tart)).unwrap_or(Holder::Nobody))
    }

    /// Records that the Pod was accepted; from here on it is ours to clean up after.
    pub(crate) fn accept(&self, record: &PodRecord) -> Result<(), FileError> {
        file::create_dir(&self.path)?;
        file::write(&self.path.join("pod.json"), record)
    }

    /// The Pod as it was accepted, or `None` when it never was.
    pub(crate) fn record(&self) -> Result<Option<PodRecord>, FileError> {
        file::read(&self.path.join("pod.json"))
    }

    /// All VMs that were made for the Pod and are not forgotten, oldest first.
    pub(crate) fn attempts(&self) -> Result<Vec<VmRun>, FileError> {
        let names = file::entries(&self.path)?;
        let mut restarts: Vec<u32> = names.iter().filter_map(|name| name.parse().ok()).collect();
        restarts.sort_unstable();
        Ok(restarts.into_iter().map(|restart| self.attempt(Restart(restart))).collect())
    }

    /// The place of one VM, whether or not there is anything in it.
    pub(crate) fn attempt(&self, restart: Restart) -> VmRun {
        VmRun::new(self.uid.clone(), restart, self.path.join(restart.to_string()))
    }

    /// Where the output of a container goes.
    pub(crate) fn log_path(&self, container: &str, restart: Restart) -> PathBuf {
        self.logs.join(container).join(format!("{restart}.log"))
    }

    /// Where a shim says what it does.
    pub(crate) fn shim_log_path(&self, restart: Restart) -> PathBuf {
        self.logs.join(format!("{restart}.shim.log"))
    }

    /// Creates the directory for the logs of shims and of these containers.
    pub(crate) fn create_logs<'a>(
        &self,
        containers: impl IntoIterator<Item = &'a str>,
    ) -> Result<(), FileError> {
        file::create_dir(&self.logs)?;
        containers.into_iter().try_for_each(|container| file::create_dir(&self.logs.join(container)))
    }

    /// Why the Pod is evicted, when it is.
    pub(crate) fn evicted(&self) -> Result<Option<String>, FileError> {
        file::read(&self.path.join("evicted.json"))
    }

    /// Records that the Pod is evicted, and why.
    pub(crate) fn evict(&self, why: &str) -> Result<(), FileError> {
        let path = self.path.join("evicted.json");
        disk_reserve::urgently(&path, || file::write(&path, &why))
    }

    /// Whether there is anything of the Pod's volumes.
    pub(crate) fn has_volumes(&self) -> bool {
        self.volumes_path().symlink_metadata().is_ok()
    }

    /// The directory with the Pod's volumes.
    pub(crate) fn volumes_path(&self) -> PathBuf {
        self.volumes.join(self.uid.to_string())
    }

    /// The directory with the logs of its containers and shims.
    pub(crate) fn logs_path(&self) -> &Path {
        &self.logs
    }

    /// Removes the Pod's volumes, with the secrets in them. Nothing of the Pod may run any more.
    pub(crate) fn wipe_volumes(&self) -> Result<(), FileError> {
        crate::fs::remove::remove_at(&self.volumes, &self.uid.to_string())
            .map_err(|source| FileError::new("remove", &self.volumes_path(), source))
    }

    /// Forgets one VM: what may be secret first, its directory last, so that a crash in between is found and finished.
    pub(crate) fn forget_attempt(&self, restart: Restart) -> Result<(), FileError> {
        let attempt = self.attempt(restart);
        // Without it there is nothing left to do.
        if !attempt.path().exists() {
            return Ok(());
        }
        let boot = boot_dir_name(restart);
        crate::fs::remove::remove_at(&self.volumes_path(), &boot)
            .map_err(|source| FileError::new("remove", &self.volumes_path().join(boot), source))?;
        crash_point::point("agent.drop.volumes");
        file::remove(&self.shim_log_path(restart))?;
        let init = attempt.view()?.spec.map(|spec| spec.init).unwrap_or_default();
        for container in file::entries(&self.logs)? {
            let logs = self.logs.join(&container);
            // The logs of shims are here, too. Init containers have counts of their own, and shims that see to their logs.
            if logs.is_dir() && init.iter().all(|one| one.name != container) {
                log_files::remove(&logs, |number| number == restart.0)?;
            }
        }
        crash_point::point("agent.drop.logs");
        attempt.remove()
    }

    /// Forgets the Pod: what may be secret first, the record last, so that a crash in between is found and finished.
    pub(crate) fn remove(&self) -> Result<(), FileError> {
        self.wipe_volumes()?;
        crash_point::point("agent.forget.volumes");
        file::remove_dir(&self.logs)?;
        crash_point::point("agent.forget.logs");
        file::remove_dir(&self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{ContainerSpec, ShimSpec, StateDir};

    #[test]
    fn volumes_go_first_and_are_found_without_their_pod() {
        let dir =
            tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap();
        let state = StateDir::open(dir.path()).unwrap();
        let pod = state.pod("0b1c".parse().unwrap());
        let record = PodRecord {
            pod: crate::names::PodName { namespace: "n".into(), name: "p".into() },
            accepted_at: jiff::Timestamp::UNIX_EPOCH,
        };
        pod.accept(&record).unwrap();
        std::fs::create_dir_all(pod.volumes_path().join("secret")).unwrap();
        std::fs::write(pod.volumes_path().join("secret/key"), "secret").unwrap();
        let known = || state.pods().unwrap().iter().map(|pod| pod.uid().to_string()).collect::<Vec<_>>();
        assert_eq!(known(), ["0b1c"]);
        // As after a crash in the middle of a removal, and as after somebody has tidied up.
        pod.wipe_volumes().unwrap();
        assert!(pod.record().unwrap().is_some() && !pod.volumes_path().exists());
        std::fs::remove_dir_all(state.pods_path().join("0b1c")).unwrap();
        std::fs::create_dir_all(pod.volumes_path()).unwrap();
        assert_eq!(known(), ["0b1c"]);
        pod.remove().unwrap();
        assert!(known().is_empty());
    }

    #[test]
    fn a_vm_that_is_forgotten_leaves_nothing_and_the_others_stay() {
        let dir =
            tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap();
        let pod = StateDir::open(dir.path()).unwrap().pod("0b1c".parse().unwrap());
        pod.create_logs(["main", "first", "init"]).unwrap();
        let of_init = pod.log_path("init", Restart(1));
        std::fs::write(&of_init, "").unwrap();
        let of = |restart: u32| {
            let attempt = pod.attempt(Restart(restart));
            let older = pod.log_path("main", Restart(restart)).with_extension("log.1");
            let logs = ["main", "first"].map(|container| pod.log_path(container, Restart(restart)));
            let boot = pod.volumes_path().join(boot_dir_name(Restart(restart)));
            (attempt, [logs[0].clone(), logs[1].clone(), older, pod.shim_log_path(Restart(restart))], boot)
        };
        let secret = [("SECRET".to_owned(), "1".to_owned())];
        for restart in [1, 11] {
            let (attempt, logs, _) = of(restart);
            let init = vec![ContainerSpec { name: "init".to_owned(), ..ContainerSpec::default() }];
            attempt.plan(&ShimSpec { init, ..ShimSpec::example(attempt.vm()) }).unwrap();
            crate::volume::boot_share::create(&pod, Restart(restart), &secret).unwrap();
            for log in logs {
                std::fs::write(log, "").unwrap();
            }
        }
        pod.forget_attempt(Restart(1)).unwrap();
        // As after a crash: there is nothing left to do.
        pod.forget_attempt(Restart(1)).unwrap();
        for (restart, stays) in [(1, false), (11, true)] {
            let (attempt, logs, boot) = of(restart);
            assert_eq!((attempt.path().exists(), boot.exists()), (stays, stays), "{restart}");
            assert!(logs.iter().all(|log| log.exists() == stays), "{restart}");
        }
        assert!(of_init.exists(), "its number is not that of a VM");
    }
}
