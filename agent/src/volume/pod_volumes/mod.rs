//! A Pod's volumes on the host, and how its VM gets them.

#[cfg(test)]
mod tests;
mod volume_root;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Volume, VolumeMount};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

use super::content::Content;
use super::error::VolumeError;
use super::host_path::{HostPathError, HostPaths};
use super::share::{self, ShareAccess, is_read_only};
use super::size_limit::{self, Exceeded, SizeLimit};
use super::sub_path::{self, SubPathError};
use super::updater::{VolumeStatus, update};
use super::{guest_path, memory};
use crate::apiserver::events::EventReason;
use crate::env::sources::InputSources;
use crate::error_chain::chain;
use crate::fs::blocking_io::BlockingIo;
use crate::names::PodUid;
use crate::state::container_spec::{all_containers, has_command};
use crate::state::{Missing, Mount, PodDir};
use crate::tart::{Share, Tart};
use volume_root::VolumeRoot;

/// The deadline of the first update of all volumes, and of reads of the host's disk.
const DEADLINE: Duration = Duration::from_secs(30);

/// The volumes of one Pod. Its tasks end when it is dropped.
#[derive(Debug)]
pub(crate) struct PodVolumes {
    uid: PodUid,
    dir: PathBuf,
    /// The volumes on the host that a container mounts.
    volumes: Vec<Volume>,
    /// The volumes in the guest's memory, with their sizes.
    in_memory: HashMap<String, u64>,
    /// Each with the name of its container, in the order in which containers start.
    mounts: Vec<(String, VolumeMount)>,
    /// Whether the guest is boot-only, and has a status share.
    is_boot_only: bool,
    storage: Option<SizeLimit>,
    pod: watch::Receiver<Arc<Pod>>,
    sources: InputSources,
    host_paths: Arc<HostPaths>,
    report: watch::Sender<VolumesReport>,
    seen: watch::Receiver<VolumesReport>,
    tasks: JoinSet<()>,
    updaters: HashMap<String, AbortHandle>,
    measurer: Option<AbortHandle>,
    io: BlockingIo,
}

/// The shares and mounts of a VM.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Prepared {
    pub(crate) shares: Vec<Share>,
    /// By the name of the container.
    pub(crate) mounts: BTreeMap<String, Vec<Mount>>,
}

/// Volumes that a VM cannot get, or not yet. The caller tries again when [`PodVolumes::changed`] returns, or after a while.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PrepareError {
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Mount(Vec<MountFailure>),
    #[error(transparent)]
    SubPath(#[from] SubPathError),
    #[error("cannot find volume \"{volume}\" to mount into container \"{container}\"")]
    Unknown { volume: String, container: String },
}

impl PrepareError {
    /// The kubelet's reasons: that of the Event, and that of a container that waits, when it is not just being created.
    pub(crate) fn reasons(&self) -> (EventReason, Option<&'static str>) {
        match self {
            Self::Mount(_) => (EventReason::FailedMount, None),
            Self::SubPath(_) | Self::Unknown { .. } => {
                (EventReason::Failed, Some("CreateContainerConfigError"))
            }
        }
    }

    pub(crate) fn is_for_want_of_space(&self) -> bool {
        match self {
            Self::Mount(failures) => failures.iter().any(|failure| failure.problem.no_space),
            Self::SubPath(_) | Self::Unknown { .. } => false,
        }
    }
}

/// A volume that cannot be set up, in the kubelet's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("MountVolume.SetUp failed for volume \"{volume}\" : {problem}")]
pub(crate) struct MountFailure {
    pub(crate) volume: String,
    pub(crate) problem: VolumeError,
}

impl MountFailure {
    pub(crate) fn new(volume: &str, problem: &(dyn std::error::Error + 'static)) -> Self {
        Self { volume: volume.to_owned(), problem: VolumeError::of(problem) }
    }

    /// The failure of a hostPath. If its disk is full, deleting images may not help, so that it does not count as a lack of space.
    fn of_host(volume: &str, problem: &HostPathError) -> Self {
        Self { volume: volume.to_owned(), problem: chain(problem).as_str().into() }
    }
}

/// The directories of volumes on the host, by the volumes' names, and how containers use each.
type VolumeRoots = BTreeMap<String, (VolumeRoot, ShareAccess)>;

/// The results of the tasks of a Pod's volumes.
#[derive(Debug, Clone, Default)]
struct VolumesReport {
    statuses: BTreeMap<String, VolumeStatus>,
    exceeded: Option<Exceeded>,
}

impl PodVolumes {
    /// The volumes of a Pod. [`prepare`](Self::prepare) creates them.
    pub(crate) fn new(
        dir: &PodDir,
        pod: watch::Receiver<Arc<Pod>>,
        sources: InputSources,
        host_paths: Arc<HostPaths>,
        tart: &Tart,
    ) -> Self {
        let spec = pod.borrow().spec.clone().unwrap_or_default();
        let mounts: Vec<_> = all_containers(&spec)
            .flat_map(|one| one.volume_mounts.iter().flatten().map(|mount| (one.name.clone(), mount.clone())))
            .collect();
        let is_boot_only = spec.containers.last().is_some_and(|main| !has_command(main));
        let is_mounted = |volume: &Volume| mounts.iter().any(|(_, mount)| mount.name == volume.name);
        let mounted = spec.volumes.iter().flatten().filter(|volume| is_mounted(volume)).cloned();
        let (in_memory, volumes): (Vec<_>, Vec<_>) =
            mounted.partition(|volume| memory::is_in_memory(&spec, volume));
        let in_memory = in_memory.iter().map(|volume| (volume.name.clone(), memory::size(volume))).collect();
        let (report, seen) = watch::channel(VolumesReport::default());
        Self {
            uid: dir.uid().clone(),
            dir: dir.volumes_path(),
            volumes,
            in_memory,
            mounts,
            is_boot_only,
            storage: SizeLimit::of_pod(dir, tart, &spec),
            pod,
            sources,
            host_paths,
            report,
            seen,
            tasks: JoinSet::new(),
            updaters: HashMap::new(),
            measurer: None,
            io: BlockingIo::default(),
        }
    }

    /// Creates all volumes, and keeps their files up to date from then on. The shares and mounts are those of the containers for which `runs`
    /// is true: the VM's own. `variable` gets the name of a container and of a variable in its environment.
    pub(crate) async fn prepare(
        &mut self,
        runs: impl Fn(&str) -> bool,
        variable: impl Fn(&str, &str) -> Option<String>,
    ) -> Result<Prepared, PrepareError> {
        let own = self.mounts.iter().filter(|(container, _)| runs(container));
        let own: Vec<(String, VolumeMount)> = own.cloned().collect();
        let roots = self.create_roots(own.clone()).await?;
        // An updater has ended if its volume was removed. The volume exists again now.
        self.updaters.retain(|_, updater| !updater.is_finished());
        self.follow();
        self.wait_until_written().await?;
        let mut wanted = Vec::new();
        for (container, mount) in &own {
            let sub_path = sub_path::of(mount, |name| variable(container, name))?;
            let mut before = own.iter().take_while(|(other, _)| other != container);
            let is_first = !before.any(|(_, other)| other.name == mount.name);
            wanted.push((container.clone(), mount.clone(), sub_path, is_first));
        }
        let mut prepared = Prepared { shares: shares(&roots), ..Prepared::default() };
        let in_memory = self.in_memory.clone();
        let mounted: Vec<String> = self.mounts.iter().map(|(_, mount)| mount.name.clone()).collect();
        let (host_paths, uid) = (self.host_paths.clone(), self.uid.clone());
        let resolve = move || -> Result<Prepared, PrepareError> {
            for (volume, (root, access)) in &roots {
                if root.identity.is_some() && access.writable {
                    let failed = |error| PrepareError::Mount(vec![MountFailure::of_host(volume, &error)]);
                    host_paths.may_be_written(&root.path, &uid).map_err(failed)?;
                }
            }
            for (container, mount, sub_path, is_first) in wanted {
                let path = guest_path(&mount.mount_path).display().to_string();
                let mount = if let Some(size) = in_memory.get(&mount.name) {
                    let is_alone = sub_path.is_empty()
                        && mounted.iter().filter(|name| **name == mount.name).count() == 1;
                    let (in_memory, missing) = (Some(*size), Missing::Awaited);
                    Mount { share: mount.name, sub_path, path, in_memory, is_alone, missing }
                } else if let Some((root, access)) = roots.get(&mount.name) {
                    let writable = access.writable.then(|| share::name(&mount.name, *access, false));
                    let resolved = root.sub_path(sub_path, is_first, writable);
                    let (sub_path, missing) = resolved.map_err(|why| why.of(&mount.name, &container))?;
                    let share = share::name(&mount.name, *access, is_read_only(&mount, root.writable));
                    Mount { share, sub_path, path, missing, ..Mount::default() }
                } else {
                    return Err(PrepareError::Unknown { volume: mount.name, container });
                };
                prepared.mounts.entry(container).or_default().push(mount);
            }
            Ok(prepared)
        };
        self.io.run(DEADLINE, resolve).await.unwrap_or_else(|| Err(self.disk_silent()))
    }

    /// Keeps the files of existing volumes up to date, also for a Pod whose VM an earlier agent has started. Volumes that do not exist stay
    /// away.
    pub(crate) fn follow(&mut self) {
        while self.tasks.try_join_next().is_some() {}
        for volume in &self.volumes {
            let name = volume.name.clone();
            // An updater that has ended has found its volume removed.
            if self.updaters.contains_key(&name) {
                continue;
            }
            let Some(content) = Content::of(volume, self.pod.clone(), &self.sources) else { continue };
            self.report.send_if_modified(|report| report.statuses.remove(&name).is_some());
            let sender = self.report.clone();
            let reported = name.clone();
            let report = move |status: VolumeStatus| {
                sender.send_if_modified(|report| {
                    let before = report.statuses.insert(reported.clone(), status.clone());
                    before != Some(status)
                });
            };
            let updater = self.tasks.spawn(update(self.dir.clone(), name.clone(), content, report));
            self.updaters.insert(name, updater);
        }
        self.measure();
    }

    /// Waits until a status has changed, or a limit is exceeded. Cancel-safe.
    pub(crate) async fn changed(&mut self) {
        // It cannot fail, because `self` has the sender.
        let _ = self.seen.changed().await;
    }

    /// The limit that is exceeded, if any: the Pod is to be evicted with its message.
    pub(crate) fn exceeded(&self) -> Option<Exceeded> {
        self.report.borrow().exceeded.clone()
    }

    /// The volumes that are not up to date. Those of a running VM keep their old files.
    pub(crate) fn problems(&self) -> Vec<MountFailure> {
        let failed = |(volume, status): (&String, &VolumeStatus)| {
            Some(MountFailure { volume: volume.clone(), problem: status.problem.clone()? })
        };
        self.report.borrow().statuses.iter().filter_map(failed).collect()
    }

    fn measure(&mut self) {
        let of = |volume: &Volume| SizeLimit::of(&volume.name, volume.empty_dir.as_ref()?);
        let mut limits: Vec<SizeLimit> = self.volumes.iter().filter_map(of).collect();
        limits.extend(self.is_boot_only.then(SizeLimit::of_boot_status));
        limits.extend(self.storage.clone());
        if limits.is_empty() || self.measurer.is_some() {
            return;
        }
        let (dir, report) = (self.dir.clone(), self.report.clone());
        self.measurer = Some(self.tasks.spawn(async move {
            let exceeded = size_limit::watch(dir, limits).await;
            report.send_modify(|report| report.exceeded = Some(exceeded));
        }));
    }

    async fn create_roots(
        &mut self,
        mounts: Vec<(String, VolumeMount)>,
    ) -> Result<VolumeRoots, PrepareError> {
        let (uid, dir) = (self.uid.clone(), self.dir.clone());
        let (volumes, host_paths) = (self.volumes.clone(), self.host_paths.clone());
        let create = move || {
            let (mut roots, mut failures) = (BTreeMap::new(), Vec::new());
            for volume in &volumes {
                match VolumeRoot::create(&uid, &dir, volume, &host_paths) {
                    Ok(root) => {
                        let mounts = mounts.iter().map(|(_, mount)| mount);
                        let own = mounts.filter(|mount| mount.name == volume.name);
                        let access = ShareAccess::of(own, root.writable);
                        roots.insert(volume.name.clone(), (root, access));
                    }
                    Err(failure) => failures.push(failure),
                }
            }
            if failures.is_empty() { Ok(roots) } else { Err(PrepareError::Mount(failures)) }
        };
        self.io.run(DEADLINE, create).await.unwrap_or_else(|| Err(self.disk_silent()))
    }

    /// Waits until the files of all volumes are written, or have failed.
    async fn wait_until_written(&mut self) -> Result<(), PrepareError> {
        let mut names: Vec<String> = self.updaters.keys().cloned().collect();
        names.sort();
        let settled = |status: &VolumeStatus| status.written || status.problem.is_some();
        let all =
            |report: &VolumesReport| names.iter().all(|name| report.statuses.get(name).is_some_and(settled));
        let mut seen = self.report.subscribe();
        let _ = timeout(DEADLINE, seen.wait_for(all)).await;
        let report = self.seen.borrow_and_update();
        let failure = |name: &String| {
            let problem = match report.statuses.get(name) {
                Some(VolumeStatus { written: true, .. }) => return None,
                Some(VolumeStatus { problem: Some(problem), .. }) => problem.clone(),
                _ => "timed out".into(),
            };
            Some(MountFailure { volume: name.clone(), problem })
        };
        let failures: Vec<MountFailure> = names.iter().filter_map(failure).collect();
        if failures.is_empty() { Ok(()) } else { Err(PrepareError::Mount(failures)) }
    }

    fn disk_silent(&self) -> PrepareError {
        let problem = "the host's disk does not answer";
        let failure = |volume: &Volume| MountFailure { volume: volume.name.clone(), problem: problem.into() };
        PrepareError::Mount(self.volumes.iter().map(failure).collect())
    }
}

fn shares(roots: &VolumeRoots) -> Vec<Share> {
    let shares = roots.iter().flat_map(|(volume, (root, access))| {
        let kinds = [(access.writable, false), (access.read_only, true)];
        kinds.into_iter().filter(|(is_wanted, _)| *is_wanted).map(move |(_, read_only)| Share {
            name: share::name(volume, *access, read_only),
            path: root.path.clone(),
            read_only,
            identity: root.identity,
        })
    });
    shares.collect()
}
