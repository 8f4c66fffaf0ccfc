//! Flags of `manager`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{ArgAction, Args};
use jiff::SignedDuration;
use kube::{Api, Client};

use super::{tailscale_tag, version};
use crate::artifact::Artifact;
use crate::error_chain::chain;
use crate::github::Github;
use crate::host::firewall::{AllowedDestination, FirewallConfig};
use crate::host::{NodeExporter, Tailscale, Tart};
use crate::machine::{FleetConfig, Limits};
use crate::manager::{ManagerConfig, Reclaim};
use crate::names::Zone;
use crate::pool::{MacListPool, Machines, Pool, PoolPrefix, ScalewayPool};
use crate::reclaim::ReclaimSettings;
use crate::scaleway::{RetryPolicy, Scaleway, ScalewayConfig};

/// Flags of `manager`.
#[derive(Debug, Args)]
pub(crate) struct ManagerArgs {
    /// The kubeconfig of the API server; without it the Pod's own service account, or KUBECONFIG
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// Watch the machines of this namespace only, and keep the Lease of the leader there
    #[arg(long)]
    pub(crate) namespace: Option<String>,

    /// Where `/metrics` is served
    #[arg(long, default_value = "0.0.0.0:8080")]
    pub(crate) metrics_bind_address: SocketAddr,

    /// Where `/healthz` and `/readyz` are served
    #[arg(long, default_value = "0.0.0.0:8081")]
    pub(crate) health_probe_bind_address: SocketAddr,

    /// Act only while holding the Lease of the leader
    #[arg(long, default_value_t = true, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub(crate) leader_elect: bool,

    /// The namespace of the Secrets with SSH keys of fleets and credentials of hosts
    #[arg(long, default_value = "default")]
    pub(crate) secrets_namespace: String,

    /// Where agents reach the API server; without it what the `ConfigMap` kube-public/cluster-info says
    #[arg(
        long,
        env = "CAPI_TARTKUBELET_API_SERVER_URL",
        value_name = "URL",
        help_heading = "The agents and their Nodes"
    )]
    pub(crate) api_server_url: Option<String>,

    /// The agent's program for macOS
    #[arg(
        long,
        default_value = "/opt/tart-kubelet/tart-kubelet-darwin-arm64",
        value_name = "FILE",
        help_heading = "The agents and their Nodes"
    )]
    pub(crate) tartkubelet_binary_path: PathBuf,

    /// The tart program on the hosts
    #[arg(
        long,
        default_value = "/opt/homebrew/bin/tart",
        conflicts_with = "tart_tarball_path",
        help_heading = "The Macs"
    )]
    pub(crate) tart_binary: String,

    /// An archive of tart.app to be installed. VMs that run keep the tart that they have
    #[arg(long, value_name = "FILE", requires = "tart_version", help_heading = "The Macs")]
    pub(crate) tart_tarball_path: Option<PathBuf>,

    /// The version in the archive
    #[arg(long, requires = "tart_tarball_path", value_parser = version, help_heading = "The Macs")]
    pub(crate) tart_version: Option<String>,

    /// The `node_exporter` program for macOS. Without it one that was installed before is removed
    #[arg(long, value_name = "FILE", help_heading = "The Macs")]
    pub(crate) node_exporter_binary_path: Option<PathBuf>,

    /// Where `node_exporter` listens on the hosts
    #[arg(
        long,
        default_value = "127.0.0.1:9100",
        requires = "node_exporter_binary_path",
        help_heading = "The Macs"
    )]
    pub(crate) node_exporter_listen: String,

    /// The `tailscale` program for macOS, as it is built for the command line. Hosts join a tailnet, and their Nodes have their addresses there.
    /// Without this flag a tailscale that was installed by it is removed
    #[arg(long, value_name = "FILE", requires_all = ["tailscaled_binary_path", "tailscale_auth_key_secret_name"], help_heading = "tailscale")]
    pub(crate) tailscale_binary_path: Option<PathBuf>,

    /// The `tailscaled` program
    #[arg(long, value_name = "FILE", requires = "tailscale_binary_path", help_heading = "tailscale")]
    pub(crate) tailscaled_binary_path: Option<PathBuf>,

    /// The Secret in --secrets-namespace whose `auth-key` is an auth key or the secret of an OAuth client
    #[arg(long, value_name = "SECRET", requires = "tailscale_binary_path", help_heading = "tailscale")]
    pub(crate) tailscale_auth_key_secret_name: Option<String>,

    /// Tags of hosts in the tailnet, with commas between them. Secrets of OAuth clients need one
    #[arg(long, value_delimiter = ',', requires = "tailscale_binary_path", value_parser = tailscale_tag, help_heading = "tailscale")]
    pub(crate) tailscale_tags: Vec<String>,

    /// Hosts use the routes that others in the tailnet offer
    #[arg(long, requires = "tailscale_binary_path", help_heading = "tailscale")]
    pub(crate) tailscale_accept_routes: bool,

    /// The archive of the Actions runner for macOS, for machines whose `spec.ghActionsRunner` names the Secret of a GitHub App. Without this flag a
    /// runner that was installed by it is removed
    #[arg(long, value_name = "FILE", help_heading = "GitHub Actions")]
    pub(crate) actions_runner_path: Option<PathBuf>,

    /// Where GitHub's API is
    #[arg(
        long,
        default_value = "https://api.github.com",
        value_name = "URL",
        help_heading = "GitHub Actions"
    )]
    pub(crate) github_api_url: String,

    /// Cores that Nodes offer, where the machine does not say; the agent's own choice when absent
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..), help_heading = "The agents and their Nodes")]
    pub(crate) tartkubelet_host_cpu: Option<u32>,

    /// Memory that Nodes offer, in MiB, where the machine does not say; the agent's own choice when absent
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..), help_heading = "The agents and their Nodes")]
    pub(crate) tartkubelet_host_memory_mb: Option<u32>,

    /// How many VMs may run at once on a host; the agent's own choice when absent
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..), help_heading = "The agents and their Nodes")]
    pub(crate) tartkubelet_max_pods: Option<u32>,

    /// A further flag for the agents, such as `--agent-flag=--allowed-host-path=/opt/cache`. Can be given several times
    #[arg(
        long,
        value_name = "FLAG",
        allow_hyphen_values = true,
        help_heading = "The agents and their Nodes"
    )]
    pub(crate) agent_flag: Vec<String>,

    /// A private destination that guests may reach, such as `tcp 10.1.2.3 443` or `any 10.4.0.0/16`. Can be given several times. All other
    /// private addresses are closed to guests
    #[arg(long, value_name = "PROTOCOL NETWORK [PORTS]", help_heading = "The Macs")]
    pub(crate) allow_vm_destination: Vec<AllowedDestination>,

    /// For how many seconds macOS lends an address to a VM
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u32).range(60..=86400), help_heading = "The Macs")]
    pub(crate) dhcp_lease_time: u32,

    /// Failed rolls of one configuration before a machine is not rolled to it any more; 0 for never
    #[arg(long, default_value_t = 5, help_heading = "Attempts")]
    pub(crate) tartkubelet_max_update_attempts: u32,

    /// When a machine that is not rolled any more is tried again; 0 for never
    #[arg(long, default_value = "30m", value_parser = duration, help_heading = "Attempts")]
    pub(crate) tartkubelet_terminal_retry_after: Duration,

    /// For how long a Node has to stay ready after a roll before other machines follow. A Node whose agent says nothing counts as ready for
    /// 40 seconds
    #[arg(long, default_value = "1m", value_parser = duration, help_heading = "Attempts")]
    pub(crate) roll_min_ready_time: Duration,

    /// Failed bootstraps before a host is restarted; 0 for never
    #[arg(long, default_value_t = 3, help_heading = "Attempts")]
    pub(crate) bootstrap_reboot_after: u32,

    /// Failed bootstraps before a host is put into quarantine and another one claimed; 0 for never
    #[arg(long, default_value_t = 8, help_heading = "Attempts")]
    pub(crate) bootstrap_max_attempts: u32,

    /// How many machines are worked on at once, and how many are rolled at once
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256), help_heading = "Attempts")]
    pub(crate) machine_max_concurrent_reconciles: u16,

    /// What the names of free hosts begin with, where the machine does not say
    #[arg(long, default_value = "", help_heading = "The pool")]
    pub(crate) default_adopt_pool_prefix: String,

    /// Macs of one's own as the pool: the Secret in --secrets-namespace that lists them. Without it the pool is Scaleway's, by `SCW_SECRET_KEY` and
    /// `SCW_DEFAULT_PROJECT_ID`
    #[arg(long, value_name = "SECRET", help_heading = "The pool")]
    pub(crate) mac_list: Option<String>,

    /// Zones in which hosts that no machine has are looked for, beside those of all machines. They are looked for only with
    /// --default-adopt-pool-prefix
    #[arg(long, value_delimiter = ',', default_value = "fr-par-1", value_parser = zone, help_heading = "The pool")]
    pub(crate) orphan_reclaim_zones: Vec<Zone>,

    /// Hosts that no machine has and whose names begin so are given back to the pool; when empty, they are only counted
    #[arg(long, default_value = "", help_heading = "The pool")]
    pub(crate) orphan_reclaim_claim_name_prefix: String,

    /// How often they are looked for
    #[arg(long, default_value = "15m", value_parser = interval, help_heading = "The pool")]
    pub(crate) orphan_reclaim_interval: Duration,
}

fn zone(text: &str) -> Result<Zone, String> {
    Zone::parse(text).map_err(|error| error.to_string())
}

fn interval(text: &str) -> Result<Duration, String> {
    let parsed = duration(text)?;
    if parsed.is_zero() { Err("must be greater than 0".to_owned()) } else { Ok(parsed) }
}

fn duration(text: &str) -> Result<Duration, String> {
    let parsed = if text == "0" { Ok(SignedDuration::ZERO) } else { text.parse::<SignedDuration>() };
    let parsed = parsed.map_err(|error| error.to_string())?;
    Duration::try_from(parsed).map_err(|_| "must not be negative".to_owned())
}

impl ManagerArgs {
    /// The pool that hosts come from.
    pub(crate) fn pool(&self, client: &Client, machines: Arc<dyn Machines>) -> Result<Arc<dyn Pool>, String> {
        if let Some(list) = &self.mac_list {
            let secrets = Api::namespaced(client.clone(), &self.secrets_namespace);
            return Ok(Arc::new(MacListPool::new(secrets, list, machines)));
        }
        let config = ScalewayConfig::from_env().map_err(|error| chain(&error))?;
        let scaleway = Scaleway::new(config, RetryPolicy::default()).map_err(|error| chain(&error))?;
        Ok(Arc::new(ScalewayPool::new(scaleway, machines)))
    }

    /// Reads everything that hosts get.
    pub(crate) fn config(&self) -> Result<ManagerConfig, String> {
        let artifact = |path| Artifact::read(path).map_err(|error| chain(&error));
        let tart = match (&self.tart_tarball_path, &self.tart_version) {
            (Some(archive), Some(version)) => {
                Tart::Archive { archive: artifact(archive)?, version: version.clone() }
            }
            _ => Tart::Installed(self.tart_binary.clone()),
        };
        let node_exporter = match &self.node_exporter_binary_path {
            Some(program) => {
                Some(NodeExporter { program: artifact(program)?, listen: self.node_exporter_listen.clone() })
            }
            None => None,
        };
        let tailscale = match (&self.tailscale_binary_path, &self.tailscaled_binary_path) {
            (Some(tailscale), Some(tailscaled)) => Some(Tailscale {
                tailscale: artifact(tailscale)?,
                tailscaled: artifact(tailscaled)?,
                tags: self.tailscale_tags.clone(),
                accept_routes: self.tailscale_accept_routes,
            }),
            _ => None,
        };
        let default_prefix = PoolPrefix::new(&self.default_adopt_pool_prefix);
        let reclaim = default_prefix.clone().map(|prefix| Reclaim {
            settings: ReclaimSettings {
                prefix,
                zones: self.orphan_reclaim_zones.clone(),
                claim_name_prefix: Some(self.orphan_reclaim_claim_name_prefix.clone())
                    .filter(|name| !name.is_empty()),
            },
            interval: self.orphan_reclaim_interval,
        });
        Ok(ManagerConfig {
            fleet: FleetConfig {
                agent: artifact(&self.tartkubelet_binary_path)?,
                tart,
                firewall: FirewallConfig {
                    allowed: self.allow_vm_destination.clone(),
                    ..FirewallConfig::default()
                },
                dhcp_lease_seconds: self.dhcp_lease_time,
                node_exporter,
                tailscale,
                actions_runner: self.actions_runner_path.as_deref().map(artifact).transpose()?,
                host_cpu: self.tartkubelet_host_cpu,
                host_memory_mb: self.tartkubelet_host_memory_mb,
                max_pods: self.tartkubelet_max_pods,
                agent_flags: self.agent_flag.clone(),
            },
            github: Github::new(&self.github_api_url).map_err(|error| chain(&error))?,
            tailscale_auth_key: self.tailscale_auth_key_secret_name.clone(),
            limits: Limits {
                reboot_after: self.bootstrap_reboot_after,
                bootstrap_attempts: self.bootstrap_max_attempts,
                update_attempts: self.tartkubelet_max_update_attempts,
                terminal_retry_after: self.tartkubelet_terminal_retry_after,
                roll_min_ready: self.roll_min_ready_time,
            },
            default_prefix,
            reclaim,
            namespace: self.namespace.clone(),
            max_concurrent: self.machine_max_concurrent_reconciles,
            secrets_namespace: self.secrets_namespace.clone(),
            api_server_url: self.api_server_url.clone(),
            leader_elect: self.leader_elect,
            metrics_address: self.metrics_bind_address,
            health_address: self.health_probe_bind_address,
        })
    }
}
