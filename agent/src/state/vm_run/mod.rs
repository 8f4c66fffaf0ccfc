//! One VM of a Pod, as the files and locks of its directory tell it.

mod late_command;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::StateDir;
use super::disk_reserve;
use super::records::{Due, InitState, LastCommand, Notice, Outcome, Progress, Stage, StopRequest};
use super::shim_spec::ShimSpec;
use crate::fs::file::{self, FileError};
use crate::fs::lock::{self, Lock};
use crate::names::ImageDigest;
use crate::names::PodUid;
use crate::names::{Restart, VmName};

/// More than the start of any VM has.
const MOST_STEPS: usize = 16;
/// More than anybody would read.
const MOST_NOTICES: usize = 50;

/// The directory of one VM.
#[derive(Debug, Clone)]
pub(crate) struct VmRun {
    uid: PodUid,
    restart: Restart,
    path: PathBuf,
}

/// Everything that is known of a VM, read in an order that makes it consistent.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is a file that is there or not")]
pub(crate) struct VmRunView {
    /// Which of the Pod's VMs this is.
    pub(crate) restart: Restart,
    /// Who is at work on it.
    pub(crate) holder: Holder,
    /// What was planned; absent when the agent died before it had written it.
    pub(crate) spec: Option<ShimSpec>,
    /// Whether a shim has ever taken it up.
    pub(crate) begun: bool,
    /// How far the shim has come.
    pub(crate) progress: Option<Progress>,
    /// The containers that run before the main one.
    pub(crate) init: Vec<InitState>,
    /// What a person should be told of.
    pub(crate) notices: Vec<Notice>,
    /// Whether the shim waits for room on the disk.
    pub(crate) wants_room: bool,
    /// The container that the shim has no command for yet.
    pub(crate) due: Option<Due>,
    /// What the shim was asked for.
    pub(crate) stop: Option<StopRequest>,
    /// How its command ended, when that is known before the VM is gone.
    pub(crate) result: Option<Outcome>,
    /// Whether its container has ended before the shim had heard of anybody who wants it to.
    pub(crate) by_itself: bool,
    /// Whether the guest was asked what it knows of an end that the shim did not live to write down.
    pub(crate) asked: bool,
    /// How it ended; nothing of it runs any more.
    pub(crate) outcome: Option<Outcome>,
    /// Whether the VM is known to be deleted.
    pub(crate) cleaned: bool,
}

impl VmRunView {
    /// How often in a row the container had failed before this VM; not at all where the plan is lost.
    pub(crate) fn crashes(&self) -> u32 {
        self.spec.as_ref().map_or(0, |spec| spec.crashes)
    }

    /// What is known of the containers before the main one, from this VM or from those before it.
    pub(crate) fn init_states(&self) -> &[InitState] {
        match &self.spec {
            Some(spec) if self.init.is_empty() => &spec.init_before,
            _ => &self.init,
        }
    }

    /// What its container was stopped for, unless it was over by then.
    pub(crate) fn heeded_stop(&self) -> Option<StopRequest> {
        self.stop.filter(|_| !self.by_itself)
    }

    /// Since when its container runs, or ran; absent when it never did.
    pub(crate) fn running_since(&self) -> Option<Timestamp> {
        let running = |progress: &&Progress| matches!(progress.stage, Stage::Running { .. });
        self.progress.as_ref().filter(running).map(|progress| progress.since)
    }
}

/// Who is at work on a VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Holder {
    /// Its shim lives.
    Shim,
    /// Its shim is gone, but a `tart` that the shim had started is not.
    Tart,
    /// Neither.
    Nobody,
}

/// The image that a VM needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum UsedImage {
    /// None: there is no VM, and nobody is about to make one.
    None,
    /// This one.
    This(ImageDigest),
    /// One that is not known any more.
    Unknown,
}

/// How far a shim has come, with the steps before: each takes its time, and one may be over before anybody looks.
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

    /// Opens the directory that a shim was told to serve.
    pub(crate) fn open(path: &Path) -> Result<(Self, ShimSpec), FileError> {
        let spec_path = path.join("spec.json");
        let missing = || FileError::new("read", &spec_path, io::ErrorKind::NotFound.into());
        let spec: ShimSpec = file::read(&spec_path)?.ok_or_else(missing)?;
        Ok((Self::new(spec.vm.uid().clone(), spec.vm.restart(), path.to_owned()), spec))
    }

    /// The directory itself.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Which of the Pod's VMs this is.
    pub(crate) fn restart(&self) -> Restart {
        self.restart
    }

    /// The VM's name.
    pub(crate) fn vm(&self) -> VmName {
        VmName::new(self.uid.clone(), self.restart)
    }

    /// Writes down what is to be run, before anything is.
    pub(crate) fn plan(&self, spec: &ShimSpec) -> Result<(), FileError> {
        file::create_dir(&self.path)?;
        file::write(&self.path.join("spec.json"), spec)
    }

    /// What is known of the VM now.
    pub(crate) fn view(&self) -> Result<VmRunView, FileError> {
        // The order matters: a shim writes its outcome before it lets go of its lock, so a lock that is
        // free makes the outcome, or its absence, final.
        let holder = self.holder()?;
        Ok(VmRunView {
            restart: self.restart,
            holder,
            spec: self.read("spec.json")?,
            begun: self.has_begun()?,
            progress: self.read("progress.json")?,
            init: self.read("init.json")?.unwrap_or_default(),
            notices: self.read("notices.json")?.unwrap_or_default(),
            wants_room: self.wants_room(),
            due: self.due()?,
            stop: self.read("stop.json")?,
            result: self.read("result.json")?,
            by_itself: self.path.join("by-itself").exists(),
            asked: self.path.join("asked").exists(),
            // One that is spoilt counts as none: it is lost how the VM ended, and that is written down in its place.
            outcome: self.read("outcome.json")?,
            cleaned: self.is_cleaned(),
        })
    }

    /// The image that the VM was made from, or will be, until the VM is deleted.
    pub(crate) fn image(&self) -> Result<UsedImage, FileError> {
        // The plan first: a VM that is found to be deleted after that needs nothing, whatever was planned.
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

    /// What was planned, unless the VM is over.
    pub(crate) fn live_spec(&self) -> Result<Option<ShimSpec>, FileError> {
        let spec = self.read("spec.json")?;
        let is_over = || ["outcome.json", "cleaned"].iter().any(|name| self.path.join(name).exists());
        Ok(spec.filter(|_: &ShimSpec| !is_over()))
    }

    /// Whether the guest has come up.
    pub(crate) fn is_up(&self) -> Result<bool, FileError> {
        let progress: Option<Progress> = self.read("progress.json")?;
        Ok(progress.is_some_and(|progress| progress.stage.address().is_some()))
    }

    /// The addresses that other live VMs of this host have.
    pub(crate) fn addresses_of_others(&self) -> Result<Vec<IpAddr>, FileError> {
        // <state>/pods/<uid>/<restart>
        let Some(state) = self.path.ancestors().nth(3) else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for pod in StateDir::at(state).pods()? {
            for other in pod.attempts()?.iter().filter(|other| other.path != self.path) {
                let progress: Option<Progress> = other.read("progress.json")?;
                if other.holder()? != Holder::Nobody {
                    found.extend(progress.and_then(|progress| progress.stage.address()));
                }
            }
        }
        Ok(found)
    }

    /// Who is at work on the VM.
    pub(crate) fn holder(&self) -> Result<Holder, FileError> {
        Ok(if self.is_held("shim.lock")? {
            Holder::Shim
        } else if self.is_held("tart.lock")? {
            Holder::Tart
        } else {
            Holder::Nobody
        })
    }

    /// Becomes the shim of this VM with the lock that the agent left as `file`; `None` when the VM has had one.
    pub(crate) fn inherit_shim_lock(&self, file: File) -> Result<Option<Lock>, FileError> {
        let path = self.path.join("shim.lock");
        let lock = Lock::inherit(file, &path).map_err(|source| FileError::new("inherit", &path, source))?;
        Ok(lock.filter(|_| !self.has_begun().unwrap_or(true)))
    }

    /// Whether a shim has ever taken the VM up.
    pub(crate) fn has_begun(&self) -> Result<bool, FileError> {
        let exists = |name: &str| {
            let path = self.path.join(name);
            path.try_exists().map_err(|source| FileError::new("look for", &path, source))
        };
        Ok(exists("begun")? || exists("outcome.json")?)
    }

    /// Keeps every shim away from this VM for as long as the lock is held; `None` when one is there.
    pub(crate) fn seal(&self) -> Result<Option<Lock>, FileError> {
        self.take("shim.lock")
    }

    /// Notes which process the shim is.
    pub(crate) fn sign(&self, pid: u32) -> Result<(), FileError> {
        let path = self.path.join("shim.pid");
        disk_reserve::repeatedly(&path, || file::write(&path, &pid))
    }

    /// The process that has signed as the shim. It may be long gone, and another one have its number.
    pub(crate) fn signed(&self) -> Result<Option<Pid>, FileError> {
        Ok(self.read::<i32>("shim.pid")?.filter(|&pid| pid > 1).map(Pid::from_raw))
    }

    /// Kills the shim, if it lives: the process that has signed, while the lock that it holds is held. Says whether one has.
    pub(crate) fn kill_shim(&self) -> Result<bool, FileError> {
        let Some(pid) = self.signed()? else { return Ok(false) };
        if self.is_held("shim.lock")? {
            // It fails only when the shim is gone, which is what we want.
            let _ = kill(pid, Signal::SIGKILL);
        }
        Ok(true)
    }

    /// Takes the lock that every `tart` which works on this VM shares; `None` when an old one still does.
    pub(crate) fn take_tart_lock(&self) -> Result<Option<Lock>, FileError> {
        self.take("tart.lock")
    }

    /// Records that the VM is taken up: from here on it is never run again.
    pub(crate) fn begin(&self) -> Result<(), FileError> {
        self.touch("begun")
    }

    /// Records the same of a VM of which nothing else may be known.
    pub(crate) fn begin_again(&self) -> Result<(), FileError> {
        file::create_dir(&self.path)?;
        self.begin()
    }

    /// Returns when not even a power cut can undo [`begin`](Self::begin).
    pub(crate) fn sync_begun(&self) -> Result<(), FileError> {
        file::sync(&self.path.join("begun"))?;
        // The directory itself is as new as what is in it.
        file::sync(&self.path)?;
        self.path.parent().map_or(Ok(()), file::sync)
    }

    /// Records how far the shim has come.
    pub(crate) fn progress(&self, progress: &Progress) -> Result<(), FileError> {
        let mut steps = self.steps()?;
        if steps.len() < MOST_STEPS {
            steps.push(progress.clone());
        }
        let (path, all) =
            (self.path.join("progress.json"), ProgressFile { now: Some(progress.clone()), steps });
        disk_reserve::repeatedly(&path, || file::write(&path, &all))
    }

    /// How the shim has come there: all its steps, in order.
    pub(crate) fn steps(&self) -> Result<Vec<Progress>, FileError> {
        Ok(self.read::<ProgressFile>("progress.json")?.map(|file| file.steps).unwrap_or_default())
    }

    /// Records what the containers before the main one do.
    pub(crate) fn record_init(&self, states: &[InitState]) -> Result<(), FileError> {
        let path = self.path.join("init.json");
        disk_reserve::repeatedly(&path, || file::write(&path, &states))
    }

    /// Records which command is about to start in the guest.
    pub(crate) fn record_command(&self, command: &LastCommand) -> Result<(), FileError> {
        file::write(&self.path.join("command.json"), command)
    }

    /// The command that was last started in the guest, or was about to be.
    pub(crate) fn last_command(&self) -> Result<Option<LastCommand>, FileError> {
        self.read("command.json")
    }

    /// Leaves something for the agent to tell, and says whether it is new. What is tried again for days is told once, and a guest that
    /// finds other words each time is not told of for ever: both would fill the disk.
    pub(crate) fn notice(&self, notice: &Notice) -> Result<bool, FileError> {
        let mut all: Vec<Notice> = self.read("notices.json")?.unwrap_or_default();
        if all.contains(notice) || all.len() >= MOST_NOTICES {
            return Ok(false);
        }
        all.push(notice.clone());
        file::write(&self.path.join("notices.json"), &all)?;
        Ok(true)
    }

    /// Asks the agent to make room on the disk.
    pub(crate) fn ask_for_room(&self) -> Result<(), FileError> {
        let path = self.path.join("wants-room");
        disk_reserve::repeatedly(&path, || create(&path))
    }

    /// Whether the agent has not done yet what it can about room.
    pub(crate) fn wants_room(&self) -> bool {
        self.path.join("wants-room").exists()
    }

    /// Tells the shim that there is as much room as there can be. To remove a file takes none.
    pub(crate) fn tell_room_is_made(&self) -> Result<(), FileError> {
        file::remove(&self.path.join("wants-room"))
    }

    /// How many notices have been told.
    pub(crate) fn told(&self) -> Result<usize, FileError> {
        Ok(self.read("told.json")?.unwrap_or_default())
    }

    /// Records that this many notices have been told.
    pub(crate) fn mark_told(&self, count: usize) -> Result<(), FileError> {
        file::write(&self.path.join("told.json"), &count)
    }

    /// Asks the shim to stop the VM; an earlier deadline replaces a later one.
    pub(crate) fn request_stop(&self, request: StopRequest) -> Result<(), FileError> {
        let path = self.path.join("stop.json");
        disk_reserve::urgently(&path, || file::write(&path, &request))
    }

    /// What the shim was asked for.
    pub(crate) fn stop_request(&self) -> Result<Option<StopRequest>, FileError> {
        self.read("stop.json")
    }

    /// Records how the container ended, before the VM is gone: from here on the shim may die without a loss.
    pub(crate) fn result(&self, outcome: &Outcome) -> Result<(), FileError> {
        let path = self.path.join("result.json");
        disk_reserve::urgently(&path, || file::write_durably(&path, outcome))
    }

    /// Records that nobody was heeded who may have asked for the end of the container.
    pub(crate) fn mark_by_itself(&self) -> Result<(), FileError> {
        self.touch("by-itself")
    }

    /// Records that the guest has told all that it knows.
    pub(crate) fn mark_asked(&self) -> Result<(), FileError> {
        self.touch("asked")
    }

    /// Records how the VM ended. It is the last thing that is done for it: nothing of it may run any more.
    pub(crate) fn finish(&self, outcome: &Outcome) -> Result<(), FileError> {
        let path = self.path.join("outcome.json");
        disk_reserve::urgently(&path, || file::write_durably(&path, outcome))
    }

    /// Forgets what may be secret in the plan of a VM that is over, also in one that is spoilt or was never finished.
    pub(crate) fn scrub(&self) -> Result<(), FileError> {
        self.remove_delivery()?;
        let path = self.path.join("spec.json");
        file::remove_half_written(&path)?;
        let Some(spec) = file::read::<ShimSpec>(&path)? else { return file::remove(&path) };
        let scrubbed = spec.without_secrets();
        if scrubbed == spec { Ok(()) } else { file::write(&path, &scrubbed) }
    }

    /// Records that the VM is deleted.
    pub(crate) fn mark_cleaned(&self) -> Result<(), FileError> {
        self.touch("cleaned")
    }

    /// Whether the VM is known to be deleted.
    pub(crate) fn is_cleaned(&self) -> bool {
        self.path.join("cleaned").exists()
    }

    /// Forgets the VM.
    pub(crate) fn remove(&self) -> Result<(), FileError> {
        file::remove_dir(&self.path)
    }

    fn read<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, FileError> {
        file::read(&self.path.join(name))
    }

    fn touch(&self, name: &str) -> Result<(), FileError> {
        let path = self.path.join(name);
        disk_reserve::urgently(&path, || create(&path))
    }

    fn is_held(&self, name: &str) -> Result<bool, FileError> {
        let path = self.path.join(name);
        lock::is_held(&path).map_err(|source| FileError::new("probe", &path, source))
    }

    fn take(&self, name: &str) -> Result<Option<Lock>, FileError> {
        let path = self.path.join(name);
        Lock::take(&path).map_err(|source| FileError::new("lock", &path, source))
    }
}

fn create(path: &Path) -> Result<(), FileError> {
    File::create(path).map(drop).map_err(|source| FileError::new("create", path, source))
}
