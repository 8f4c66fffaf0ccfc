//! launchd: jobs as property lists, `launchctl`, and the roll, which brings a job to a new binary or a new definition.
//!
//! Everything that touches a Mac goes through [`Host`]: [`LocalHost`] is the Mac that runs this program, the provider's is another one
//! behind SSH.
//!
//! ```text
//! Job ──► to_plist ──┐
//!                    ▼
//! roll: observe (launchctl print, the plist on disk) ──► plan ──► kickstart -k, or write, enable, bootout and bootstrap ──► settle
//! ```

mod agent_job;
mod host;
mod job;
mod label;
mod launchctl;
mod local_host;
mod roll;

pub use agent_job::{
    AGENT_BINARY, AGENT_KUBECONFIG, AGENT_LABEL, AGENT_LOG, AGENT_NEWSYSLOG, AGENT_PATH, AGENT_PLIST,
    AGENT_STATE_DIR, ConsoleUser, VM_FIREWALL_ANCHOR, agent_job, newsyslog_entry,
};
pub use host::{Access, Call, CallOutput, Host, HostError, Owner};
pub use job::{Job, JobError, ProcessType, ResourceLimits};
pub use label::{BadLabel, Label};
pub use launchctl::{Domain, ExitCode, LastExit, Launchctl, LaunchctlError, Registration, Reloaded, Service};
pub use local_host::LocalHost;
pub use roll::{Diagnosis, Fallback, Outdated, Roll, RollError, Rolled, longest_roll, roll};
