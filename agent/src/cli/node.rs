//! Flags for the machine and its Node.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::duration;
use crate::node::address::AddressSource;
use crate::node::capacity::{self, Reserved};
use crate::node::signals::thresholds::{self, Thresholds};
use crate::node::taints::{self, Taints};
use crate::tart::Serial;

/// Where the Node's address comes from when none is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum NodeIpSource {
    /// The first routable IPv4 address of this machine; never that of a bridge to VMs
    Auto,
    /// The address that Tailscale gave this machine
    Tailscale,
}

/// Flags for the machine and its Node.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "The agent and its Node")]
pub(crate) struct NodeArgs {
    /// Where the Node's address comes from when --node-ip is absent
    #[arg(long, env = "TART_KUBELET_NODE_IP_SOURCE", value_enum, default_value_t = NodeIpSource::Auto)]
    pub(crate) node_ip_source: NodeIpSource,

    /// The tailscale program, for --node-ip-source=tailscale
    #[arg(long, default_value = "/usr/local/bin/tailscale")]
    pub(crate) tailscale_binary: PathBuf,

    /// Taints for the Node when it is created, `key=value:effect` with commas between them; empty for none
    #[arg(long, default_value = taints::DEFAULT, value_parser = taints::parse)]
    pub(crate) register_with_taints: Taints,

    /// Cores that Pods may have; all of this machine less --kube-reserved when absent
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024), help_heading = "Resources")]
    pub(crate) host_cpu: Option<u32>,

    /// Memory that Pods may have, in MiB; all of this machine less --kube-reserved and what --eviction-hard keeps free when absent
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..), help_heading = "Resources")]
    pub(crate) host_memory_mb: Option<u32>,

    /// Reserved for macOS and the agent: `cpu=…`, `memory=…` and `ephemeral-storage=…` with commas between them
    #[arg(long, default_value = capacity::RESERVED, value_parser = Reserved::parse, help_heading = "Resources")]
    pub(crate) kube_reserved: Reserved,

    /// Eviction thresholds: `memory.available`, `nodefs.available` (the state directory's volume), `imagefs.available` (the volume of
    /// tart's VMs and images) and `pid.available`, each with `<` and an amount or a percentage. Below one, the Node has the pressure
    /// condition. Below a disk threshold, the agent deletes images, and when none may go it evicts Pods one after the other
    #[arg(long, default_value = thresholds::DEFAULT, value_parser = Thresholds::parse, help_heading = "Resources")]
    pub(crate) eviction_hard: Thresholds,

    /// How long a signal must stay above its threshold before the pressure condition ends
    #[arg(long, default_value = "5m", value_parser = duration::parse, help_heading = "Resources")]
    pub(crate) eviction_pressure_transition_period: Duration,

    /// The file of macOS' DHCP leases. The Node warns when few addresses are left, and the agent believes no guest that claims another's
    #[arg(long, default_value = "/var/db/dhcpd_leases", help_heading = "VMs")]
    pub(crate) dhcp_leases: PathBuf,

    /// How long a VM may be without an address before it counts as failed: the Node is not ready then, if few addresses are left or a VM of
    /// another image fails, too
    #[arg(long, default_value = "5m", value_parser = duration::parse, help_heading = "VMs")]
    pub(crate) vm_address_timeout: Duration,

    /// How long a guest may take to get an address, and then its guest agent to answer, before the VM fails
    #[arg(long, default_value = "15m", value_parser = duration::parse, help_heading = "VMs")]
    pub(crate) vm_boot_timeout: Duration,

    /// How long the agent's tasks or the disk of its state may stand still before the agent lets the Node's Lease expire
    #[arg(long, default_value = "3m", value_parser = stall_timeout)]
    pub(crate) stall_timeout: Duration,

    /// The serial numbers of VMs: `random` for one of its own for each VM, `image` for that of its image. A Pod chooses with the annotation
    /// `tart-kubelet.tuist.dev/serial`. Some versions of macOS greet a new serial number with their Setup Assistant
    #[arg(long, default_value = "random", value_parser = <Serial as std::str::FromStr>::from_str, value_name = "random|image", help_heading = "VMs")]
    pub(crate) vm_serial: Serial,

    /// Domain of the cluster, for the full names of Pods with a subdomain
    #[arg(long, default_value = "cluster.local", help_heading = "Pods")]
    pub(crate) cluster_domain: String,

    /// Where the agent serves `/healthz`, `/readyz` and `/metrics`, without encryption and authentication; empty for nowhere
    #[arg(long, default_value = "127.0.0.1:10248", value_parser = listen_address)]
    pub(crate) metrics_bind_address: ListenAddress,

    /// Features of the kubelet that the Node declares, `Name=true` or `Name=false`. With `ExtendWebSocketsToKubelet` the API server (1.36 and
    /// later) passes kubectl's `WebSockets` on to the agent; without it, it translates them to SPDY
    #[arg(long, default_value = "ExtendWebSocketsToKubelet=true", value_parser = feature_gates, help_heading = "The kubelet API")]
    pub(crate) feature_gates: FeatureGates,
}

/// The features that are on, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FeatureGates(pub(crate) Vec<String>);

fn feature_gates(text: &str) -> Result<FeatureGates, String> {
    const WEB_SOCKETS: &str = "ExtendWebSocketsToKubelet";
    let mut web_sockets = true;
    for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
        web_sockets = match item.split_once('=') {
            Some((WEB_SOCKETS, "true")) => true,
            Some((WEB_SOCKETS, "false")) => false,
            _ => return Err(format!("`{item}` is neither `{WEB_SOCKETS}=true` nor `{WEB_SOCKETS}=false`")),
        };
    }
    Ok(FeatureGates(web_sockets.then(|| WEB_SOCKETS.to_owned()).into_iter().collect()))
}

/// An address to listen at, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ListenAddress(pub(crate) Option<SocketAddr>);

fn listen_address(text: &str) -> Result<ListenAddress, String> {
    if text.is_empty() {
        return Ok(ListenAddress(None));
    }
    let address = text.parse().map_err(|_| format!("`{text}` is not `address:port`"))?;
    Ok(ListenAddress(Some(address)))
}

/// The agent asks the disk every ten seconds, so that a shorter time would be over on a healthy Mac.
fn stall_timeout(text: &str) -> Result<Duration, String> {
    let timeout = duration::parse(text).map_err(|error| error.to_string())?;
    if timeout < Duration::from_secs(20) { Err("must be at least 20s".to_owned()) } else { Ok(timeout) }
}

impl NodeArgs {
    /// Where the Node's address comes from, when none is given.
    pub(crate) fn address_source(&self) -> AddressSource {
        match self.node_ip_source {
            NodeIpSource::Auto => AddressSource::Auto,
            NodeIpSource::Tailscale => AddressSource::Tailscale(self.tailscale_binary.clone()),
        }
    }
}
