//! Flags of `join`, `install` and `leave`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::AgentArgs;
use crate::duration;
use crate::install::discovery::{ApiEndpoint, CaCertHash};
use crate::install::doctor::Format;

/// Flags of `join`. The agent's flags become those of its job.
#[derive(Debug, Args)]
pub(crate) struct JoinArgs {
    /// The API server, `host:port`
    #[arg(value_name = "API-SERVER")]
    pub(crate) api_server: ApiEndpoint,

    /// The bootstrap token. Every user of this Mac can see it while the command runs: --token-file does not show it
    #[arg(long)]
    // A text, and no token: an error of the command line would show it.
    pub(crate) token: Option<String>,

    /// A file with the bootstrap token; `-` for standard input
    #[arg(long, conflicts_with = "token")]
    pub(crate) token_file: Option<PathBuf>,

    /// The hash of the public key of the cluster's CA, `sha256:…`. Can be given several times: one of them must fit
    #[arg(long, value_name = "HASH")]
    pub(crate) discovery_token_ca_cert_hash: Vec<CaCertHash>,

    /// Join without a hash of the cluster's CA: any server that knows the token can pose as the cluster
    #[arg(long)]
    pub(crate) discovery_token_unsafe_skip_ca_verification: bool,

    /// How the installation is done.
    #[command(flatten)]
    pub(crate) options: InstallOptions,

    /// The flags that the agent is to be started with.
    #[command(flatten)]
    pub(crate) agent: AgentArgs,
}

/// Flags of `install`. The agent's flags become those of its job.
#[derive(Debug, Args)]
pub(crate) struct InstallArgs {
    /// How the installation is done.
    #[command(flatten)]
    pub(crate) options: InstallOptions,

    /// The flags that the agent is to be started with. The files of --kubeconfig and --bootstrap-kubeconfig are copied.
    #[command(flatten)]
    pub(crate) agent: AgentArgs,
}

/// How an installation is done.
#[derive(Debug, Args)]
pub(crate) struct InstallOptions {
    /// How long the Node may take to be ready
    #[arg(long, default_value = "5m", value_parser = duration::parse)]
    pub(crate) timeout: Duration,

    /// Install although `doctor` finds this Mac broken
    #[arg(long)]
    pub(crate) ignore_preflight_errors: bool,

    /// Look at the cluster and at this Mac, and say what would be done
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Flags of `leave`.
#[derive(Debug, Args)]
pub(crate) struct LeaveArgs {
    /// First evict the Node's Pods, and wait until they have ended
    #[arg(long)]
    pub(crate) drain: bool,

    /// How long Pods may take to end
    #[arg(long, default_value = "10m", value_parser = duration::parse, requires = "drain")]
    pub(crate) drain_timeout: Duration,

    /// Leave although VMs run; they run on
    #[arg(long)]
    pub(crate) force: bool,
}

/// Flags of `doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Mend what can be mended; needs sudo
    #[arg(long)]
    pub(crate) fix: bool,

    /// For whom the report is
    #[arg(long, short, value_enum, default_value_t = Format::Text)]
    pub(crate) output: Format,
}

/// Flags of `status`.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// For whom the report is
    #[arg(long, short, value_enum, default_value_t = Format::Text)]
    pub(crate) output: Format,
}
