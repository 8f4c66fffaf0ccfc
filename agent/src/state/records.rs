//! What the state files say.

use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::container_spec::GuestCommand;
use crate::pod::PodName;

/// A Pod as it was accepted: what the agent needs once the API no longer knows the Pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodRecord {
    /// Where the Pod lives, or lived.
    pub pod: PodName,
    /// The start time that its status shows.
    pub accepted_at: Timestamp,
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
    /// The same for one that has a limit: the seconds come after it, and then the command. The shim of an older agent has none.
    #[serde(default)]
    pub probe: Vec<String>,
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
    /// Whether there was any time until then when this was asked for: who is forced to stop runs no hook, and nobody misses it.
    #[serde(default)]
    pub graceful: bool,
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
    /// To stop within this time from now.
    pub fn within(grace: Duration, cause: Option<StopCause>) -> Self {
        let deadline = Timestamp::now().saturating_add(grace).unwrap_or(Timestamp::MAX);
        Self { deadline, graceful: !grace.is_zero(), cause }
    }

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

impl InitState {
    /// One that has never run.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), now: InitStage::Waiting, restarts: 0, last: None }
    }

    /// The same container as it waits for its turn in the next VM, after one that has ended so.
    #[must_use]
    pub fn in_next_vm(&self, vm: &Outcome) -> Self {
        let last = match &self.now {
            InitStage::Over(outcome) => Some(outcome.clone()),
            InitStage::Running(since) => Some(Outcome::lost_with(*since, vm)),
            InitStage::Waiting | InitStage::BackOff(_) => self.last.clone(),
        };
        Self { name: self.name.clone(), now: InitStage::Waiting, restarts: self.restarts, last }
    }
}

impl Outcome {
    /// The end of a container that nobody saw, but that of its VM is one.
    pub fn lost_with(since: Timestamp, vm: &Self) -> Self {
        Self { ending: Ending::Lost, started_at: Some(since), finished_at: vm.finished_at }
    }
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

/// A container whose turn has come, and whose variables are to be looked up now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Due {
    /// Its name.
    pub container: String,
    /// How often it was started before.
    pub restarts: u32,
}

/// What the agent has for a container whose turn has come. It may be secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivery {
    /// Which start it is for.
    pub due: Due,
    /// What is to run.
    pub command: GuestCommand,
}

/// The command that was last started in the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastCommand {
    /// The container whose command it is.
    pub container: String,
    /// When it was started.
    pub begun: Timestamp,
    /// What prints its exit code, once it has ended, when it is run in the guest.
    pub exit: Vec<String>,
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
