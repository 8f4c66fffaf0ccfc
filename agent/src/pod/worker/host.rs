//! What the workers of all Pods share, in groups by use.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::apiserver::events::Events;
use crate::env::sources::InputSources;
use crate::guest::connections::GuestConnections;
use crate::image::manager::ImageManager;
use crate::metrics::Metrics;
use crate::node::start_failures::StartReports;
use crate::pod::registry::PodRegistry;
use crate::pod::sync::vm_size::Room;
use crate::state::StateDir;
use crate::tart::{Serial, Tart};
use crate::volume::HostPaths;

/// This Mac, as workers use it.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) tart: Tart,
    pub(crate) state: StateDir,
    pub(crate) guests: GuestConnections,
    pub(crate) images: ImageManager,
    pub(crate) registry: PodRegistry,
    pub(crate) vms: VmSettings,
    pub(crate) inputs: InputSettings,
    pub(crate) reports: ReportTargets,
}

/// What the agent's flags and the Node say of every VM.
#[derive(Debug)]
pub(crate) struct VmSettings {
    /// The program to start as a shim: the agent's own.
    pub(crate) shim: PathBuf,
    pub(crate) boot_limit: Duration,
    /// The file in which macOS records the addresses that it has leased.
    pub(crate) dhcp_leases: PathBuf,
    /// The serial numbers of VMs whose Pods do not choose.
    pub(crate) serial: Serial,
    /// The domain of the cluster's Services and Pods.
    pub(crate) cluster_domain: String,
    /// What the Node has for all Pods together.
    pub(crate) allocatable: Room,
    /// Whether probes and hooks may name this Mac itself as their `host`.
    pub(crate) local_probe_hosts: bool,
    pub(crate) address: watch::Receiver<Option<IpAddr>>,
}

/// Where the inputs of Pods come from.
#[derive(Debug, Clone)]
pub(crate) struct InputSettings {
    pub(crate) sources: InputSources,
    pub(crate) host_paths: Arc<HostPaths>,
}

/// Where workers report to, besides the status of their Pods.
#[derive(Debug, Clone)]
pub(crate) struct ReportTargets {
    pub(crate) events: Events,
    pub(crate) metrics: Metrics,
    /// Starts of VMs, for the Node's conditions.
    pub(crate) starts: StartReports,
    /// How long a VM may be without an address before the Node is to blame.
    pub(crate) address_patience: Duration,
}
