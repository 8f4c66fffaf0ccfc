//! One Mac, one command: `join` and `install` make this Mac a Node, `leave` undoes it, `doctor` says what a Mac lacks, `status` how it is.
//!
//! All of them work on this Mac through [`launchd::Host`]. They call macOS' programs only by [`mac`], with deadlines.

pub(crate) mod apply;
pub(crate) mod credentials;
pub(crate) mod discovery;
pub(crate) mod doctor;
pub(crate) mod drain;
pub(crate) mod leave;
pub(crate) mod mac;
pub(crate) mod node_watch;
pub(crate) mod plan;
pub(crate) mod started;
pub(crate) mod status;

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::names::NodeName;

/// What the agent of this Mac is started with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AgentSettings {
    /// The name of the Node.
    pub(crate) node: NodeName,
    /// The kubeconfig that the agent uses, and writes after a bootstrap.
    pub(crate) kubeconfig: PathBuf,
    /// The state directory.
    pub(crate) state_dir: PathBuf,
    /// The tart program.
    pub(crate) tart: PathBuf,
    /// Where the agent serves its metrics, if it does.
    pub(crate) metrics: Option<SocketAddr>,
    /// The flags that were given, but for those of credentials.
    pub(crate) flags: Vec<String>,
}

impl AgentSettings {
    /// The kubeconfig for the bootstrap, next to the agent's own.
    pub(crate) fn bootstrap_kubeconfig(&self) -> PathBuf {
        self.kubeconfig.with_file_name("bootstrap-kubeconfig")
    }
}
