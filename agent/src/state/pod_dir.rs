//! The directories of one Pod.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Pod;

use super::records::PodRecord;
use super::shim_spec::ShimSpec;
use super::vm_run::{Holder, VmRun, VmRunView};
use super::{disk_reserve, log_files};
use crate::crash_point;
use crate::fs::file::{self, FileError};
use crate::names::{PodUid, Restart};

/// No volume can have a name that begins so.
pub(crate) const BOOT_DIR_PREFIX: &str = ".boot-";

/// The directory of one VM's boot shares among the Pod's volumes. The guest does not see the name.
pub(crate) fn boot_dir_name(restart: Restart) -> String {
    format!("{BOOT_DIR_PREFIX}{restart}")
}

#[derive(Debug, Clone)]
pub(crate) struct PodDir {
    pub(super) uid: PodUid,
    pub(super) path: PathBuf,
    pub(super) logs: PathBuf,
    /// The volumes of all Pods.
    pub(super) volumes: PathBuf,
}

impl PodDir {
    pub(crate) fn uid(&self) -> &PodUid {
        &self.uid
    }

    /// The directory of its records.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn paths(&self) -> [PathBuf; 3] {
        [self.path.clone(), self.logs.clone(), self.volumes_path()]
    }

    /// Which process works on any of the Pod's VMs.
    pub(crate) fn holder(&self) -> Result<Holder, FileError> {
        let holders = self.runs()?.iter().map(VmRun::holder).collect::<Result<Vec<_>, _>>()?;
        let one_is = |holder| holders.contains(&holder).then_some(holder);
        Ok(one_is(Holder::Shim).or_else(|| one_is(Holder::Tart)).unwrap_or(Holder::None))
    }

    /// Records that the agent has accepted the Pod, and has to clean up after it.
    pub(crate) fn accept(&self, record: &PodRecord) -> Result<(), FileError> {
        file::create_dir(&self.path)?;
        file::write(&self.path.join("pod.json"), record)
    }

    /// `None` when the agent never accepted the Pod.
    pub(crate) fn record(&self) -> Result<Option<PodRecord>, FileError> {
        file::read(&self.path.join("pod.json"))
    }

    /// Keeps the Pod as the API server shows it.
    pub(crate) fn keep_manifest(&self, pod: &Pod) -> Result<(), FileError> {
        let mut pod = pod.clone();
        // Half of the object, and of no use.
        pod.metadata.managed_fields = None;
        file::write(&self.path.join("manifest.json"), &pod)
    }

    /// The Pod as the API server last showed it to an agent; `None` when no agent has kept it.
    pub(crate) fn manifest(&self) -> Result<Option<Pod>, FileError> {
        file::read(&self.path.join("manifest.json"))
    }

    /// All runs that are not removed, oldest first.
    pub(crate) fn runs(&self) -> Result<Vec<VmRun>, FileError> {
        let names = file::entries(&self.path)?;
        let mut restarts: Vec<u32> = names.iter().filter_map(|name| name.parse().ok()).collect();
        restarts.sort_unstable();
        Ok(restarts.into_iter().map(|restart| self.run(Restart(restart))).collect())
    }

    /// One run, whether or not its directory exists.
    pub(crate) fn run(&self, restart: Restart) -> VmRun {
        VmRun::new(self.uid.clone(), restart, self.path.join(restart.to_string()))
    }

    /// The log of a container's start after this many restarts.
    pub(crate) fn log_path(&self, container: &str, restarts: u32) -> PathBuf {
        self.logs.join(container).join(format!("{restarts}.log"))
    }

    pub(crate) fn shim_log_path(&self, restart: Restart) -> PathBuf {
        self.logs.join(format!("{restart}.shim.log"))
    }

    /// Creates the directories for the logs of shims and of these containers.
    pub(crate) fn create_logs<'a>(
        &self,
        containers: impl IntoIterator<Item = &'a str>,
    ) -> Result<(), FileError> {
        file::create_dir(&self.logs)?;
        containers.into_iter().try_for_each(|container| file::create_dir(&self.logs.join(container)))
    }

    /// Why the agent evicts the Pod, if it does.
    pub(crate) fn evicted(&self) -> Result<Option<String>, FileError> {
        file::read(&self.path.join("evicted.json"))
    }

    pub(crate) fn evict(&self, why: &str) -> Result<(), FileError> {
        let path = self.path.join("evicted.json");
        disk_reserve::urgently(&path, || file::write(&path, &why))
    }

    pub(crate) fn has_volumes(&self) -> bool {
        self.volumes_path().symlink_metadata().is_ok()
    }

    pub(crate) fn volumes_path(&self) -> PathBuf {
        self.volumes.join(self.uid.to_string())
    }

    pub(crate) fn logs_path(&self) -> &Path {
        &self.logs
    }

    /// Removes the Pod's volumes, with the secrets in them. No VM of the Pod may run any more.
    pub(crate) fn wipe_volumes(&self) -> Result<(), FileError> {
        crate::fs::remove::remove_at(&self.volumes, &self.uid.to_string())
            .map_err(|source| FileError::new("remove", &self.volumes_path(), source))
    }

    /// Removes a run: what may be secret first, its directory last, so that the next agent finds and finishes a removal that a crash
    /// cut short.
    pub(crate) fn forget_run(&self, restart: Restart) -> Result<(), FileError> {
        let run = self.run(restart);
        if !run.path().exists() {
            return Ok(());
        }
        let boot = boot_dir_name(restart);
        crate::fs::remove::remove_at(&self.volumes_path(), &boot)
            .map_err(|source| FileError::new("remove", &self.volumes_path().join(boot), source))?;
        crash_point::point("agent.forget-run.volumes");
        file::remove(&self.shim_log_path(restart))?;
        self.remove_main_log(restart)?;
        crash_point::point("agent.forget-run.logs");
        run.remove()
    }

    /// Removes the log of the main container in a run.
    fn remove_main_log(&self, restart: Restart) -> Result<(), FileError> {
        let runs = self.runs()?.iter().map(VmRun::view).collect::<Result<Vec<_>, _>>()?;
        let until = runs.partition_point(|run| run.restart <= restart);
        let Some(view) = runs[..until].last().filter(|run| run.has_main()) else { return Ok(()) };
        let number = VmRunView::main_restarts(&runs[..until]);
        // The number of a run whose spec is lost may be that of another log.
        let is_others = |spec: &ShimSpec| spec.vm.restart() != restart && spec.main_restarts == Some(number);
        if view.spec.is_none() && runs.iter().filter_map(|run| run.spec.as_ref()).any(is_others) {
            return Ok(());
        }
        let planned = view.spec.iter().flat_map(|spec| &spec.init).map(|init| init.name.clone());
        let init: Vec<String> = view.init_states().into_iter().map(|init| init.name).chain(planned).collect();
        for container in file::entries(&self.logs)? {
            let logs = self.logs.join(&container);
            // The logs of shims are here, too. Init containers have their own restart counts, and shims remove their logs.
            if logs.is_dir() && !init.contains(&container) {
                log_files::remove(&logs, |one| one == number)?;
            }
        }
        Ok(())
    }

    /// Removes the Pod: what may be secret first, the record last, for the same reason.
    pub(crate) fn remove(&self) -> Result<(), FileError> {
        self.wipe_volumes()?;
        crash_point::point("agent.forget-pod.volumes");
        file::remove_dir(&self.logs)?;
        crash_point::point("agent.forget-pod.logs");
        file::remove_dir(&self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{ContainerSpec, StateDir};
    use crate::testing::dir;

    #[test]
    fn volumes_are_removed_first_and_found_without_their_record() {
        let dir = dir();
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
        // As after a crash in the middle of a removal, and as after a user has deleted the record.
        pod.wipe_volumes().unwrap();
        assert!(pod.record().unwrap().is_some() && !pod.volumes_path().exists());
        std::fs::remove_dir_all(state.pods_path().join("0b1c")).unwrap();
        std::fs::create_dir_all(pod.volumes_path()).unwrap();
        assert_eq!(known(), ["0b1c"]);
        pod.remove().unwrap();
        assert!(known().is_empty());
    }

    #[test]
    fn a_run_is_removed_with_all_its_files_and_the_others_stay() {
        let dir = dir();
        let pod = StateDir::open(dir.path()).unwrap().pod("0b1c".parse().unwrap());
        pod.create_logs(["main", "first", "init"]).unwrap();
        let of_init = pod.log_path("init", 1);
        std::fs::write(&of_init, "").unwrap();
        let of = |restart: u32| {
            let run = pod.run(Restart(restart));
            let older = pod.log_path("main", restart).with_extension("log.1");
            let logs = ["main", "first"].map(|container| pod.log_path(container, restart));
            let boot = pod.volumes_path().join(boot_dir_name(Restart(restart)));
            (run, [logs[0].clone(), logs[1].clone(), older, pod.shim_log_path(Restart(restart))], boot)
        };
        let secret = [("SECRET".to_owned(), "1".to_owned())];
        for restart in [1, 11] {
            let (run, logs, _) = of(restart);
            let init = vec![ContainerSpec { name: "init".to_owned(), ..ContainerSpec::default() }];
            run.plan(&ShimSpec { init, ..ShimSpec::example(run.vm()) }).unwrap();
            crate::volume::boot_share::create(&pod, Restart(restart), &secret).unwrap();
            for log in logs {
                std::fs::write(log, "").unwrap();
            }
        }
        pod.forget_run(Restart(1)).unwrap();
        // As after a crash: there is nothing left to remove.
        pod.forget_run(Restart(1)).unwrap();
        for (restart, stays) in [(1, false), (11, true)] {
            let (run, logs, boot) = of(restart);
            assert_eq!((run.path().exists(), boot.exists()), (stays, stays), "{restart}");
            assert!(logs.iter().all(|log| log.exists() == stays), "{restart}");
        }
        assert!(of_init.exists(), "its number is not that of a run");
    }

    #[test]
    fn a_run_for_init_containers_leaves_all_logs_of_containers() {
        let dir = dir();
        let pod = StateDir::open(dir.path()).unwrap().pod("0b1c".parse().unwrap());
        pod.create_logs(["main", "one", "two"]).unwrap();
        for container in ["main", "one", "two"] {
            std::fs::write(pod.log_path(container, 0), "").unwrap();
        }
        let (init, main) = (pod.run(Restart(0)), pod.run(Restart(1)));
        init.plan(&ShimSpec::example_of_init(init.vm(), &["one"])).unwrap();
        let init_before = ["one", "two"].map(crate::state::InitState::new).to_vec();
        main.plan(&ShimSpec { init_before, main_restarts: Some(0), ..ShimSpec::example(main.vm()) }).unwrap();
        pod.forget_run(Restart(0)).unwrap();
        assert!(!init.path().exists());
        assert!(["main", "one", "two"].iter().all(|container| pod.log_path(container, 0).exists()));
        // The main container's log has its own number.
        pod.forget_run(Restart(1)).unwrap();
        assert!(!pod.log_path("main", 0).exists() && pod.log_path("two", 0).exists());
    }
}
