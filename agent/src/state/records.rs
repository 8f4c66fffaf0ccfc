//! What the state files say.

use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::container_spec::GuestCommand;
use super::newer_release::OrNewer;
use super::outcome::Outcome;
use crate::clock;
use crate::names::{PodName, VmName};

/// The agent that has a Node's Lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LeaseRecord {
    pub(crate) node: String,
    /// It has the Mac in it: a directory that was copied to another Mac is not of this agent.
    pub(crate) instance: String,
}

/// What the agent needs of a Pod that the API server no longer has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PodRecord {
    pub(crate) pod: PodName,
    /// The start time in the Pod's status.
    pub(crate) accepted_at: Timestamp,
}

/// The stage that a shim has reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "ProgressFile", into = "ProgressFile")]
pub(crate) struct Progress {
    pub(crate) stage: Stage,
    pub(crate) since: Timestamp,
    /// The words in front of a command that runs in the main container's environment; empty while there is none.
    pub(crate) enter: Vec<String>,
    /// The same for a command with a limit: these words, the seconds, the command. The shim of an older agent has none.
    pub(crate) probe: Vec<String>,
}

/// A [`Progress`] as it is written. Beside the stage stands what every release has to know of it.
#[derive(Serialize, Deserialize)]
struct ProgressFile {
    stage: OrNewer<Stage>,
    address: Option<IpAddr>,
    is_running: bool,
    since: Timestamp,
    #[serde(default)]
    enter: Vec<String>,
    #[serde(default)]
    probe: Vec<String>,
}

impl From<Progress> for ProgressFile {
    fn from(progress: Progress) -> Self {
        let Progress { stage, since, enter, probe } = progress;
        let is_running = matches!(stage, Stage::Running { .. });
        Self { stage: OrNewer::Known(stage), address: stage.address(), is_running, since, enter, probe }
    }
}

impl From<ProgressFile> for Progress {
    fn from(file: ProgressFile) -> Self {
        let stage = match (file.stage, file.address) {
            (OrNewer::Known(stage), _) => stage,
            (OrNewer::Newer(_), Some(address)) if file.is_running => Stage::Running { address },
            (OrNewer::Newer(_), Some(address)) => Stage::Up { address },
            (OrNewer::Newer(_), None) => Stage::Booting,
        };
        Self { stage, since: file.since, enter: file.enter, probe: file.probe }
    }
}

/// The stages of a shim, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "name")]
pub(crate) enum Stage {
    /// tart clones the VM from the image.
    Cloning,
    /// tart sets the VM's MAC address, serial number and size.
    Configuring,
    /// `tart run` was started; the guest has no address yet.
    Booting,
    /// The guest has an address; the main container has not started.
    Up { address: IpAddr },
    /// The main container has started.
    Running { address: IpAddr },
}

impl Stage {
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
    pub(crate) deadline: Timestamp,
    /// How long before the deadline the agent asks. For zero the shim skips preStop and writes no Event.
    pub(crate) grace: Duration,
    /// Why the container is stopped while its Pod is to run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cause: Option<StopCause>,
}

impl StopRequest {
    pub(crate) fn within(grace: Duration, cause: Option<StopCause>) -> Self {
        let deadline = Timestamp::now().saturating_add(grace).unwrap_or(Timestamp::MAX);
        Self { deadline, grace, cause }
    }

    /// The request with its deadline by the reader's clock, which never jumps. No more than the grace period is left of it.
    pub(super) fn by_own_clock(self) -> Self {
        let asked_at = clock::of_record(self.deadline.saturating_sub(self.grace).unwrap_or(Timestamp::MIN));
        Self { deadline: asked_at.saturating_add(self.grace).unwrap_or(Timestamp::MAX), ..self }
    }

    pub(crate) fn time_left(self, now: Timestamp) -> Duration {
        self.deadline.duration_since(now).try_into().unwrap_or(Duration::ZERO)
    }
}

words! {
    /// Why a container is stopped although its Pod is to run. The last words are the kubelet's.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub(crate) enum StopCause {
        FailedStartup = "failed startup probe",
        FailedLiveness = "failed liveness probe",
        /// The Pod names another image now.
        Changed = "definition changed",
        /// A word of a newer agent.
        #[serde(other)]
        Newer = "met a condition of a newer release",
    }
}

impl StopCause {
    /// Whether the container has failed, whatever its exit code.
    pub(crate) fn is_failure(self) -> bool {
        match self {
            // Of a cause that is not known, the container starts again: work that is done twice hurts less than work that is not done.
            Self::FailedStartup | Self::FailedLiveness | Self::Newer => true,
            Self::Changed => false,
        }
    }
}

/// An init container, as its status shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InitState {
    pub(crate) name: String,
    pub(crate) now: InitStage,
    pub(crate) restarts: u32,
    /// The outcome of the start before.
    pub(crate) last: Option<Outcome>,
    /// The VM in which it has last run, where that is not the VM of the run whose record this is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ran_in: Option<InitVm>,
}

/// A VM that an init container has run in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InitVm {
    pub(crate) vm: VmName,
    /// The image: `host/namespace/repository@sha256:…`.
    pub(crate) image: String,
    /// The image as the Pod named it.
    pub(crate) image_name: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum InitStage {
    Waiting,
    /// It has failed, and the shim restarts it after this time.
    BackOff(Duration),
    /// Since this time.
    Running(Timestamp),
    Over(Outcome),
    /// A stage of a newer shim.
    #[serde(untagged)]
    Newer(Value),
}

impl InitState {
    /// An init container that has never run.
    pub(crate) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), now: InitStage::Waiting, restarts: 0, last: None, ran_in: None }
    }

    pub(crate) fn has_succeeded(&self) -> bool {
        matches!(&self.now, InitStage::Over(outcome) if outcome.ending.exit_code() == 0)
    }

    /// The same container before its start in the next VM; `vm` is the outcome of this one.
    #[must_use]
    pub(crate) fn in_next_vm(&self, vm: &Outcome) -> Self {
        let last = match &self.now {
            InitStage::Over(outcome) => Some(outcome.clone()),
            InitStage::Running(since) => Some(Outcome::lost_with_vm(*since, vm)),
            InitStage::Waiting | InitStage::BackOff(_) | InitStage::Newer(_) => self.last.clone(),
        };
        Self { now: InitStage::Waiting, last, ..self.clone() }
    }
}

/// The shim asks the agent for the command of a container whose variables are looked up when it starts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CommandRequest {
    pub(crate) container: String,
    /// How often it was started before.
    pub(crate) restarts: u32,
}

/// The agent's answer to a [`CommandRequest`]. It may be secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CommandResponse {
    pub(crate) request: CommandRequest,
    pub(crate) command: GuestCommand,
}

/// The command that the shim last started in the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LastCommand {
    pub(crate) container: String,
    pub(crate) started_at: Timestamp,
    /// The line that prints its exit code in the guest once it has ended.
    pub(crate) exit_code_line: Vec<String>,
    /// The words in front of a user's command in the same container, and its name; the shim of an older agent has none.
    #[serde(default)]
    pub(crate) exec_line: Vec<String>,
    /// The words in front of the name of a user's command, to kill it, or to print its exit code.
    #[serde(default)]
    pub(crate) kill_line: Vec<String>,
}

/// An Event that the agent writes for the shim, which has no access to the API server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Notice {
    pub(crate) reason: String,
    pub(crate) message: String,
}

#[cfg(test)]
impl Progress {
    pub(crate) fn example(stage: Stage) -> Self {
        Self { stage, since: Timestamp::UNIX_EPOCH, enter: Vec::new(), probe: Vec::new() }
    }
}
