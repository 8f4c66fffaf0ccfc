//! What the state files say.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

#[cfg(test)]
use super::container::Termination;
use super::container::{ContainerSpec, GuestIdentity, Share};
use crate::pod::PodName;
use crate::vm::{BaseName, VmName};

/// A Pod as it was accepted: what the agent needs once the API no longer knows the Pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodRecord {
    /// Where the Pod lives, or lived.
    pub pod: PodName,
    /// The start time that its status shows.
    pub accepted_at: Timestamp,
}

/// What a shim is to run. An agent reads the plans of those before it: a field that is added needs a default.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShimSpec {
    /// The VM to make and run.
    pub vm: VmName,
    /// The image: `host/namespace/repository@sha256:…`.
    pub image: String,
    /// The image as the Pod named it; the plan of an older agent does not say.
    #[serde(default)]
    pub image_name: Option<String>,
    /// The VM to clone; the image itself when absent, or gone.
    #[serde(default)]
    pub base: Option<BaseName>,
    /// The `tart` program.
    pub tart: PathBuf,
    /// Cores for the VM; the image's own number when absent.
    #[serde(default)]
    pub cpu: Option<u32>,
    /// Memory for the VM in MiB; the image's own size when absent.
    #[serde(default)]
    pub memory_mib: Option<u64>,
    /// Whether so many cores are enough, and the image may have more.
    #[serde(default)]
    pub cpu_is_minimum: bool,
    /// Whether so much memory is enough, and the image may have more.
    #[serde(default)]
    pub memory_is_minimum: bool,
    /// Directories of the host that the guest gets to see.
    #[serde(default)]
    pub shares: Vec<Share>,
    /// What makes the guest the Pod's.
    #[serde(default)]
    pub identity: GuestIdentity,
    /// Containers that run one after the other before the main one.
    #[serde(default)]
    pub init: Vec<ContainerSpec>,
    /// Whether one of those that fails is tried again, in the same guest.
    #[serde(default)]
    pub init_again: bool,
    /// The main container.
    pub main: ContainerSpec,
    /// Where a guest without a command can leave how it ended.
    #[serde(default)]
    pub status_dir: Option<PathBuf>,
    /// How long a container may take to end when the shim itself has a reason to end it.
    pub grace: Duration,
    /// How long the guest may take from power-on to an address, and to an answering guest agent.
    pub boot_limit: Duration,
    /// Ports of the host that lead into the guest.
    #[serde(default)]
    pub host_ports: Vec<HostPort>,
    /// The file in which macOS writes down whom it has lent addresses to.
    #[serde(default)]
    pub dhcp_leases: Option<PathBuf>,
    /// How often in a row the container had failed before this VM; sets the back-off after it.
    #[serde(default)]
    pub crashes: u32,
}

/// A port of the host that leads into the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostPort {
    /// What is forwarded.
    pub protocol: Protocol,
    /// The host's address to listen at; all that it has when absent.
    pub address: Option<IpAddr>,
    /// The port there.
    pub port: u16,
    /// The port in the guest.
    pub guest_port: u16,
}

/// What can be forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Protocol {
    /// Connections.
    Tcp,
    /// Datagrams.
    Udp,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
        })
    }
}

/// How far a shim has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// The step that is under way.
    pub stage: Stage,
    /// When that step began.
    pub since: Timestamp,
    /// What goes before a command that is to run in the main container's environment; empty while there is none.
    #[serde(default)]
    pub enter: Vec<String>,
}

/// The steps of a shim, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "name")]
pub enum Stage {
    /// The VM is being cloned from the image.
    Cloning,
    /// It gets its own MAC address, serial number and size.
    Configuring,
    /// `tart run` was started; the guest has no address yet.
    Booting,
    /// The guest has an address, but the main container has not started yet.
    Up {
        /// The guest's address.
        address: IpAddr,
    },
    /// The guest is up, and its command, if any, has started.
    Running {
        /// The guest's address.
        address: IpAddr,
    },
}

impl Stage {
    /// The guest's address, once it has one.
    pub fn address(self) -> Option<IpAddr> {
        match self {
            Self::Up { address } | Self::Running { address } => Some(address),
            Self::Cloning | Self::Configuring | Self::Booting => None,
        }
    }
}

/// The agent asks a shim to stop its VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopRequest {
    /// When the guest must be gone.
    pub deadline: Timestamp,
    /// Why, when it is not the Pod that has to go but only its container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<StopCause>,
}

/// Why a container is stopped although its Pod is to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StopCause {
    /// Its startup probe failed.
    FailedStartup,
    /// Its liveness probe failed.
    FailedLiveness,
    /// The Pod names another image now.
    Changed,
}

impl StopCause {
    /// Whether the container has failed, however well it then ends.
    pub fn is_failure(self) -> bool {
        match self {
            Self::FailedStartup | Self::FailedLiveness => true,
            Self::Changed => false,
        }
    }
}

impl std::fmt::Display for StopCause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::FailedStartup => "failed startup probe",
            Self::FailedLiveness => "failed liveness probe",
            // The kubelet's words.
            Self::Changed => "definition changed",
        })
    }
}

impl StopRequest {
    /// The time that is left at `now`.
    pub fn time_left(self, now: Timestamp) -> Duration {
        self.deadline.duration_since(now).try_into().unwrap_or(Duration::ZERO)
    }
}

/// How a VM ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// What ended it.
    pub ending: Ending,
    /// When the container had started; absent when it never did.
    pub started_at: Option<Timestamp>,
    /// When it was over.
    pub finished_at: Timestamp,
}

/// A container that runs before the main one, as its status shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InitState {
    /// Its name.
    pub name: String,
    /// What it does.
    pub now: InitStage,
    /// How often it was started again.
    pub restarts: u32,
    /// How it ended the time before.
    pub last: Option<Outcome>,
}

/// What such a container does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InitStage {
    /// It waits for its turn.
    Waiting,
    /// It has failed, and waits to be started again.
    BackOff(Duration),
    /// It runs, since then.
    Running(Timestamp),
    /// It has ended.
    Over(Outcome),
}

/// Something that a person should be told of, which the shim cannot do itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    /// One word.
    pub reason: String,
    /// The rest.
    pub message: String,
}

/// What ended a VM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Ending {
    /// The guest shut down, or its command ended, by itself.
    Exited {
        /// The exit code of the container.
        code: i32,
        /// What the guest or tart said about it.
        message: Option<String>,
    },
    /// The VM was stopped because the agent asked for it.
    Stopped {
        /// Whether the guest had to be killed.
        killed: bool,
    },
    /// The VM, or the command in it, never came up.
    NotStarted {
        /// The kubelet's word for it, such as `StartError`.
        reason: String,
        /// What a person can do about it.
        message: String,
        /// What is wrong with the host, when it was the host's fault.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        fault: Option<HostFault>,
    },
    /// A container that runs before the main one has failed, and is not tried again.
    InitFailed {
        /// Its name.
        container: String,
        /// Its exit code.
        code: i32,
    },
    /// The shim is gone without a word: killed, or the host was restarted.
    Lost,
}

/// What keeps every VM from starting on a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "name")]
pub enum HostFault {
    /// There is no GUI session, or its keychain is locked.
    Session,
    /// macOS allows no further VM.
    VmLimit {
        /// How many VMs of this agent ran then.
        ours: u32,
    },
    /// The VM runs, but got no address.
    NoAddress,
}

impl ShimSpec {
    /// Drops variables and arguments, which may be secret, and are of no use once the VM is over.
    pub(super) fn forget_secrets(&mut self) {
        for container in self.init.iter_mut().chain([&mut self.main]) {
            if let Some(command) = &mut container.command {
                command.env.clear();
                command.argv.truncate(1);
            }
            container.post_start = None;
            container.pre_stop = None;
        }
    }
}

impl Ending {
    /// The kubelet's word for a failure; `None` when it was none.
    pub fn failure(&self) -> Option<&str> {
        match self {
            Self::NotStarted { reason, .. } => Some(reason),
            Self::Lost => Some("ContainerStatusUnknown"),
            Self::Exited { code: 0, .. } | Self::Stopped { killed: false } => None,
            Self::Exited { .. } | Self::InitFailed { .. } | Self::Stopped { killed: true } => Some("Error"),
        }
    }

    /// The exit code that the container's status shows.
    pub fn exit_code(&self) -> i32 {
        match self {
            Self::Exited { code, .. } | Self::InitFailed { code, .. } => *code,
            Self::Stopped { killed: false } => 0,
            Self::Stopped { killed: true } | Self::Lost => 137,
            Self::NotStarted { .. } => 128,
        }
    }
}

#[cfg(test)]
impl ShimSpec {
    /// A spec for tests that do not care what is in it.
    pub(crate) fn example(vm: VmName) -> Self {
        Self {
            vm,
            image: "registry.test/macos@sha256:0".to_owned(),
            image_name: None,
            base: None,
            tart: "/tart".into(),
            cpu: None,
            memory_mib: None,
            cpu_is_minimum: false,
            memory_is_minimum: false,
            shares: Vec::new(),
            identity: GuestIdentity::default(),
            init: Vec::new(),
            init_again: false,
            main: ContainerSpec {
                name: "main".to_owned(),
                command: None,
                mounts: Vec::new(),
                termination: Termination { path: "/dev/termination-log".to_owned(), or_log: false },
                post_start: None,
                pre_stop: None,
                log: "/log".into(),
            },
            status_dir: None,
            grace: Duration::from_secs(30),
            boot_limit: Duration::from_mins(15),
            host_ports: Vec::new(),
            dhcp_leases: None,
            crashes: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_plan_of_an_older_or_a_newer_agent_is_read() {
        let plan = json!({
            "vm": "tk-0b1c-2",
            "image": "registry.test/macos@sha256:0",
            "tart": "/tart",
            "main": {"name": "main", "command": {"argv": ["true"]}, "log": "/log", "later": true},
            "shares": [{"name": "a", "path": "/a", "read_only": true}],
            "grace": {"secs": 30, "nanos": 0},
            "boot_limit": {"secs": 900, "nanos": 0},
            "crashes": 3,
            "later": {"what": "an agent of next year has added"},
        });
        let read: ShimSpec = serde_json::from_value(plan).unwrap();
        assert_eq!((read.vm.restart().0, read.crashes, read.shares[0].read_only), (2, 3, true));
        assert_eq!(read.image_name, None);
        assert_eq!(read.main.command.map(|command| command.argv), Some(vec!["true".to_owned()]));
    }
}
