//! What survives the agent: one directory per Pod UID, with one directory per VM that was made for it.
//!
//! ```text
//! agent.lock                    held by the one agent that owns this directory
//! pki/                          the agent's own keys and certificates, see `identity::store`
//! images.json                   which images the agent has pulled, see `image::record`
//! images.json.spoilt            one that could not be read: nobody knows which base VMs it has accounted for
//! images.sock                   where the agent can be asked to pull an image, see `image::door`
//! instance.json                 which agent that is, for others that use the same Node name
//! reserve                       space that is set aside, for what has to be written down when the disk is full
//! pods/<uid>/pod.json           the Pod as it was accepted
//! pods/<uid>/evicted.json       why it is evicted
//! pods/<uid>/<restart>/         one VM:
//!     spec.json                 what the shim is to run
//!     begun                     a shim has taken it up: it is never run again
//!     progress.json             how far the shim has come
//!     init.json                 what the containers before the main one do
//!     command.json              the command that was last started in the guest, and how to ask for its exit code
//!     notices.json, told.json   what the agent is to tell for the shim, and how much of it has been told
//!     wants-room                the shim has found no space, and waits until the agent has done what it can about it
//!     due.json                  the shim asks what a container runs whose turn has come
//!     delivery.json             what it runs, until the shim has taken it
//!     stop.json                 the agent asks the shim to stop the VM
//!     by-itself                 the container has ended before the shim had read any stop.json
//!     result.json               how its command ended, written while the VM still has to be stopped
//!     asked                     the shim is gone, and the guest was asked for what it knows; the rest is lost
//!     outcome.json              how it ended, written once: nothing of it runs any more
//!     cleaned                   the VM is deleted, nothing of it is left in tart
//!     shim.lock                 held while the shim lives
//!     shim.pid                  which process that is, for the one that has to be killed
//!     tart.lock                 held while any `tart` that the shim started lives
//! logs/<uid>/<container>/<restartCount>.log  its output; apart, so that a chatty guest does not wake the agent
//! logs/<uid>/<restart>.shim.log         what the shim says it does
//! volumes/<uid>/<volume>/       the files of a volume, see `volume::tree`, or those that the guest writes; apart for the same reason
//! ```

pub(crate) mod container_spec;
mod disk_reserve;
pub(crate) mod disk_space_request;
mod host_path_writers;
mod log_files;
mod pod_dir;
mod records;
mod restart_policy;
mod shim_spec;
mod tart_home_owner;
mod vm_run;

pub(crate) use crate::fs::file::FileError;
pub(crate) use crate::fs::lock::Lock;
pub(crate) use container_spec::{
    ContainerSpec, GuestBoot, GuestCommand, GuestDns, GuestIdentity, GuestUser, Hook, Missing, Mount, POD_IP,
    Termination,
};
pub(crate) use host_path_writers::{HostPathWriter, Promise};
pub(crate) use pod_dir::{BOOT_DIR_PREFIX, PodDir, boot_dir_name};
pub(crate) use records::{
    Delivery, Due, Ending, HostFault, InitStage, InitState, LastCommand, Notice, Outcome, PodRecord,
    Progress, Stage, StopCause, StopRequest,
};
pub(crate) use restart_policy::RestartPolicy;
pub(crate) use shim_spec::{HostPort, Protocol, ShimSpec};
pub(crate) use tart_home_owner::{TartHomeError, TartHomeOwner};
pub(crate) use vm_run::{Holder, UsedImage, VmRun, VmRunView};

use std::collections::{BTreeSet, HashSet};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::names::BaseName;
use crate::names::PodUid;

/// The agent's state directory.
#[derive(Debug, Clone)]
pub(crate) struct StateDir(PathBuf);

impl StateDir {
    /// The directory as it is, for those who only look.
    pub(crate) fn at(root: &Path) -> Self {
        Self(root.to_owned())
    }

    /// Whether an agent owns the directory now.
    pub(crate) fn is_owned(&self) -> Result<bool, FileError> {
        let path = self.0.join("agent.lock");
        crate::fs::lock::is_held(&path).map_err(|source| FileError::new("probe", &path, source))
    }

    /// Opens the directory, creating it when it is new.
    pub(crate) fn open(root: &Path) -> Result<Self, FileError> {
        let root = std::path::absolute(root).map_err(|source| FileError::new("open", root, source))?;
        crate::fs::file::create_dir(&root.join("pods"))?;
        crate::fs::file::create_dir(&root.join("logs"))?;
        crate::fs::file::create_dir(&root.join("volumes"))?;
        Ok(Self(root))
    }

    /// Makes this process the directory's only agent; `None` when another one is.
    pub(crate) fn lock(&self) -> Result<Option<Lock>, FileError> {
        let path = self.0.join("agent.lock");
        Lock::take(&path).map_err(|source| FileError::new("lock", &path, source))
    }

    /// The directory for keys and certificates.
    pub(crate) fn pki_path(&self) -> PathBuf {
        self.0.join("pki")
    }

    /// A random name that stays with this directory: a restarted agent is the same one, one on another Mac is not.
    pub(crate) fn instance(&self) -> Result<String, FileError> {
        let path = self.0.join("instance.json");
        if let Some(known) = crate::fs::file::read(&path)? {
            return Ok(known);
        }
        let mut bytes = [0; 16];
        let random = Path::new("/dev/urandom");
        File::open(random)
            .and_then(|mut source| source.read_exact(&mut bytes))
            .map_err(|source| FileError::new("read", random, source))?;
        let name = format!("{:032x}", u128::from_be_bytes(bytes));
        crate::fs::file::write(&path, &name)?;
        Ok(name)
    }

    /// Sets a little space aside, for what has to be written down when the disk is full, unless too little of it is free now.
    pub(crate) fn set_space_aside(&self) -> Result<(), FileError> {
        let free = crate::os::availability::volume(&self.0).map_or(0, |volume| volume.available);
        disk_reserve::set_aside(&self.0, free)
    }

    /// Where the agent can be asked to pull an image, see `image::door`.
    pub(crate) fn door_path(&self) -> PathBuf {
        self.0.join("images.sock")
    }

    /// The record of the images that the agent has pulled, see `image::ownership`.
    pub(crate) fn images_path(&self) -> PathBuf {
        self.0.join("images.json")
    }

    /// Where a record of images is that could not be read.
    pub(crate) fn spoilt_images_path(&self) -> PathBuf {
        self.0.join("images.json.spoilt")
    }

    /// The base VMs of all VMs that are planned and not deleted yet, whether or not they were cloned from them; `None` when that
    /// cannot be known of one.
    pub(crate) fn bases_in_use(&self) -> Result<Option<HashSet<BaseName>>, FileError> {
        let mut found = HashSet::new();
        for pod in self.pods()? {
            for attempt in pod.attempts()? {
                match attempt.image()? {
                    UsedImage::None => {}
                    UsedImage::Unknown => return Ok(None),
                    UsedImage::This(digest) => drop(found.insert(BaseName::of(&digest))),
                }
            }
        }
        Ok(Some(found))
    }

    /// The directory itself.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// What there is of Pods and their VMs.
    pub(crate) fn pods_path(&self) -> PathBuf {
        self.0.join("pods")
    }

    /// Every Pod that has left anything here.
    pub(crate) fn pods(&self) -> Result<Vec<PodDir>, FileError> {
        let mut names = crate::fs::file::entries(&self.pods_path())?;
        // Volumes and logs go before the record of their Pod, so this finds no others; but they may hold secrets, so it looks.
        names.extend(crate::fs::file::entries(&self.0.join("volumes"))?);
        names.extend(crate::fs::file::entries(&self.0.join("logs"))?);
        let uids: BTreeSet<PodUid> = names.iter().filter_map(|name| name.parse().ok()).collect();
        Ok(uids.into_iter().map(|uid| self.pod(uid)).collect())
    }

    /// The place of one Pod, whether or not there is anything in it.
    pub(crate) fn pod(&self, uid: PodUid) -> PodDir {
        let path = self.pods_path().join(uid.to_string());
        let logs = self.0.join("logs").join(uid.to_string());
        let volumes = self.0.join("volumes");
        PodDir { uid, path, logs, volumes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::Restart;

    #[test]
    fn an_instance_stays_with_its_directory() {
        let (first, second) = (
            tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap(),
            tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap(),
        );
        let instance = |dir: &tempfile::TempDir| StateDir::open(dir.path()).unwrap().instance().unwrap();
        assert_eq!(instance(&first), instance(&first));
        assert_ne!(instance(&first), instance(&second));
        assert_eq!(instance(&first).len(), 32);
    }

    #[test]
    fn an_image_is_in_use_from_its_plan_to_the_end_of_its_vm() {
        let dir =
            tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap();
        let state = StateDir::open(dir.path()).unwrap();
        let pod = state.pod("0b1c".parse().unwrap());
        let attempt = pod.attempt(Restart(0));
        let image = format!("registry.test/macos@sha256:{}", "a".repeat(64));
        let base = BaseName::of(&crate::names::ImageDigest::parse(&image).unwrap());
        let in_use = || state.bases_in_use().unwrap();
        assert_eq!(in_use(), Some(HashSet::new()));
        attempt.plan(&ShimSpec { image, ..ShimSpec::example(attempt.vm()) }).unwrap();
        assert_eq!(in_use(), Some(HashSet::from([base.clone()])));
        attempt.begin().unwrap();
        assert_eq!(in_use(), Some(HashSet::from([base])));
        // A power cut has spoilt the plan of a VM that may be there.
        std::fs::write(attempt.path().join("spec.json"), "{").unwrap();
        assert_eq!(in_use(), None);
        attempt.mark_cleaned().unwrap();
        assert_eq!(in_use(), Some(HashSet::new()));
    }

    #[test]
    fn one_agent_owns_the_directory() {
        let dir =
            tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap();
        let state = StateDir::open(dir.path()).unwrap();
        let held = state.lock().unwrap();
        assert!(held.is_some());
        assert!(state.lock().unwrap().is_none());
    }
}
