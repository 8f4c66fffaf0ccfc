//! The command line.

mod agent_flags;
mod api;
mod examples;
pub(crate) mod gc_dry_run;
pub(crate) mod gc_table;
mod images;
pub(crate) mod images_list;
pub(crate) mod images_pull;
mod install;
pub(crate) mod join;
mod node;
pub(crate) mod pull_printer;

pub(crate) use api::ApiArgs;
pub(crate) use images::{ImageArgs, ImagesCommand, ListArgs, PullArgs};
pub(crate) use install::{DoctorArgs, InstallArgs, JoinArgs, LeaveArgs, StatusArgs};
pub(crate) use node::{ListenAddress, NodeArgs};

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::duration;
use crate::install::doctor::Format;
use crate::names::{BadNodeName, NodeName};
use crate::node::labels::{self, Labels};
use crate::volume::AllowedHostPath;

/// Runs the Pods of this Node as Tart VMs.
#[derive(Debug, Parser)]
#[command(
    name = "tart-kubelet",
    version,
    args_conflicts_with_subcommands = true,
    args_override_self = true,
    after_help = examples::AGENT
)]
pub(crate) struct Cli {
    /// A sub-command; without one the program is the agent.
    #[command(subcommand)]
    pub(crate) command: Option<SubCommand>,
    /// The agent's own flags.
    #[command(flatten)]
    pub(crate) agent: AgentArgs,
}

/// The sub-commands.
#[derive(Debug, Subcommand)]
pub(crate) enum SubCommand {
    /// Owns one VM; started by the agent
    #[command(hide = true)]
    Shim {
        /// The VM's directory in the state directory
        dir: PathBuf,
    },
    /// Shows which VMs and images the agent would delete, and why each other one is kept
    #[command(args_override_self = true, after_help = examples::GC)]
    Gc(Box<GcArgs>),
    /// Pulls images before a Pod needs them, and lists them
    #[command(subcommand, after_help = examples::IMAGES)]
    Images(ImagesCommand),
    /// Makes this Mac a Node of a cluster, by a bootstrap token. Run it with sudo; any flag of the agent can be added
    #[command(args_override_self = true, after_help = examples::JOIN)]
    Join(Box<JoinArgs>),
    /// Makes this Mac a Node of a cluster, by a kubeconfig. Run it with sudo; any flag of the agent can be added
    #[command(args_override_self = true, after_help = examples::INSTALL)]
    Install(Box<InstallArgs>),
    /// Undoes join and install
    #[command(visible_alias = "uninstall", after_help = examples::LEAVE)]
    Leave(LeaveArgs),
    /// Says what this Mac lacks to be a Node, and how to mend it. Ends with 1 if something is broken
    #[command(after_help = examples::DOCTOR)]
    Doctor(DoctorArgs),
    /// Says how this Mac's agent and its Node are. With sudo it can ask the API server
    #[command(after_help = examples::STATUS)]
    Status(StatusArgs),
    /// Prints what a shell needs to complete the commands and flags of this program
    #[command(after_help = examples::COMPLETIONS)]
    Completions {
        /// The shell
        shell: manual::Shell,
    },
    /// Writes the man pages of this program and its commands
    #[command(after_help = examples::MAN)]
    Man {
        /// The directory, which is made if it is missing
        directory: PathBuf,
    },
}

/// Flags of `gc`. The agent's flags mean the same here.
#[derive(Debug, Args)]
pub(crate) struct GcArgs {
    /// Delete nothing. The agent may run meanwhile
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// For whom the table is
    #[arg(long, short, value_enum, default_value_t = Format::Text)]
    pub(crate) output: Format,

    /// The flags that the agent is started with.
    #[command(flatten)]
    pub(crate) agent: AgentArgs,
}

/// The agent's flags.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "The agent and its Node")]
pub(crate) struct AgentArgs {
    /// The kubeconfig of the API server
    #[arg(long, env = "KUBECONFIG", default_value = "/etc/tart-kubelet/kubeconfig")]
    pub(crate) kubeconfig: PathBuf,

    /// The kubeconfig for the first certificate, used when --kubeconfig is missing or its certificate has expired. The agent writes
    /// --kubeconfig when the cluster has issued the certificate, and rotates the certificate from then on
    #[arg(long, env = "TART_KUBELET_BOOTSTRAP_KUBECONFIG")]
    pub(crate) bootstrap_kubeconfig: Option<PathBuf>,

    /// Name of the Node; this machine's host name when absent
    #[arg(long, env = "TART_KUBELET_NODE_NAME")]
    pub(crate) node_name: Option<NodeName>,

    /// `spec.providerID` of the Node. The agent sets it on a Node that has none and never overwrites it
    #[arg(long, env = "TART_KUBELET_PROVIDER_ID")]
    pub(crate) provider_id: Option<String>,

    /// Further labels for the Node, `key=value` with commas between them
    #[arg(long, env = "TART_KUBELET_NODE_LABELS", default_value = "", value_parser = labels::parse)]
    pub(crate) node_labels: Labels,

    /// Address of the Node; see --node-ip-source when absent
    #[arg(long, env = "TART_KUBELET_NODE_IP")]
    pub(crate) node_ip: Option<IpAddr>,

    /// How many VMs may run at once; Apple's licence and macOS allow two
    #[arg(long, default_value_t = 2)]
    pub(crate) max_pods: u32,

    /// The tart program
    #[arg(long, default_value = "/usr/local/bin/tart")]
    pub(crate) tart_binary: PathBuf,

    /// The state directory: it survives the agent
    #[arg(long, default_value = "/var/lib/tart-kubelet")]
    pub(crate) state_dir: PathBuf,

    /// The file for everything that the agent prints. When it has been renamed, as newsyslog does, the agent opens it anew
    #[arg(long)]
    pub(crate) log_file: Option<PathBuf>,

    /// A directory of this machine that Pods may mount as hostPath, with everything in it; with `:ro` at the end, read-only. Can be given
    /// several times. Without it, hostPath is refused
    #[arg(long, value_name = "PATH[:ro]", help_heading = "Pods")]
    pub(crate) allowed_host_path: Vec<AllowedHostPath>,

    /// Let probes and hooks of Pods that name a `host` reach this machine itself, its loopback and its link-local addresses. They run on the
    /// machine, and not in the guest
    #[arg(long, help_heading = "Pods")]
    pub(crate) allow_local_probe_hosts: bool,

    /// Images and their disk space.
    #[command(flatten)]
    pub(crate) images: ImageArgs,

    /// Collect neither VMs nor images, not even when the disk is full: the agent deletes only what it made for a Pod that ends. For hosts
    /// where people or programs use tart themselves
    #[arg(long, help_heading = "Orphan VMs")]
    pub(crate) disable_vm_gc: bool,

    /// How often the agent looks for orphan VMs: VMs of Pods that are gone
    #[arg(long, default_value = "5m", value_parser = interval, help_heading = "Orphan VMs")]
    pub(crate) vm_gc_interval: Duration,

    /// The agent deletes an orphan VM only if it has not been touched for this long
    #[arg(long, default_value = "10m", value_parser = duration::parse, help_heading = "Orphan VMs")]
    pub(crate) vm_gc_min_age: Duration,

    /// The machine and what it offers.
    #[command(flatten)]
    pub(crate) host: NodeArgs,

    /// The kubelet API.
    #[command(flatten)]
    pub(crate) api: ApiArgs,
}

impl AgentArgs {
    /// The name of the Node: the one that was given, or the one that was `kept`, or the machine's own. macOS renames a Mac by itself, and
    /// the Node must stay the same.
    pub(crate) fn node_name(&self, kept: Option<NodeName>, hostname: &str) -> Result<NodeName, BadNodeName> {
        match self.node_name.clone().or(kept) {
            Some(name) => Ok(name),
            None => hostname.to_ascii_lowercase().parse(),
        }
    }
}

/// A duration greater than 0.
fn interval(text: &str) -> Result<Duration, String> {
    match duration::parse(text) {
        Ok(Duration::ZERO) => Err("must be greater than 0".to_owned()),
        parsed => parsed.map_err(|error| error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn clap_accepts_the_definition() {
        Cli::command().debug_assert();
    }

    #[test]
    fn several_host_paths_can_be_allowed() {
        let arguments = ["tart-kubelet", "--allowed-host-path=/a", "--allowed-host-path", "/b:ro"];
        let allowed = Cli::parse_from(arguments).agent.allowed_host_path;
        assert_eq!(allowed, ["/a", "/b:ro"].map(|path| path.parse().unwrap()));
        assert!(Cli::try_parse_from(["tart-kubelet", "--allowed-host-path=a"]).is_err());
    }
}
