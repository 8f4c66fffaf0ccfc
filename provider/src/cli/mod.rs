//! The command line.

mod manager;
pub(crate) mod password;

pub(crate) use manager::ManagerArgs;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::host::firewall::AllowedDestination;
use crate::ssh::{Fingerprint, SshAddress};

/// Prepares Macs for tart-kubelet and keeps it up to date on them.
#[derive(Debug, Parser)]
#[command(name = "tart-provider", version)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: SubCommand,
}

/// The sub-commands.
#[derive(Debug, Subcommand)]
pub(crate) enum SubCommand {
    /// One Mac, over SSH
    #[command(subcommand)]
    Host(HostCommand),
    /// Keeps the machines of Cluster API: claims Macs of a pool for them, makes them Nodes, keeps them up to date, gives them back
    Manager(Box<ManagerArgs>),
}

/// What to do with one Mac.
#[derive(Debug, Subcommand)]
pub(crate) enum HostCommand {
    /// Lets this key use sudo without a password, and has the Mac log its user in at boot
    Prepare(PrepareArgs),
    /// Shows how the Mac differs from what it should be like; changes nothing
    Plan(Box<ConfigArgs>),
    /// Makes the Mac what it should be like, for the first time or again
    Apply(Box<ApplyArgs>),
    /// The same for a Mac that has an agent already; needs no password
    Roll(Box<ConfigArgs>),
}

/// How to reach the Mac.
#[derive(Debug, Args)]
pub(crate) struct SshArgs {
    /// The Mac, and the user that is logged in at its screen
    #[arg(long, value_name = "USER@HOST[:PORT]")]
    pub(crate) ssh: SshAddress,

    /// The private key
    #[arg(long, short = 'i', env = "TART_PROVIDER_SSH_KEY", value_name = "FILE")]
    pub(crate) identity: PathBuf,

    /// The fingerprint of the Mac's host key, as `ssh-keygen -l` prints it. Without it the first key is trusted, and printed
    #[arg(long, value_name = "SHA256:…")]
    pub(crate) host_key: Option<Fingerprint>,
}

/// Flags of `host prepare`.
#[derive(Debug, Args)]
pub(crate) struct PrepareArgs {
    /// The Mac.
    #[command(flatten)]
    pub(crate) ssh: SshArgs,

    /// Read the user's password from standard input instead of asking for it
    #[arg(long)]
    pub(crate) password_stdin: bool,
}

/// Flags of `host apply`.
#[derive(Debug, Args)]
pub(crate) struct ApplyArgs {
    /// What the Mac should be like.
    #[command(flatten)]
    pub(crate) config: ConfigArgs,

    /// Read the user's password from standard input. It is needed only for a Mac that `host prepare` has not seen
    #[arg(long)]
    pub(crate) password_stdin: bool,
}

/// What the Mac should be like.
#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    /// The Mac.
    #[command(flatten)]
    pub(crate) ssh: SshArgs,

    /// Name of the Node, and of the Mac
    #[arg(long)]
    pub(crate) node_name: String,

    /// The agent's program for macOS
    #[arg(long, value_name = "FILE")]
    pub(crate) agent_binary: PathBuf,

    /// The kubeconfig that the agent joins with
    #[command(flatten)]
    pub(crate) credential: CredentialArgs,

    /// `spec.providerID` of the Node
    #[arg(long)]
    pub(crate) provider_id: Option<String>,

    /// Further labels for the Node, `key=value` with commas between them
    #[arg(long)]
    pub(crate) node_labels: Option<String>,

    /// How many VMs may run at once
    #[arg(long)]
    pub(crate) max_pods: Option<u32>,

    /// People or programs use tart on this Mac themselves: the agent deletes no VMs and images but its own
    #[arg(long)]
    pub(crate) builder: bool,

    /// A further flag for the agent, such as `--agent-flag=--allowed-host-path=/opt/cache`. Can be given several times
    #[arg(long, value_name = "FLAG", allow_hyphen_values = true)]
    pub(crate) agent_flag: Vec<String>,

    /// The tart program on the Mac
    #[arg(long, default_value = "/opt/homebrew/bin/tart", conflicts_with = "tart_archive")]
    pub(crate) tart_binary: String,

    /// An archive of tart.app to be installed. VMs that run keep the tart that they have
    #[arg(long, value_name = "FILE", requires = "tart_version")]
    pub(crate) tart_archive: Option<PathBuf>,

    /// The version in the archive
    #[arg(long, requires = "tart_archive", value_parser = version)]
    pub(crate) tart_version: Option<String>,

    /// A private destination that guests may reach, such as `tcp 10.1.2.3 443` or `any 10.4.0.0/16`. Can be given several times. All other
    /// private addresses are closed to guests
    #[arg(long, value_name = "PROTOCOL NETWORK [PORTS]")]
    pub(crate) allow_vm_destination: Vec<AllowedDestination>,

    /// For how many seconds macOS lends an address to a VM
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u32).range(60..=86400))]
    pub(crate) dhcp_lease_time: u32,

    /// The `node_exporter` program for macOS. Without it one that was installed before is removed
    #[arg(long, value_name = "FILE")]
    pub(crate) node_exporter: Option<PathBuf>,

    /// Where `node_exporter` listens
    #[arg(long, default_value = "127.0.0.1:9100", requires = "node_exporter")]
    pub(crate) node_exporter_listen: String,
}

/// How the agent joins.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct CredentialArgs {
    /// The agent's kubeconfig
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// The kubeconfig with which the agent asks for a certificate. It is needed until the agent has joined
    #[arg(long, value_name = "FILE")]
    pub(crate) bootstrap_kubeconfig: Option<PathBuf>,
}

/// A version that may be the name of a directory.
fn version(text: &str) -> Result<String, String> {
    let is_right = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-');
    if text.starts_with(|c: char| c.is_ascii_digit()) && text.chars().all(is_right) {
        Ok(text.to_owned())
    } else {
        Err(format!("`{text}` is no version"))
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
    fn a_mac_joins_in_exactly_one_way() {
        let base = [
            "tart-provider",
            "host",
            "plan",
            "--ssh=m1@mac",
            "-i",
            "key",
            "--node-name=mac",
            "--agent-binary=a",
        ];
        let parse = |further: &[&str]| Cli::try_parse_from(base.iter().chain(further));
        assert!(parse(&["--kubeconfig=k"]).is_ok());
        assert!(parse(&["--bootstrap-kubeconfig=k"]).is_ok());
        assert!(parse(&[]).is_err());
        assert!(parse(&["--kubeconfig=k", "--bootstrap-kubeconfig=k"]).is_err());
        assert!(parse(&["--kubeconfig=k", "--tart-archive=t"]).is_err());
        assert!(parse(&["--kubeconfig=k", "--tart-archive=t", "--tart-version=../x"]).is_err());
    }
}
