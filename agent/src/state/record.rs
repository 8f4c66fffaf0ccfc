//! What the state files say.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

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

/// What a shim is to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShimSpec {
    /// The VM to make and run.
    pub vm: VmName,
    /// The image: `host/namespace/repository@sha256:…`.
    pub image: String,
    /// The VM to clone; the image itself when absent, or gone.
    #[serde(default)]
    pub base: Option<BaseName>,
    /// The `tart` program.
    pub tart: PathBuf,
    /// Cores for the VM; the image's own number when absent.
    pub cpu: Option<u32>,
    /// Memory for the VM in MiB; the image's own size when absent.
    pub memory_mib: Option<u64>,
    /// Whether cores and memory are what is enough, and the image may have more.
    pub size_is_minimum: bool,
    /// The program to run in the guest with its arguments; the VM simply boots when absent.
    pub command: Option<GuestCommand>,
    /// Where the container's output goes.
    pub log: PathBuf,
    /// Ports of the host that lead into the guest.
    #[serde(default)]
    pub host_ports: Vec<HostPort>,
    /// How often in a row the container had failed before this VM; sets the back-off after it.
    pub crashes: u32,
}

/// A directory of the host that the guest sees at `/Volumes/My Shared Files/<name>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// Its name in the guest.
    pub name: String,
    /// The directory on the host.
    pub path: PathBuf,
    /// Whether the guest can only read it.
    pub read_only: bool,
}

/// A place in the guest where a container expects a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// The share that holds the volume.
    pub share: String,
    /// What of the share is meant; empty for all of it.
    pub sub_path: String,
    /// The container's `mountPath`.
    pub path: String,
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

/// A command line for the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestCommand {
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// Variables for it, in the Pod's order.
    pub env: Vec<(String, String)>,
    /// The directory to start it in.
    pub working_dir: Option<String>,
}

/// How far a shim has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// The step that is under way.
    pub stage: Stage,
    /// When that step began.
    pub since: Timestamp,
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
    /// The guest has an address, but its command has not started yet.
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

/// The agent asks a shim to stop its VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopRequest {
    /// When the guest must be gone.
    pub deadline: Timestamp,
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

impl Ending {
    /// The kubelet's word for a failure; `None` when it was none.
    pub fn failure(&self) -> Option<&str> {
        match self {
            Self::NotStarted { reason, .. } => Some(reason),
            Self::Lost => Some("ContainerStatusUnknown"),
            Self::Exited { code: 0, .. } | Self::Stopped { killed: false } => None,
            Self::Exited { .. } | Self::Stopped { killed: true } => Some("Error"),
        }
    }

    /// The exit code that the container's status shows.
    pub fn exit_code(&self) -> i32 {
        match self {
            Self::Exited { code, .. } => *code,
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
            base: None,
            tart: "/tart".into(),
            cpu: None,
            memory_mib: None,
            size_is_minimum: false,
            command: None,
            log: "/log".into(),
            host_ports: Vec::new(),
            crashes: 0,
        }
    }
}
