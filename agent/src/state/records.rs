//! What the state files say.

use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::container_spec::GuestCommand;
use crate::names::PodName;

/// A Pod as it was accepted: what the agent needs once the API no longer knows the Pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PodRecord {
    /// Where the Pod lives, or lived.
    pub(crate) pod: PodName,
    /// The start time that its status shows.
    pub(crate) accepted_at: Timestamp,
}

/// How far a shim has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Progress {
    /// The step that is under way.
    pub(crate) stage: Stage,
    /// When that step began.
    pub(crate) since: Timestamp,
    /// What goes before a command that is to run in the main container's environment; empty while there is none.
    #[serde(default)]
    pub(crate) enter: Vec<String>,
    /// The same for one that has a limit: the seconds come after it, and then the command. The shim of an older agent has none.
    #[serde(default)]
    pub(crate) probe: Vec<String>,
}

/// The steps of a shim, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "name")]
pub(crate) enum Stage {
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
    pub(crate) fn address(self) -> Option<IpAddr> {
        match self {
            Self::Up { address } | Self::Running { address } => Some(address),
            Self::Cloning | Self::Configuring | Self::Booting => None,
        }
    }
}

/// The agent asks a shim to stop its VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StopRequest {
    /// When the guest must be gone.
    pub(crate) deadline: Timestamp,
    /// Whether there was any time until then when this was asked for: who is forced to stop runs no hook, and nobody misses it.
    #[serde(default)]
    pub(crate) graceful: bool,
    /// Why, when it is not the Pod that has to go but only its container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cause: Option<StopCause>,
}

/// Why a container is stopped although its Pod is to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum StopCause {
    /// Its startup probe failed.
    FailedStartup,
    /// Its liveness probe failed.
    FailedLiveness,
    /// The Pod names another image now.
    Changed,
}

impl StopCause {
    /// Whether the container has failed, however well it then ends.
    pub(crate) fn is_failure(self) -> bool {
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
    pub(crate) fn within(grace: Duration, cause: Option<StopCause>) -> Self {
        let deadline = Timestamp::now().saturating_add(grace).unwrap_or(Timestamp::MAX);
        Self { deadline, graceful: !grace.is_zero(), cause }
    }

    /// The time that is left at `now`.
    pub(crate) fn time_left(self, now: Timestamp) -> Duration {
        self.deadline.duration_since(now).try_into().unwrap_or(Duration::ZERO)
    }
}

/// How a VM ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// What ended it.
    pub(crate) ending: Ending,
    /// When the container had started; absent when it never did.
    pub(crate) started_at: Option<Timestamp>,
    /// When it was over.
    pub(crate) finished_at: Timestamp,
}

/// A container that runs before the main one, as its status shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InitState {
    /// Its name.
    pub(crate) name: String,
    /// What it does.
    pub(crate) now: InitStage,
    /// How often it was started again.
    pub(crate) restarts: u32,
    /// How it ended the time before.
    pub(crate) last: Option<Outcome>,
}

impl InitState {
    /// One that has never run.
    pub(crate) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), now: InitStage::Waiting, restarts: 0, last: None }
    }

    /// The same container as it waits for its turn in the next VM, after one that has ended so.
    #[must_use]
    pub(crate) fn in_next_vm(&self, vm: &Outcome) -> Self {
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
    pub(crate) fn lost_with(since: Timestamp, vm: &Self) -> Self {
        Self { ending: Ending::Lost, started_at: Some(since), finished_at: vm.finished_at }
    }
}

/// What such a container does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum InitStage {
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
pub(crate) struct Due {
    /// Its name.
    pub(crate) container: String,
    /// How often it was started before.
    pub(crate) restarts: u32,
}

/// What the agent has for a container whose turn has come. It may be secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Delivery {
    /// Which start it is for.
    pub(crate) due: Due,
    /// What is to run.
    pub(crate) command: GuestCommand,
}

/// The command that was last started in the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LastCommand {
    /// The container whose command it is.
    pub(crate) container: String,
    /// When it was started.
    pub(crate) begun: Timestamp,
    /// What prints its exit code, once it has ended, when it is run in the guest.
    pub(crate) exit: Vec<String>,
}

/// Something that a person should be told of, which the shim cannot do itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Notice {
    /// One word.
    pub(crate) reason: String,
    /// The rest.
    pub(crate) message: String,
}

/// What ended a VM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub(crate) enum Ending {
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
pub(crate) enum HostFault {
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
    pub(crate) fn failure(&self) -> Option<&str> {
        match self {
            Self::NotStarted { reason, .. } => Some(reason),
            Self::Lost => Some("ContainerStatusUnknown"),
            Self::Exited { code: 0, .. } | Self::Stopped { killed: false } => None,
            Self::Exited { .. } | Self::InitFailed { .. } | Self::Stopped { killed: true } => Some("Error"),
        }
    }

    /// The exit code that the container's status shows.
    pub(crate) fn exit_code(&self) -> i32 {
        match self {
            Self::Exited { code, .. } | Self::InitFailed { code, .. } => *code,
            Self::Stopped { killed: false } => 0,
            Self::Stopped { killed: true } | Self::Lost => 137,
            Self::NotStarted { .. } => 128,
        }
    }
}
