//! The command line.

mod manager;
pub(crate) mod password;

pub(crate) use manager::ManagerArgs;

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Parser, Subcommand};

use crate::host::firewall::AllowedDestination;
use crate::ssh::{BadSshAddress, Fingerprint, SshAddress};

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
    /// Macs, over SSH
    #[command(subcommand, after_help = HOST_HELP)]
    Host(HostCommand),
    /// Keeps the machines of Cluster API: claims Macs of a pool for them, makes them Nodes, keeps them up to date, gives them back
    Manager(Box<ManagerArgs>),
}

const HOST_HELP: &str = "\
A Mac from nothing to a Node:
  1. tart-provider host prepare --ssh m1@mac-1 -i ~/.ssh/fleet
     asks for the password of m1 once; afterwards the key is enough
  2. tart-provider host plan --ssh m1@mac-1 -i ~/.ssh/fleet --node-name mac-1 \\
         --agent-binary tart-kubelet --bootstrap-kubeconfig bootstrap-kubeconfig
     shows what would be changed
  3. tart-provider host apply …         with the same flags: changes it, and can be run again at any time
  4. tart-provider host roll …          later, with a new --agent-binary or other flags

The user of --ssh is the one that is logged in at the Mac's screen: macOS starts VMs for no other.";

const CONFIG_HELP: &str = "\
Several Macs, four at a time. Each names its Node; a Mac that fails keeps the next ones from being begun:
  tart-provider host roll --ssh mac-1=m1@10.0.0.1 --ssh mac-2=m1@10.0.0.2 --known-hosts ~/.ssh/known_hosts …

Exit codes: 0 when every Mac is as it should be (or the plan is shown), 1 when a step failed, 2 when nothing could be done.
Run the same command again to go on: steps that are done are skipped.";

/// What to do with Macs.
#[derive(Debug, Subcommand)]
pub(crate) enum HostCommand {
    /// Lets this key use sudo without a password, and has the Mac log its user in at boot
    Prepare(PrepareArgs),
    /// Shows how a Mac differs from what it should be like; changes nothing
    #[command(after_help = CONFIG_HELP)]
    Plan(Box<ConfigArgs>),
    /// Makes a Mac what it should be like, for the first time or again
    #[command(after_help = CONFIG_HELP)]
    Apply(Box<ApplyArgs>),
    /// The same for a Mac that has an agent already; needs no password
    #[command(after_help = CONFIG_HELP)]
    Roll(Box<ConfigArgs>),
}

/// How Macs know who asks, and how they are known.
#[derive(Debug, Args)]
pub(crate) struct KeyArgs {
    /// The private key
    #[arg(long, short = 'i', env = "TART_PROVIDER_SSH_KEY", value_name = "FILE")]
    pub(crate) identity: PathBuf,

    /// The fingerprint of the Mac's host key, as `ssh-keygen -l` prints it. Without it and --known-hosts the key must be the one in
    /// `~/.ssh/known_hosts`; that of a Mac that is not there is trusted, printed and added
    #[arg(long, value_name = "SHA256:…", conflicts_with = "known_hosts")]
    pub(crate) host_key: Option<Fingerprint>,

    /// A file with host keys, as `ssh` keeps them in `~/.ssh/known_hosts`. A Mac that is not in it is refused
    #[arg(long, value_name = "FILE")]
    pub(crate) known_hosts: Option<PathBuf>,
}

/// Flags of `host prepare`.
#[derive(Debug, Args)]
pub(crate) struct PrepareArgs {
    /// The Mac, and the user that is logged in at its screen
    #[arg(long, value_name = "USER@HOST[:PORT]")]
    pub(crate) ssh: SshAddress,

    /// Keys.
    #[command(flatten)]
    pub(crate) keys: KeyArgs,

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

/// What Macs should be like.
#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    /// The Mac, and the user that is logged in at its screen. Can be given several times, each time with the name of its Node
    #[arg(long, required = true, value_name = "[NODE=]USER@HOST[:PORT]")]
    pub(crate) ssh: Vec<Target>,

    /// Keys.
    #[command(flatten)]
    pub(crate) keys: KeyArgs,

    /// Of several Macs, so many at a time
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(crate) concurrency: u8,

    /// Of several Macs, go on with the next ones when one fails
    #[arg(long)]
    pub(crate) keep_going: bool,

    /// Name of the Node, and of the Mac, where --ssh does not have it
    #[arg(long)]
    pub(crate) node_name: Option<String>,

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

    /// People or programs use tart on this Mac themselves: the agent deletes no VMs and images but its own. A Mac with an Actions runner is
    /// a builder without this flag
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

    /// tailscale.
    #[command(flatten)]
    pub(crate) tailscale: TailscaleArgs,

    /// The Actions runner.
    #[command(flatten)]
    pub(crate) runner: RunnerArgs,
}

/// The Mac's place in a tailnet.
#[derive(Debug, Args)]
#[command(next_help_heading = "tailscale")]
pub(crate) struct TailscaleArgs {
    /// The `tailscale` program for macOS, as it is built for the command line. The Mac joins a tailnet, and the Node's address is the one
    /// that it has there. Without this flag a tailscale that was installed by it is removed
    #[arg(long, value_name = "FILE", requires = "tailscaled")]
    pub(crate) tailscale: Option<PathBuf>,

    /// The `tailscaled` program
    #[arg(long, value_name = "FILE", requires = "tailscale")]
    pub(crate) tailscaled: Option<PathBuf>,

    /// A tag of the Mac in the tailnet, such as `tag:mac`. Can be given several times. Secrets of OAuth clients need one
    #[arg(long, value_name = "TAG", requires = "tailscale", value_parser = tailscale_tag)]
    pub(crate) tailscale_tag: Vec<String>,

    /// The Mac uses the routes that others offer
    #[arg(long, requires = "tailscale")]
    pub(crate) tailscale_accept_routes: bool,

    /// A file with an auth key or the secret of an OAuth client. It is needed until the Mac has joined, and when its name or tags change. It
    /// is kept nowhere
    #[arg(long, value_name = "FILE", requires = "tailscale")]
    pub(crate) tailscale_auth_key_file: Option<PathBuf>,
}

/// The runner of GitHub Actions.
#[derive(Debug, Args)]
#[command(next_help_heading = "GitHub Actions")]
#[expect(clippy::struct_field_names, reason = "the fields have the names of the flags")]
pub(crate) struct RunnerArgs {
    /// The archive of the Actions runner for macOS. The Mac is a builder then. Without this flag a runner that was installed by it is removed
    #[arg(long, value_name = "FILE", requires = "actions_runner_url")]
    pub(crate) actions_runner: Option<PathBuf>,

    /// The organization or repository that the runner works for, such as `https://github.com/tuist`
    #[arg(long, value_name = "URL", requires = "actions_runner")]
    pub(crate) actions_runner_url: Option<String>,

    /// A further label of the runner. Can be given several times
    #[arg(long, value_name = "LABEL", requires = "actions_runner")]
    pub(crate) actions_runner_label: Vec<String>,

    /// A file with a registration token. It is needed for a Mac whose runner is not registered yet, or is to be registered anew. A runner
    /// that works is left alone
    #[arg(long, value_name = "FILE", requires = "actions_runner")]
    pub(crate) actions_runner_token_file: Option<PathBuf>,
}

/// A Mac, and perhaps the name of its Node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    /// The name of the Node.
    pub(crate) node: Option<String>,
    /// The Mac.
    pub(crate) address: SshAddress,
}

impl FromStr for Target {
    type Err = BadSshAddress;

    fn from_str(text: &str) -> Result<Self, BadSshAddress> {
        let (node, address) = match text.split_once('=') {
            Some((node, address)) => (Some(node.to_owned()), address),
            None => (None, text),
        };
        Ok(Self { node, address: address.parse()? })
    }
}

/// A tag of a tailnet.
fn tailscale_tag(text: &str) -> Result<String, String> {
    let is_right = |c: char| c.is_ascii_alphanumeric() || c == '-';
    match text.strip_prefix("tag:") {
        Some(name) if name.starts_with(|c: char| c.is_ascii_alphabetic()) && name.chars().all(is_right) => {
            Ok(text.to_owned())
        }
        _ => Err(format!("`{text}` is no tag; it is `tag:` and letters, digits and `-`")),
    }
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
        assert!(parse(&["--kubeconfig=k", "--ssh=mac-2=m1@mac-2", "--known-hosts=f"]).is_ok());
        assert!(parse(&["--kubeconfig=k", "--tailscale=t"]).is_err());
        assert!(
            parse(&["--kubeconfig=k", "--tailscale=t", "--tailscaled=d", "--tailscale-tag=mac"]).is_err()
        );
        assert!(parse(&["--kubeconfig=k", "--actions-runner=t"]).is_err());
    }

    #[test]
    fn a_mac_may_have_the_name_of_its_node_before_it() {
        let target: Target = "mac-1=m1@10.0.0.1:2222".parse().unwrap();
        assert_eq!((target.node.as_deref(), target.address.port), (Some("mac-1"), 2222));
        assert_eq!("m1@mac".parse::<Target>().unwrap().node, None);
        assert!("mac-1=mac".parse::<Target>().is_err());
    }
}
