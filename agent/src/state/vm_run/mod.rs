//! One run of a VM for a Pod: the files and locks of its directory.

mod command_request;
mod locks;
mod view;

pub(crate) use locks::Holder;
pub(crate) use view::VmRunView;

use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::outcome::Outcome;
use super::records::{InitState, LastCommand, Notice, Progress, StopRequest};
use super::shim_spec::ShimSpec;
use super::{StateDir, disk_reserve};
use crate::fs::file::{self, FileError};
use crate::names::{ImageDigest, PodUid, Restart, VmName};

/// More than any run has.
const MAX_STEPS: usize = 16;
/// A guest that words the same notice differently each time must not fill the disk.
const MAX_NOTICES: usize = 50;

#[derive(Debug, Clone)]
pub(crate) struct VmRun {
    uid: PodUid,
    restart: Restart,
    path: PathBuf,
}

/// The image that a VM needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum UsedImage {
    /// There is no VM, and no shim is about to make one.
    None,
    This(ImageDigest),
    /// The spec is lost.
    Unknown,
}

/// The stage with all stages before it: one may be over before the agent reads the file.
#[derive(Debug, Serialize, Deserialize)]
struct ProgressFile {
    #[serde(flatten)]
    now: Option<Progress>,
    #[serde(default)]
    steps: Vec<Progress>,
}

impl VmRun {
    pub(super) fn new(uid: PodUid, restart: Restart, path: PathBuf) -> Self {
        Self { uid, restart, path }
    }

    /// Opens the directory of a shim.
    pub(crate) fn open(path: &Path) -> Result<(Self, ShimSpec), FileError> {
        let spec_path = path.join("spec.json");
        let missing = || FileError::new("read", &spec_path, io::ErrorKind::NotFound.into());
        let spec: ShimSpec = file::read(&spec_path)?.ok_or_else(missing)?;
        Ok((Self::new(spec.vm.uid().clone(), spec.vm.restart(), path.to_owned()), spec))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn restart(&self) -> Restart {
        self.restart
    }

    pub(crate) fn vm(&self) -> VmName {
        VmName::new(self.uid.clone(), self.restart)
    }

    /// Writes the spec.
    pub(crate) fn plan(&self, spec: &ShimSpec) -> Result<(), FileError> {
        file::create_dir(&self.path)?;
        file::write(&self.path.join("spec.json"), spec)
    }

    /// The image that the VM was made from, or will be, until the VM is deleted.
    pub(crate) fn image(&self) -> Result<UsedImage, FileError> {
        // The spec before the mark: a VM that is deleted after the spec was read needs no image.
        let spec: Option<ShimSpec> = self.read("spec.json")?;
        if self.is_cleaned() {
            return Ok(UsedImage::None);
        }
        Ok(match spec {
            Some(spec) => ImageDigest::parse(&spec.image).map_or(UsedImage::Unknown, UsedImage::This),
            // The agent died before it had planned anything.
            None if !self.has_begun()? => UsedImage::None,
            None => UsedImage::Unknown,
        })
    }

    /// The spec, unless the run is over.
    pub(crate) fn live_spec(&self) -> Result<Option<ShimSpec>, FileError> {
        let spec = self.read("spec.json")?;
        let is_over = || ["outcome.json", "cleaned"].iter().any(|name| self.path.join(name).exists());
        Ok(spec.filter(|_: &ShimSpec| !is_over()))
    }

    /// Whether the run is over, or removed.
    pub(crate) fn is_over(&self) -> bool {
        self.path.join("outcome.json").exists() || !self.path.exists()
    }

    /// The init containers, as the shim has recorded them; empty before the first one starts.
    pub(crate) fn init_states(&self) -> Result<Vec<InitState>, FileError> {
        Ok(self.read("init.json")?.unwrap_or_default())
    }

    /// Whether the guest has an address.
    pub(crate) fn is_up(&self) -> Result<bool, FileError> {
        let progress: Option<Progress> = self.read("progress.json")?;
        Ok(progress.is_some_and(|progress| progress.stage.address().is_some()))
    }

    /// The addresses of this host's other live VMs.
    pub(crate) fn addresses_of_others(&self) -> Result<Vec<IpAddr>, FileError> {
        let Some(state) = self.state() else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for pod in state.pods()? {
            for other in pod.runs()?.iter().filter(|other| other.path != self.path) {
                let progress: Option<Progress> = other.read("progress.json")?;
                if other.holder()? != Holder::None {
                    found.extend(progress.and_then(|progress| progress.stage.address()));
                }
            }
        }
        Ok(found)
    }

    /// Whether a shim has ever started the run.
    pub(crate) fn has_begun(&self) -> Result<bool, FileError> {
        let exists = |name: &str| {
            let path = self.path.join(name);
            path.try_exists().map_err(|source| FileError::new("look for", &path, source))
        };
        Ok(exists("begun")? || exists("outcome.json")?)
    }

    /// Records that a shim has started the run, which is then never started again.
    pub(crate) fn mark_begun(&self) -> Result<(), FileError> {
        self.touch("begun")
    }

    /// The same for a run whose directory may be lost.
    pub(crate) fn create_begun(&self) -> Result<(), FileError> {
        file::create_dir(&self.path)?;
        self.mark_begun()
    }

    /// Returns when [`mark_begun`](Self::mark_begun) survives a power cut.
    pub(crate) fn sync_begun(&self) -> Result<(), FileError> {
        file::sync(&self.path.join("begun"))?;
        // The directory may be as new as the file.
        file::sync(&self.path)?;
        self.path.parent().map_or(Ok(()), file::sync)
    }

    pub(crate) fn record_progress(&self, progress: &Progress) -> Result<(), FileError> {
        let mut steps = self.steps()?;
        if steps.len() < MAX_STEPS {
            steps.push(progress.clone());
        }
        let (path, all) =
            (self.path.join("progress.json"), ProgressFile { now: Some(progress.clone()), steps });
        disk_reserve::repeatedly(&path, || file::write(&path, &all))
    }

    /// All stages that the shim has reached, in order.
    pub(crate) fn steps(&self) -> Result<Vec<Progress>, FileError> {
        Ok(self.read::<ProgressFile>("progress.json")?.map(|file| file.steps).unwrap_or_default())
    }

    pub(crate) fn record_init(&self, states: &[InitState]) -> Result<(), FileError> {
        let path = self.path.join("init.json");
        disk_reserve::repeatedly(&path, || file::write(&path, &states))
    }

    /// Records a command before the shim starts it.
    pub(crate) fn record_command(&self, command: &LastCommand) -> Result<(), FileError> {
        file::write(&self.path.join("last-command.json"), command)
    }

    pub(crate) fn last_command(&self) -> Result<Option<LastCommand>, FileError> {
        self.read("last-command.json")
    }

    /// Leaves a notice for the agent; false when the agent has it already, or when there are too many.
    pub(crate) fn record_notice(&self, notice: &Notice) -> Result<bool, FileError> {
        let mut all: Vec<Notice> = self.read("notices.json")?.unwrap_or_default();
        if all.contains(notice) || all.len() >= MAX_NOTICES {
            return Ok(false);
        }
        all.push(notice.clone());
        file::write(&self.path.join("notices.json"), &all)?;
        Ok(true)
    }

    pub(crate) fn notices_reported(&self) -> Result<usize, FileError> {
        Ok(self.read("notices-reported.json")?.unwrap_or_default())
    }

    pub(crate) fn mark_notices_reported(&self, count: usize) -> Result<(), FileError> {
        file::write(&self.path.join("notices-reported.json"), &count)
    }

    pub(crate) fn request_disk_space(&self) -> Result<(), FileError> {
        let path = self.path.join("disk-space-request");
        disk_reserve::repeatedly(&path, || create(&path))
    }

    /// Whether the agent has not answered the request yet.
    pub(crate) fn wants_disk_space(&self) -> bool {
        self.path.join("disk-space-request").exists()
    }

    /// Answers or withdraws the request. Removing a file needs no disk space.
    pub(crate) fn remove_disk_space_request(&self) -> Result<(), FileError> {
        file::remove(&self.path.join("disk-space-request"))
    }

    /// Asks the shim to stop the VM; an earlier deadline replaces a later one.
    pub(crate) fn request_stop(&self, request: StopRequest) -> Result<(), FileError> {
        let path = self.path.join("stop.json");
        disk_reserve::urgently(&path, || file::write(&path, &request))
    }

    pub(crate) fn stop_request(&self) -> Result<Option<StopRequest>, FileError> {
        Ok(self.read("stop.json")?.map(StopRequest::by_own_clock))
    }

    /// Records the outcome of the container before the VM is gone, so that it survives the shim.
    pub(crate) fn record_result(&self, outcome: &Outcome) -> Result<(), FileError> {
        let path = self.path.join("result.json");
        disk_reserve::urgently(&path, || file::write_durably(&path, outcome))
    }

    /// Records that the container ended before the shim had read any stop request.
    pub(crate) fn mark_ended_before_stop(&self) -> Result<(), FileError> {
        self.touch("ended-before-stop")
    }

    /// Records that the agent has asked the guest how the container ended.
    pub(crate) fn mark_guest_asked(&self) -> Result<(), FileError> {
        self.touch("guest-asked")
    }

    /// Records the outcome of the run. It is the last record: nothing of the run may live any more.
    pub(crate) fn record_outcome(&self, outcome: &Outcome) -> Result<(), FileError> {
        let path = self.path.join("outcome.json");
        disk_reserve::urgently(&path, || file::write_durably(&path, outcome))
    }

    /// Removes what may be secret in the files of a run that is over, also in spoilt and half-written ones.
    pub(crate) fn remove_secrets(&self) -> Result<(), FileError> {
        self.remove_command_response()?;
        let path = self.path.join("spec.json");
        file::remove_half_written(&path)?;
        let Some(spec) = file::read::<ShimSpec>(&path)? else { return file::remove(&path) };
        let without = spec.without_secrets();
        if without == spec { Ok(()) } else { file::write(&path, &without) }
    }

    /// Records that tart has deleted the VM.
    pub(crate) fn mark_cleaned(&self) -> Result<(), FileError> {
        self.touch("cleaned")
    }

    pub(crate) fn is_cleaned(&self) -> bool {
        self.path.join("cleaned").exists()
    }

    pub(super) fn remove(&self) -> Result<(), FileError> {
        file::remove_dir(&self.path)
    }

    /// The state directory, from `<state>/pods/<uid>/<restart>`.
    pub(super) fn state(&self) -> Option<StateDir> {
        self.path.ancestors().nth(3).map(StateDir::at)
    }

    fn read<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, FileError> {
        file::read(&self.path.join(name))
    }

    fn touch(&self, name: &str) -> Result<(), FileError> {
        let path = self.path.join(name);
        disk_reserve::urgently(&path, || create(&path))
    }
}

fn create(path: &Path) -> Result<(), FileError> {
    File::create(path).map(drop).map_err(|source| FileError::new("create", path, source))
}

#[cfg(test)]
impl VmRun {
    /// The first run of a Pod in the state directory at `state`, not planned yet.
    pub(crate) fn example(state: &Path) -> Self {
        StateDir::open(state).unwrap().pod("0b1c".parse().unwrap()).run(Restart(0))
    }

    /// The same with a spec.
    pub(crate) fn planned_example(state: &Path) -> Self {
        let run = Self::example(state);
        run.plan(&ShimSpec::example(run.vm())).unwrap();
        run
    }
}

#[cfg(test)]
mod tests;
