//! What survives the agent: one directory per Pod UID, with one directory per run of a VM for it.
//!
//! ```text
//! agent.lock                    held by the one agent that owns this directory
//! pki/                          the agent's own keys and certificates, see `identity::store`
//! images.json                   which images the agent has pulled, see `image::ownership`
//! images.json.spoilt            an images.json that could not be read: the base VMs in it are unknown
//! images.sock                   where `tart-kubelet images pull` asks the agent for a pull, see `image::pull_socket`
//! instance.json                 a random name of this agent, to tell it from another agent with the same Node name
//! node.json                     the Node's name: it stays when macOS renames the Mac
//! lease.json                    the Node whose Lease an agent of this directory last had, and the instance of that agent
//! pulse                         an empty file that the agent creates again and again, to see whether the disk answers
//! tart-home.json                the tart home that has the VMs of these Pods
//! reserve                       disk space for records that must be written when the disk is full
//! pods/<uid>/pod.json           the Pod as the agent accepted it
//! pods/<uid>/manifest.json      the Pod as the API server last showed it, for an agent that starts while the API server is away
//! pods/<uid>/evicted.json       why the agent evicts the Pod
//! pods/<uid>/<restart>/         one run of a VM:
//!     spec.json                 what the shim is to run
//!     begun                     a shim has started the run: it is never started again
//!     progress.json             the stages that the shim has reached
//!     init.json                 the states of the init containers
//!     last-command.json         the command that the shim last started in the guest, and how to ask for its exit code
//!     attach.sock               where the agent attaches clients to the command, see `shim::attach`
//!     notices.json              Events that the agent is to write for the shim
//!     notices-reported.json     how many of them the agent has written
//!     disk-space-request        the shim has found no disk space; the agent removes the file when it has freed what it can
//!     command-request.json      the shim asks the agent for a container's command
//!     command-response.json     the agent's answer, until the shim has read it
//!     stop.json                 the agent asks the shim to stop the VM
//!     ended-before-stop         the container ended before the shim had read any stop.json
//!     result.json               the outcome of the container, while the shim still has to stop the VM
//!     guest-asked               the shim is gone, and the agent has asked the guest how the container ended
//!     outcome.json              the outcome of the run, written once: nothing of it runs any more
//!     cleaned                   tart has deleted the VM
//!     shim.lock                 held while the shim lives
//!     shim.pid                  the shim's process ID, for the agent to kill it
//!     tart.lock                 held while any `tart` that the shim started lives
//! logs/<uid>/<container>/<restartCount>.log  the container's output; not below pods/, whose changes wake the agent
//! logs/<uid>/<restart>.shim.log              the shim's own log
//! volumes/<uid>/<volume>/       a volume's files, see `volume`; not below pods/ for the same reason
//! ```

pub(crate) mod container_spec;
mod disk_reserve;
pub(crate) mod disk_space_request;
mod host_path_writers;
mod log_files;
mod newer_release;
mod outcome;
mod pod_dir;
mod records;
mod restart_policy;
pub(crate) mod segment;
mod shim_spec;
mod tart_home;
mod vm_memory;
mod vm_run;

pub(crate) use crate::fs::file::FileError;
pub(crate) use crate::fs::lock::Lock;
pub(crate) use container_spec::{
    ContainerSpec, GuestBoot, GuestCommand, GuestDns, GuestIdentity, GuestUser, Hook, Missing, Mount, POD_IP,
    Termination,
};
pub(crate) use host_path_writers::{HostPathWriter, PlannedShare};
pub(crate) use outcome::{EndReason, Ending, HostFault, KILLED, NotStarted, NotStartedReason, Outcome};
pub(crate) use pod_dir::{BOOT_DIR_PREFIX, PodDir, boot_dir_name};
pub(crate) use records::{
    CommandRequest, CommandResponse, InitStage, InitState, InitVm, LastCommand, LeaseRecord, Notice,
    PodRecord, Progress, Stage, StopCause, StopRequest,
};
pub(crate) use restart_policy::RestartPolicy;
pub(crate) use segment::Segment;
pub(crate) use shim_spec::{HostPort, Protocol, ShimSpec};
pub(crate) use tart_home::{TartHomeError, TartHomeOwner, TartHomeRecordError};
pub(crate) use vm_run::{Holder, UsedImage, VmRun, VmRunView};

use std::collections::{BTreeSet, HashSet};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::names::{BaseName, NodeName, PodUid};

#[derive(Debug, Clone)]
pub(crate) struct StateDir(PathBuf);

impl StateDir {
    /// The directory without creating anything, for commands that only read.
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
        crate::fs::file::create_private_dir(&root)?;
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

    pub(crate) fn pki_path(&self) -> PathBuf {
        self.0.join("pki")
    }

    /// A random name that stays with this directory: an agent keeps it over restarts, an agent on another Mac has another one.
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

    /// The name of the Node that this directory is for; `None` in a new directory, or when the file is spoilt.
    pub(crate) fn node_name(&self) -> Result<Option<NodeName>, FileError> {
        let name: Option<String> = crate::fs::file::read(&self.node_path())?;
        Ok(name.and_then(|name| name.parse().ok()))
    }

    /// Keeps the name of the Node for the agents that follow.
    pub(crate) fn keep_node_name(&self, name: &NodeName) -> Result<(), FileError> {
        if self.node_name()?.as_ref() == Some(name) {
            return Ok(());
        }
        crate::fs::file::write(&self.node_path(), &name.to_string())
    }

    fn node_path(&self) -> PathBuf {
        self.0.join("node.json")
    }

    /// Which agent of this directory last had its Node's Lease; `None` if none had it, or another agent has taken it.
    pub(crate) fn lease(&self) -> Result<Option<LeaseRecord>, FileError> {
        crate::fs::file::read(&self.lease_path())
    }

    /// Records which agent has the Node's Lease, for the agents that follow.
    pub(crate) fn keep_lease(&self, owner: &LeaseRecord) -> Result<(), FileError> {
        if self.lease()?.as_ref() == Some(owner) {
            return Ok(());
        }
        crate::fs::file::write(&self.lease_path(), owner)
    }

    /// Records that another agent has the Node's Lease.
    pub(crate) fn forget_lease(&self) -> Result<(), FileError> {
        crate::fs::file::remove(&self.lease_path())
    }

    fn lease_path(&self) -> PathBuf {
        self.0.join("lease.json")
    }

    pub(crate) fn pulse_path(&self) -> PathBuf {
        self.0.join("pulse")
    }

    /// Reserves disk space for records that must be written when the disk is full, unless too little is free now.
    pub(crate) fn reserve_disk_space(&self) -> Result<(), FileError> {
        let free = crate::os::availability::volume(&self.0).map_or(0, |volume| volume.available);
        disk_reserve::create(&self.0, free)
    }

    pub(crate) fn pull_socket_path(&self) -> PathBuf {
        self.0.join("images.sock")
    }

    pub(crate) fn images_path(&self) -> PathBuf {
        self.0.join("images.json")
    }

    pub(crate) fn spoilt_images_path(&self) -> PathBuf {
        self.0.join("images.json.spoilt")
    }

    /// The Pod whose VM has a TCP port of the host, at whatever address.
    pub(crate) fn holder_of_port(&self, port: u16) -> Result<Option<String>, FileError> {
        for pod in self.pods()? {
            for run in pod.runs()? {
                let ports = run.live_spec()?.map(|spec| spec.host_ports).unwrap_or_default();
                if ports.iter().any(|held| held.protocol == Protocol::Tcp && held.port == port) {
                    let record = pod.record()?;
                    return Ok(Some(
                        record.map_or_else(|| pod.uid().to_string(), |record| record.pod.to_string()),
                    ));
                }
            }
        }
        Ok(None)
    }

    /// The base VMs of all VMs that are planned and not deleted, whether or not they were cloned from them; `None` when one of them is
    /// unknown.
    pub(crate) fn bases_in_use(&self) -> Result<Option<HashSet<BaseName>>, FileError> {
        let mut found = HashSet::new();
        for pod in self.pods()? {
            for run in pod.runs()? {
                match run.image()? {
                    UsedImage::None => {}
                    UsedImage::Unknown => return Ok(None),
                    UsedImage::This(digest) => drop(found.insert(BaseName::of(&digest))),
                }
            }
        }
        Ok(Some(found))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn pods_path(&self) -> PathBuf {
        self.0.join("pods")
    }

    /// Every Pod that has left anything here.
    pub(crate) fn pods(&self) -> Result<Vec<PodDir>, FileError> {
        let mut names = crate::fs::file::entries(&self.pods_path())?;
        // `PodDir::remove` removes volumes and logs before the record, so these add no Pod, unless a user deleted the record. They may
        // hold secrets.
        names.extend(crate::fs::file::entries(&self.0.join("volumes"))?);
        names.extend(crate::fs::file::entries(&self.0.join("logs"))?);
        let uids: BTreeSet<PodUid> = names.iter().filter_map(|name| name.parse().ok()).collect();
        Ok(uids.into_iter().map(|uid| self.pod(uid)).collect())
    }

    /// The directories of one Pod, whether or not they exist.
    pub(crate) fn pod(&self, uid: PodUid) -> PodDir {
        let path = self.pods_path().join(uid.to_string());
        let logs = self.0.join("logs").join(uid.to_string());
        let volumes = self.0.join("volumes");
        PodDir { uid, path, logs, volumes }
    }
}

#[cfg(test)]
mod golden;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::Restart;
    use crate::testing::dir;

    #[test]
    fn a_state_directory_keeps_its_instance_name() {
        let (first, second) = (dir(), dir());
        let instance = |dir: &tempfile::TempDir| StateDir::open(dir.path()).unwrap().instance().unwrap();
        assert_eq!(instance(&first), instance(&first));
        assert_ne!(instance(&first), instance(&second));
        assert_eq!(instance(&first).len(), 32);
    }

    #[test]
    fn a_state_directory_keeps_the_name_of_its_node() {
        let dir = dir();
        let state = StateDir::open(dir.path()).unwrap();
        assert_eq!(state.node_name().unwrap(), None);
        for name in ["mac-1", "mac-1", "mac-2"] {
            state.keep_node_name(&name.parse().unwrap()).unwrap();
            assert_eq!(state.node_name().unwrap().map(|name| name.to_string()).as_deref(), Some(name));
        }
    }

    #[test]
    fn a_state_directory_knows_which_agent_last_had_the_lease() {
        let dir = dir();
        let state = StateDir::open(dir.path()).unwrap();
        let owner = |instance: &str| LeaseRecord { node: "mac-1".into(), instance: instance.into() };
        assert_eq!(state.lease().unwrap(), None);
        for instance in ["a", "a", "b"] {
            state.keep_lease(&owner(instance)).unwrap();
            assert_eq!(state.lease().unwrap(), Some(owner(instance)));
        }
        state.forget_lease().unwrap();
        state.forget_lease().unwrap();
        assert_eq!(state.lease().unwrap(), None);
    }

    #[test]
    fn an_image_is_in_use_from_the_plan_of_a_vm_to_its_deletion() {
        let dir = dir();
        let state = StateDir::open(dir.path()).unwrap();
        let pod = state.pod("0b1c".parse().unwrap());
        let run = pod.run(Restart(0));
        let image = format!("registry.test/macos@sha256:{}", "a".repeat(64));
        let base = BaseName::of(&crate::names::ImageDigest::parse(&image).unwrap());
        let in_use = || state.bases_in_use().unwrap();
        assert_eq!(in_use(), Some(HashSet::new()));
        run.plan(&ShimSpec { image, ..ShimSpec::example(run.vm()) }).unwrap();
        assert_eq!(in_use(), Some(HashSet::from([base.clone()])));
        run.mark_begun().unwrap();
        assert_eq!(in_use(), Some(HashSet::from([base])));
        // A power cut has spoilt the spec of a VM that may exist.
        std::fs::write(run.path().join("spec.json"), "{").unwrap();
        assert_eq!(in_use(), None);
        run.mark_cleaned().unwrap();
        assert_eq!(in_use(), Some(HashSet::new()));
    }

    #[test]
    fn a_vm_holds_its_host_ports_until_it_is_over() {
        let dir = dir();
        let state = StateDir::open(dir.path()).unwrap();
        let run = state.pod("0b1c".parse().unwrap()).run(Restart(0));
        let port = |protocol, port| HostPort { protocol, address: None, port, guest_port: 1 };
        let host_ports = vec![port(Protocol::Udp, 10250), port(Protocol::Tcp, 80)];
        run.plan(&ShimSpec { host_ports, ..ShimSpec::example(run.vm()) }).unwrap();
        let holder = |port| state.holder_of_port(port).unwrap();
        assert_eq!((holder(80).as_deref(), holder(10250)), (Some("0b1c"), None));
        run.mark_cleaned().unwrap();
        assert_eq!(holder(80), None);
    }

    #[test]
    fn one_agent_owns_a_state_directory() {
        let dir = dir();
        let state = StateDir::open(dir.path()).unwrap();
        let held = state.lock().unwrap();
        assert!(held.is_some());
        assert!(state.lock().unwrap().is_none());
    }
}
