//! The command line.

pub(crate) mod gc_dry_run;
pub(crate) mod gc_table;
mod images;
pub(crate) mod images_list;
pub(crate) mod images_pull;
mod node;

pub(crate) use images::{ImageArgs, ImagesCommand, PullArgs};
pub(crate) use node::{ListenAddress, NodeArgs};

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::duration;
use crate::names::{BadNodeName, NodeName};
use crate::node::labels::{self, Labels};
use crate::volume::AllowedHostPath;

/// Runs the Pods of this Node as Tart VMs.
#[derive(Debug, Parser)]
#[command(name = "tart-kubelet", version, args_conflicts_with_subcommands = true, args_override_self = true)]
pub(crate) struct Cli {
    /// What to do instead of being the agent.
    #[command(subcommand)]
    pub(crate) command: Option<SubCommand>,
    /// The agent's own flags.
    #[command(flatten)]
    pub(crate) agent: AgentArgs,
}

/// What the program can do besides being the agent.
#[derive(Debug, Subcommand)]
pub(crate) enum SubCommand {
    /// Owns one VM; started by the agent
    #[command(hide = true)]
    Shim {
        /// The VM's directory in the state directory
        dir: PathBuf,
    },
    /// Shows which VMs and images the agent would delete, and why each other one is kept
    #[command(args_override_self = true)]
    Gc(Box<GcArgs>),
    /// Has images ready before a Pod needs them, and shows which are here
    #[command(subcommand)]
    Images(ImagesCommand),
}

/// What to show of the collectors. The agent's own flags mean what they mean to the agent.
#[derive(Debug, Args)]
pub(crate) struct GcArgs {
    /// Only show it; nothing is deleted, and the agent may be running
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// The flags that the agent is started with.
    #[command(flatten)]
    pub(crate) agent: AgentArgs,
}

/// The agent's flags.
#[derive(Debug, Clone, Args)]
pub(crate) struct AgentArgs {
    /// How to reach the API server
    #[arg(long, env = "KUBECONFIG", default_value = "/etc/tart-kubelet/kubeconfig")]
    pub(crate) kubeconfig: PathBuf,

    /// How to ask for a certificate when the kubeconfig is missing or its certificate has expired; the kubeconfig is
    /// written when the certificate arrives, and the certificate is rotated from then on
    #[arg(long, env = "TART_KUBELET_BOOTSTRAP_KUBECONFIG")]
    pub(crate) bootstrap_kubeconfig: Option<PathBuf>,

    /// Name of the Node; this machine's host name when absent
    #[arg(long, env = "TART_KUBELET_NODE_NAME")]
    pub(crate) node_name: Option<NodeName>,

    /// `spec.providerID` of the Node: set when the Node is created or has none, never overwritten
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

    /// Where the agent keeps what must survive it
    #[arg(long, default_value = "/var/lib/tart-kubelet")]
    pub(crate) state_dir: PathBuf,

    /// A directory of this machine that Pods may have as hostPath, with all that is in it; with `:ro` at its end they can only
    /// read it. Can be given several times; none is allowed otherwise
    #[arg(long, value_name = "PATH[:ro]")]
    pub(crate) allowed_host_path: Vec<AllowedHostPath>,

    /// The images and the room that they take.
    #[command(flatten)]
    pub(crate) images: ImageArgs,

    /// Delete nothing that was not made for a Pod that is being torn down: neither VMs nor images are collected, not even
    /// when the disk is full. For hosts where people or programs use tart themselves
    #[arg(long)]
    pub(crate) disable_vm_gc: bool,

    /// How often VMs of Pods that are gone are looked for
    #[arg(long, default_value = "5m", value_parser = interval)]
    pub(crate) vm_gc_interval: Duration,

    /// How long nobody must have touched a VM before it is collected
    #[arg(long, default_value = "10m", value_parser = duration::parse)]
    pub(crate) vm_gc_min_age: Duration,

    /// The machine and what it offers.
    #[command(flatten)]
    pub(crate) host: NodeArgs,
}

impl AgentArgs {
    /// The name of the Node: the one that was given, or the machine's own.
    pub(crate) fn node_name(&self, hostname: &str) -> Result<NodeName, BadNodeName> {
        match &self.node_name {
            Some(name) => Ok(name.clone()),
            None => hostname.to_ascii_lowercase().parse(),
        }
    }
}

/// A duration that something can be done at.
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
    fn the_definition_is_sound() {
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
