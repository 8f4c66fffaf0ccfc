//! Undoes `join` and `install`: the job, the credentials and the state go. VMs are never stopped by it.

use std::time::Duration;

use launchd::{
    AGENT_LOG, AGENT_NEWSYSLOG, AGENT_PLIST, Host, HostError, Launchctl, LaunchctlError, Registration,
};

use super::AgentSettings;
use super::apply::{PREVIOUS, agent_label};
use super::drain::{DrainError, drain};
use super::mac::{MacError, MacPrograms};
use super::{node_watch, started};
use crate::fs::file::FileError;
use crate::identity::IdentityError;
use crate::state::{Holder, StateDir};

/// How long the agent may take to end: its job's own limit is 20 s.
const UNLOAD_DEADLINE: Duration = Duration::from_secs(40);

/// How to leave.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LeaveOptions {
    /// How long to wait for Pods to end, if the Node is to be drained first.
    pub(crate) drain: Option<Duration>,
    /// Whether to leave although VMs run.
    pub(crate) is_forced: bool,
}

/// Why this Mac is still a Node.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LeaveError {
    /// VMs run.
    #[error(
        "{0} of Pods still run here: end them with `sudo tart-kubelet leave --drain`, or leave them to themselves with --force"
    )]
    VmsRun(String),
    /// The agent's credentials cannot be used for draining.
    #[error("cannot drain the Node with the agent's credentials")]
    Identity(#[from] IdentityError),
    /// The Node is not drained.
    #[error(transparent)]
    Drain(#[from] DrainError),
    /// `launchctl` failed.
    #[error(transparent)]
    Launchctl(#[from] LaunchctlError),
    /// The agent does not end.
    #[error("the agent does not end: launchd still has its job ({0})")]
    StillLoaded(String),
    /// A program of macOS failed.
    #[error(transparent)]
    Mac(#[from] MacError),
    /// A file could not be read.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The state directory could not be read.
    #[error("cannot read the state directory")]
    State(#[from] FileError),
}

/// What has been done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeaveOutcome {
    /// This Mac was no Node.
    NotJoined,
    /// This Mac has left.
    Left {
        /// Whether the Node was drained, and gets no Pods since.
        is_cordoned: bool,
    },
}

/// Leaves the cluster, and tells each step by `say`. Safe to repeat.
pub(crate) async fn leave<H: Host>(
    host: &H,
    settings: &AgentSettings,
    options: LeaveOptions,
    mut say: impl FnMut(&str),
) -> Result<LeaveOutcome, LeaveError> {
    let launchctl = Launchctl::of(host);
    let mac = MacPrograms::of(host);
    let registration = launchctl.print(&agent_label()).await?;
    let kubeconfig = settings.kubeconfig.to_string_lossy().into_owned();
    let bootstrap = settings.bootstrap_kubeconfig().to_string_lossy().into_owned();
    let state_dir = settings.state_dir.to_string_lossy().into_owned();
    let has_plist = host.read_file(AGENT_PLIST).await?.is_some();
    let has_credentials = mac.exists(&kubeconfig).await? || mac.exists(&bootstrap).await?;
    if registration == Registration::NotLoaded && !has_plist && !has_credentials {
        return Ok(LeaveOutcome::NotJoined);
    }
    // Without credentials an earlier `leave` has drained the Node, and has broken off later.
    if let (Some(timeout), true) = (options.drain, has_credentials) {
        let client = node_watch::client(settings).await?;
        drain(&client, &settings.node, timeout, &mut say).await?;
    }
    let running = running_vms(&StateDir::at(&settings.state_dir))?;
    if !running.is_empty() && !options.is_forced {
        return Err(LeaveError::VmsRun(running.join(", ")));
    }
    say("ending the agent");
    if let Err(seen) = launchctl.unload(&agent_label(), UNLOAD_DEADLINE).await? {
        return Err(LeaveError::StillLoaded(seen.to_string()));
    }
    // A Pod may have come until the agent ended.
    let running = running_vms(&StateDir::at(&settings.state_dir))?;
    // Credentials go first: a Mac that starts again meanwhile does not join again.
    mac.remove(&[&kubeconfig, &bootstrap, started::NOTE, PREVIOUS, AGENT_NEWSYSLOG]).await?;
    if running.is_empty() {
        mac.remove(&[&state_dir, AGENT_LOG]).await?;
    } else {
        say(&format!("{state_dir} stays, because VMs run"));
    }
    // The job goes last: until then a second `leave` knows that this Mac has not left, and which directories are the agent's.
    mac.remove(&[AGENT_PLIST]).await?;
    Ok(LeaveOutcome::Left { is_cordoned: options.drain.is_some() })
}

/// The VMs that have a shim, or a tart without one.
pub(crate) fn running_vms(state: &StateDir) -> Result<Vec<String>, FileError> {
    let mut vms = Vec::new();
    for pod in state.pods()? {
        for run in pod.runs()? {
            if run.holder()? != Holder::None {
                vms.push(run.vm().to_string());
            }
        }
    }
    Ok(vms)
}
