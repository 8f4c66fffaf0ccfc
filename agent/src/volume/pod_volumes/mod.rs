//! A Pod's volumes on the host: where they are, and how its VM gets them.

#[cfg(test)]
mod tests;
mod volume_root;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodSpec, Volume, VolumeMount};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

use super::content::Content;
use super::error::VolumeError;
use super::host_path::{HostPathError, HostPaths};
use super::memory;
use super::share::{self, ShareAccess, is_read_only};
use super::size_limit::{self, Exceeded, SizeLimit};
use super::sub_path::{self, SubPathError};
use super::updater::{VolumeUpdater, fill};
use crate::env::sources::InputSources;
use crate::error_chain::chain;
use crate::fs::blocking_io::BlockingIo;
use crate::names::PodUid;
use crate::pod::admission::mounts::guest_path;
use crate::state::container_spec::has_command;
use crate::state::{Missing, Mount, PodDir};
use crate::tart::Share;
use crate::tart::Tart;
use volume_root::{Part, VolumeRoot};

/// How long the first filling of all volumes, and the host's disk, may take before the Pod is told to wait.
const PATIENCE: Duration = Duration::from_secs(30);

/// The volumes of one Pod. What it has started ends when it is dropped.
#[derive(Debug)]
pub(crate) struct PodVolumes {
    /// Whose they are.
    uid: PodUid,
    /// The directory with all of them.
    dir: PathBuf,
    /// Those that a container mounts, and that are on the host.
    volumes: Vec<Volume>,
    /// Those in the guest's memory, with their sizes.
    in_memory: HashMap<String, u64>,
    mounts: Vec<ContainerMounts>,
    /// Whether the guest runs no command, and can say how it ended in a share of its own.
    only_boots: bool,
    /// How much of the disk the Pod may take, with all that is not a volume.
    storage: Option<SizeLimit>,
    pod: watch::Receiver<Arc<Pod>>,
    world: InputSources,
    host_paths: Arc<HostPaths>,
    report: watch::Sender<Report>,
    seen: watch::Receiver<Report>,
    tasks: JoinSet<()>,
    fillers: HashMap<String, AbortHandle>,
    measurer: Option<AbortHandle>,
    /// What is looked up on the host's disks, which may hang.
    looks: BlockingIo,
}

/// What a VM gets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Prepared {
    /// The directories that it is given.
    pub(crate) shares: Vec<Share>,
    /// Where each container expects them, by the container's name.
    pub(crate) mounts: BTreeMap<String, Vec<Mount>>,
}

/// Volumes that a VM cannot have, or not yet. It is worth another try when [`PodVolumes::changed`] says so, or after a while.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PrepareError {
    /// Volumes that cannot be set up.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Mount(Vec<MountFailure>),
    /// A part of a volume that a container cannot have.
    #[error(transparent)]
    SubPath(#[from] SubPathError),
    /// A container mounts what is not there.
    #[error("cannot find volume \"{volume}\" to mount into container \"{container}\"")]
    Unknown {
        /// The volume.
        volume: String,
        /// The container.
        container: String,
    },
}

impl PrepareError {
    /// The kubelet's word for it: the reason of an Event, or of a waiting container.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Mount(_) => "FailedMount",
            Self::SubPath(_) | Self::Unknown { .. } => "CreateContainerConfigError",
        }
    }

    /// Whether the disk is full.
    pub(crate) fn is_for_want_of_space(&self) -> bool {
        match self {
            Self::Mount(failures) => failures.iter().any(|failure| failure.problem.is_for_want_of_space()),
            Self::SubPath(_) | Self::Unknown { .. } => false,
        }
    }
}

/// A volume that cannot be set up, in the kubelet's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("MountVolume.SetUp failed for volume \"{volume}\" : {problem}")]
pub(crate) struct MountFailure {
    /// The volume.
    pub(crate) volume: String,
    /// What is in the way.
    pub(crate) problem: VolumeError,
}

impl MountFailure {
    pub(crate) fn new(volume: &str, problem: &(dyn std::error::Error + 'static)) -> Self {
        Self { volume: volume.to_owned(), problem: VolumeError::of(problem) }
    }

    /// Another volume than ours may be full, which is nothing that images could make room on.
    fn of_host(volume: &str, problem: &HostPathError) -> Self {
        Self { volume: volume.to_owned(), problem: chain(problem).as_str().into() }
    }
}

#[derive(Debug, Clone)]
struct ContainerMounts {
    container: String,
    mounts: Vec<VolumeMount>,
}

/// What the tasks of a Pod's volumes have to say.
#[derive(Debug, Clone, Default)]
struct Report {
    fillings: BTreeMap<String, VolumeUpdater>,
    exceeded: Option<Exceeded>,
}

impl PodVolumes {
    /// The volumes of a Pod. Nothing is done for them yet.
    pub(crate) fn new(
        dir: &PodDir,
        pod: watch::Receiver<Arc<Pod>>,
        world: InputSources,
        host_paths: Arc<HostPaths>,
        tart: &Tart,
    ) -> Self {
        let spec = pod.borrow().spec.clone().unwrap_or_default();
        let mounts = mounts_of(&spec);
        let only_boots = spec.containers.last().is_some_and(|main| !has_command(main));
        let is_mounted =
            |volume: &Volume| mounts.iter().flat_map(|of| &of.mounts).any(|mount| mount.name == volume.name);
        let mounted = spec.volumes.iter().flatten().filter(|volume| is_mounted(volume)).cloned();
        let (in_memory, volumes): (Vec<_>, Vec<_>) =
            mounted.partition(|volume| memory::is_in_memory(&spec, volume));
        let in_memory = in_memory.iter().map(|volume| (volume.name.clone(), memory::size(volume))).collect();
        let (report, seen) = watch::channel(Report::default());
        Self {
            uid: dir.uid().clone(),
            dir: dir.volumes_path(),
            volumes,
            in_memory,
            mounts,
            only_boots,
            storage: SizeLimit::of_pod(dir, tart, &spec),
            pod,
            world,
            host_paths,
            report,
            seen,
            tasks: JoinSet::new(),
            fillers: HashMap::new(),
            measurer: None,
            looks: BlockingIo::default(),
        }
    }

    /// Has all volumes ready, and keeps them so from then on. `variable` knows the environment of a container, by its name and
    /// the variable's.
    pub(crate) async fn prepare(
        &mut self,
        variable: impl Fn(&str, &str) -> Option<String>,
    ) -> Result<Prepared, PrepareError> {
        let grounds = self.lay_grounds().await?;
        // A volume that was gone is there again.
        self.fillers.retain(|_, filler| !filler.is_finished());
        self.follow();
        self.filled().await?;
        let mut wanted = Vec::new();
        for (turn, ContainerMounts { container, mounts }) in self.mounts.iter().enumerate() {
            for mount in mounts {
                let sub_path = sub_path::of(mount, |name| variable(container, name))?;
                let is_first =
                    !self.mounts[..turn].iter().flat_map(|of| &of.mounts).any(|it| it.name == mount.name);
                wanted.push((container.clone(), mount.clone(), sub_path, is_first));
            }
        }
        let mut prepared = Prepared { shares: self.shares(&grounds), ..Prepared::default() };
        for ContainerMounts { container, .. } in &self.mounts {
            prepared.mounts.insert(container.clone(), Vec::new());
        }
        let accesses: HashMap<String, ShareAccess> =
            grounds.iter().map(|(volume, ground)| (volume.clone(), self.access(volume, ground))).collect();
        let in_memory = self.in_memory.clone();
        let (host_paths, uid) = (self.host_paths.clone(), self.uid.clone());
        let place = move || -> Result<Prepared, PrepareError> {
            for (volume, ground) in &grounds {
                if ground.place.is_some() && accesses.get(volume).is_some_and(|access| access.writable) {
                    let failed = |error| PrepareError::Mount(vec![MountFailure::of_host(volume, &error)]);
                    host_paths.may_be_written(&ground.path, &uid).map_err(failed)?;
                }
            }
            for (container, mount, sub_path, is_first) in wanted {
                let path = guest_path(&mount.mount_path).display().to_string();
                if let Some(size) = in_memory.get(&mount.name) {
                    let (in_memory, missing) = (Some(*size), Missing::Awaited);
                    let mount = Mount { share: mount.name, sub_path, path, in_memory, missing };
                    prepared.mounts.entry(container).or_default().push(mount);
                    continue;
                }
                let Some((ground, access)) = grounds.get(&mount.name).zip(accesses.get(&mount.name)) else {
                    return Err(PrepareError::Unknown { volume: mount.name, container });
                };
                let writable = access.writable.then(|| share::name(&mount.name, *access, false));
                let part = Part { sub_path, volume: &mount.name, container: &container, is_first, writable };
                let (sub_path, missing) = part.placed(ground)?;
                let share = share::name(&mount.name, *access, is_read_only(&mount, ground.writable));
                let mount = Mount { share, sub_path, path, in_memory: None, missing };
                prepared.mounts.entry(container).or_default().push(mount);
            }
            Ok(prepared)
        };
        self.looks.look(PATIENCE, place).await.unwrap_or_else(|| Err(self.no_answer()))
    }

    /// Keeps what is there as it is to be: for a Pod whose VM an earlier agent has started. Volumes that are not there are left
    /// alone.
    pub(crate) fn follow(&mut self) {
        while self.tasks.try_join_next().is_some() {}
        for volume in &self.volumes {
            let name = volume.name.clone();
            // One that has ended has found its volume gone.
            if self.fillers.contains_key(&name) {
                continue;
            }
            let Some(content) = Content::of(volume, self.pod.clone(), &self.world) else { continue };
            self.report.send_if_modified(|report| report.fillings.remove(&name).is_some());
            let report = self.report.clone();
            let tell = {
                let name = name.clone();
                move |filling: VolumeUpdater| {
                    report.send_if_modified(|report| {
                        let before = report.fillings.insert(name.clone(), filling.clone());
                        before != Some(filling)
                    });
                }
            };
            let filler = self.tasks.spawn(fill(self.dir.clone(), name.clone(), content, tell));
            self.fillers.insert(name, filler);
        }
        self.measure();
    }

    /// Waits until there may be something new to be told: a volume that heals, or something that is too large. Safe to cancel.
    pub(crate) async fn changed(&mut self) {
        // It cannot fail: this has the other end, too.
        let _ = self.seen.changed().await;
    }

    /// What is too large, if anything is: the Pod is to be evicted with these words.
    pub(crate) fn exceeded(&self) -> Option<Exceeded> {
        self.report.borrow().exceeded.clone()
    }

    /// The volumes that are not as they are to be; those of a running VM have their old files.
    pub(crate) fn problems(&self) -> Vec<MountFailure> {
        let report = self.report.borrow();
        let failed = report.fillings.iter().filter_map(|(volume, filling)| {
            let problem = filling.problem.clone()?;
            Some(MountFailure { volume: volume.clone(), problem })
        });
        failed.collect()
    }

    fn measure(&mut self) {
        let mut limits: Vec<SizeLimit> = self
            .volumes
            .iter()
            .filter_map(|volume| SizeLimit::of(&volume.name, volume.empty_dir.as_ref()?))
            .collect();
        if self.only_boots {
            limits.push(SizeLimit::of_boot_status());
        }
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

    /// Makes the directories of all volumes.
    async fn lay_grounds(&mut self) -> Result<BTreeMap<String, VolumeRoot>, PrepareError> {
        let (uid, dir) = (self.uid.clone(), self.dir.clone());
        let (volumes, host_paths) = (self.volumes.clone(), self.host_paths.clone());
        let lay = move || {
            let (mut grounds, mut failures) = (BTreeMap::new(), Vec::new());
            for volume in &volumes {
                match VolumeRoot::lay(&uid, &dir, volume, &host_paths) {
                    Ok(ground) => drop(grounds.insert(volume.name.clone(), ground)),
                    Err(failure) => failures.push(failure),
                }
            }
            if failures.is_empty() { Ok(grounds) } else { Err(PrepareError::Mount(failures)) }
        };
        self.looks.look(PATIENCE, lay).await.unwrap_or_else(|| Err(self.no_answer()))
    }

    /// Waits until all volumes with files have them, or cannot have them.
    async fn filled(&mut self) -> Result<(), PrepareError> {
        let names: Vec<String> = self.fillers.keys().cloned().collect();
        let settled = |filling: &VolumeUpdater| filling.written || filling.problem.is_some();
        let all = |report: &Report| names.iter().all(|name| report.fillings.get(name).is_some_and(settled));
        let mut seen = self.report.subscribe();
        let _ = timeout(PATIENCE, seen.wait_for(all)).await;
        let report = self.seen.borrow_and_update();
        let failure = |name: &String| match report.fillings.get(name) {
            Some(VolumeUpdater { written: true, .. }) => None,
            Some(VolumeUpdater { problem: Some(problem), .. }) => {
                Some(MountFailure { volume: name.clone(), problem: problem.clone() })
            }
            _ => Some(MountFailure { volume: name.clone(), problem: "timed out".into() }),
        };
        let mut failures: Vec<MountFailure> = names.iter().filter_map(failure).collect();
        failures.sort_by(|a, b| a.volume.cmp(&b.volume));
        if failures.is_empty() { Ok(()) } else { Err(PrepareError::Mount(failures)) }
    }

    fn shares(&self, grounds: &BTreeMap<String, VolumeRoot>) -> Vec<Share> {
        let shares = grounds.iter().flat_map(|(volume, ground)| {
            let access = self.access(volume, ground);
            let kinds = [(access.writable, false), (access.read_only, true)];
            kinds.into_iter().filter(|(is_wanted, _)| *is_wanted).map(move |(_, read_only)| Share {
                name: share::name(volume, access, read_only),
                path: ground.path.clone(),
                read_only,
                place: ground.place,
            })
        });
        shares.collect()
    }

    fn access(&self, volume: &str, ground: &VolumeRoot) -> ShareAccess {
        let mounts = self.mounts.iter().flat_map(|of| &of.mounts).filter(|mount| mount.name == volume);
        ShareAccess::of(mounts, ground.writable)
    }

    fn no_answer(&self) -> PrepareError {
        let problem = "the host's disk does not answer";
        let failure = |volume: &Volume| MountFailure { volume: volume.name.clone(), problem: problem.into() };
        PrepareError::Mount(self.volumes.iter().map(failure).collect())
    }
}

fn mounts_of(spec: &PodSpec) -> Vec<ContainerMounts> {
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    let mounts = containers.map(|container| ContainerMounts {
        container: container.name.clone(),
        mounts: container.volume_mounts.clone().unwrap_or_default(),
    });
    mounts.collect()
}
