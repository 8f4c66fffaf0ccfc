//! The agent: all its tasks, from start to SIGTERM.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use kube::{Api, Client};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::apiserver::events::Events;
use crate::cli::{AgentArgs, ListenAddress, NodeArgs};
use crate::env::sources::InputSources;
use crate::eviction::EvictionManager;
use crate::fs::file::FileError;
use crate::gc::collector;
use crate::gc::observer::Observer;
use crate::identity::{self, Identity, IdentityError};
use crate::image::ImageStore;
use crate::image::gc::{BadWatermarks, DiskSpace, ImageCollector};
use crate::image::manager::ImageManager;
use crate::image::prepull::PrePull;
use crate::image::pull_socket;
use crate::metrics::{self, Metrics};
use crate::names::{BadNodeName, NodeName};
use crate::node::address::{AddressError, AddressSource};
use crate::node::capacity::{BadReservation, CapacityOverrides, Machine, Resources};
use crate::node::controller;
use crate::node::health::{self, HealthSources, HostWatch};
use crate::node::lease::{self, Heartbeat};
use crate::node::lease_owner::{self, ForeignLease};
use crate::node::node_info::NodeInfos;
use crate::node::object::NodeConfig;
use crate::node::signals::SignalSources;
use crate::node::start_failures::StartReports;
use crate::os::availability::volume;
use crate::os::host::HostFacts;
use crate::pod::manager::{Manager, ManagerError};
use crate::pod::registry::PodRegistry;
use crate::pod::registry::active::ActiveWorkers;
use crate::pod::registry::slots::VmSlots;
use crate::pod::worker::Host;
use crate::state::{StateDir, TartHomeError, TartHomeOwner};
use crate::tart::{self, Tart};
use crate::volume::HostPaths;

/// Why the agent could not start or go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AgentError {
    /// The agent has no identity, or no longer.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The credentials in the kubeconfig cannot be used.
    #[error("cannot use the credentials in the kubeconfig")]
    Client(#[source] Box<kube::Error>),
    /// This machine's name is not one for a Node.
    #[error("this machine's name cannot be a Node's; give one with --node-name")]
    NodeName(#[from] BadNodeName),
    /// There is no address to register with.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// Nothing of the machine is left for Pods.
    #[error(transparent)]
    Reservation(#[from] BadReservation),
    /// Images could not be collected by these rules.
    #[error(transparent)]
    Watermarks(#[from] BadWatermarks),
    /// The port for metrics cannot be had.
    #[error("cannot listen at {0}; choose another address with --metrics-bind-address")]
    Listen(SocketAddr, #[source] io::Error),
    /// Another agent has the Node.
    #[error(transparent)]
    ForeignLease(#[from] ForeignLease),
    /// The state directory cannot be used.
    #[error("cannot use the state directory; name another one with --state-dir")]
    State(#[from] FileError),
    /// Another agent runs.
    #[error("another tart-kubelet uses the state directory {}", .0.display())]
    Twice(PathBuf),
    /// Another agent has tart's home.
    #[error(transparent)]
    TartHomeOwner(#[from] TartHomeError),
    /// Something that every process can do failed.
    #[error("cannot start")]
    Start(#[source] io::Error),
    /// The Pods can no longer be managed.
    #[error("cannot manage Pods")]
    Manager(#[from] ManagerError),
}

/// Runs the agent until it is told to end. VMs and the Lease are left alone: the next agent takes them over.
pub(crate) async fn run(args: AgentArgs) -> Result<(), AgentError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(AgentError::Start)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(AgentError::Start)?;
    let (health, health_seen) = watch::channel(None);
    let metrics = Metrics::new(health_seen.clone());
    let state = StateDir::open(&args.state_dir)?;
    let Some(_lock) = state.lock()? else { return Err(AgentError::Twice(args.state_dir)) };

    let tart = Tart::new(&args.tart_binary);
    tokio::spawn(tart::kill_stale_calls(tart.home().to_owned()));
    let config = node_config(&args, &tart).await?;
    let claim = TartHomeOwner::take(&tart, &config.name)?;
    let ImageManager { images, disk_space } = open_images(&args, &tart, &state, &metrics)?;
    let source = args.node_ip.map_or_else(|| args.host.address_source(), AddressSource::Given);
    let address = source.first().await?;
    // A state directory that was copied to another Mac must not make two agents one.
    let instance = format!("{}-{}", config.facts.machine_id, state.instance()?);
    // Somebody may have to approve it, so it can take days.
    let identity = tokio::select! {
        identity = Identity::establish(credentials(&args, &state), config.name.clone()) => identity?,
        _ = terminate.recv() => return Ok(()),
        _ = interrupt.recv() => return Ok(()),
    };
    let access = identity.access();
    claim.join(access.cluster())?;
    let client = metrics.client(&access).map_err(|error| AgentError::Client(Box::new(error)))?;
    info!(node = %config.name, version = env!("CARGO_PKG_VERSION"), server = %access.server(), "starting");

    let gauges = SignalSources::of(&state, &tart, &config.facts, &args.host.dhcp_leases);
    let host_seen = HostWatch {
        gauges: gauges.clone(),
        thresholds: args.host.eviction_hard.clone(),
        period: args.host.eviction_pressure_transition_period,
        source,
        address,
        metrics: metrics.clone(),
    }
    .spawn()
    .map_err(AgentError::Start)?;
    let (starts, starts_seen) = StartReports::new();
    let (tart_health, tart_seen) = watch::channel(None);
    let sources = HealthSources {
        tart: tart_seen,
        starts: starts_seen,
        host: host_seen,
        images: images.local_images(),
    };

    let addresses = health::addresses(health_seen.clone());
    let events = Events::new(client.clone(), &config.name);
    let host = Arc::new(Host {
        program: std::env::current_exe().map_err(AgentError::Start)?,
        images: images.clone(),
        address: addresses.clone(),
        events: events.clone(),
        tart: tart.clone(),
        starts,
        address_patience: args.host.vm_address_timeout,
        boot_limit: args.host.vm_boot_timeout,
        dhcp_leases: args.host.dhcp_leases.clone(),
        world: InputSources::new(&client, Arc::new(config.resources.allocatable.clone()), addresses),
        host_paths: Arc::new(HostPaths::new(args.allowed_host_path.clone(), state.path(), tart.home())),
        cluster_domain: args.host.cluster_domain.clone(),
        metrics: metrics.clone(),
        slots: VmSlots::new(args.max_pods.try_into().unwrap_or(usize::MAX)),
        roster: PodRegistry::default(),
        disk_space: disk_space.clone(),
        at_work: ActiveWorkers::default(),
    });
    let thresholds = args.host.eviction_hard.clone();
    let eviction = EvictionManager {
        pods: host.roster.clone(),
        disk_space: disk_space.clone(),
        health: health_seen.clone(),
        events: events.clone(),
        tart: tart.clone(),
        signals: gauges,
        thresholds,
        state: state.clone(),
    };
    let collector = vm_collector(&args, &host, &state, &config.name, &client);
    let server = listen(args.host.metrics_bind_address, metrics.clone()).await?;
    let work = async {
        // Before anything is done in the Node's name.
        let leases = Api::namespaced(client.clone(), lease::NAMESPACE);
        let claimed = lease_owner::wait_for_none(&leases, &config.name, &instance).await?;
        let (uid, uid_seen) = watch::channel(None);
        let heart = Heartbeat { node: config.name.clone(), instance, claimed, uid: uid_seen, metrics };
        let rival = lease::spawn(heart, access).map_err(AgentError::Start)?;
        let (node, node_seen) = watch::channel(None);
        let manager = ImageManager { images: host.images.clone(), disk_space };
        let prepull = PrePull { manager, events: events.clone(), node: node_seen.clone() };
        let offers = NodeInfos::new(&config, Api::all(client.clone()), node_seen);
        let manager = Manager::new(host, client.clone(), offers, state);
        let onlookers = controller::NodeObservers { uid, node };
        tokio::select! {
            result = manager.run() => result?,
            () = eviction.run() => {}
            () = prepull.follow() => {}
            () = controller::keep(client.clone(), config, health_seen, onlookers, events) => {}
            () = collect(collector) => {}
            Ok(rival) = rival => return Err(AgentError::ForeignLease(rival)),
        }
        Ok(())
    };
    tokio::select! {
        result = work => result?,
        // On a task of its own: whatever holds up the others must not cost the Node its identity.
        Ok(lost) = tokio::spawn(identity.keep()) => return Err(lost.into()),
        () = health::watch_tart(tart, tart_health) => {}
        () = health::follow(sources, health) => {}
        () = images.clone().watch() => {}
        () = server => {}
        () = end(terminate, interrupt, &images) => {}
    }
    Ok(())
}

/// Waits until the agent is told to end, and has it leave in order.
async fn end(mut terminate: Signal, mut interrupt: Signal, images: &ImageStore) {
    tokio::select! {
        _ = terminate.recv() => info!("SIGTERM: ending; VMs run on"),
        _ = interrupt.recv() => info!("SIGINT: ending; VMs run on"),
    }
    // While Pods still wait for their images: a pull that nobody wants leaves nothing behind.
    images.stop_pulls().await;
}

/// Where the agent's credentials come from.
fn credentials(args: &AgentArgs, state: &StateDir) -> identity::CredentialSources {
    identity::CredentialSources {
        kubeconfig: args.kubeconfig.clone(),
        bootstrap: args.bootstrap_kubeconfig.clone(),
        pki: state.pki_path(),
    }
}

/// What collects the VMs of Pods that are gone, where that is not forbidden.
fn vm_collector(
    args: &AgentArgs,
    host: &Host,
    state: &StateDir,
    node: &NodeName,
    client: &Client,
) -> Option<collector::OrphanCollector> {
    if args.disable_vm_gc {
        info!("--disable-vm-gc: VMs and images are not collected, whatever happens");
        return None;
    }
    let observer = Observer {
        tart: host.tart.clone(),
        state: state.clone(),
        images: Some(host.images.clone()),
        pods: Api::all(client.clone()),
        node: node.clone(),
        min_age: args.vm_gc_min_age,
    };
    let (at_work, metrics) = (host.at_work.clone(), host.metrics.clone());
    Some(collector::OrphanCollector::new(observer, at_work, metrics, args.vm_gc_interval))
}

/// Collects VMs for as long as it is polled.
async fn collect(collector: Option<collector::OrphanCollector>) {
    if let Some(collector) = collector {
        // On a task of its own: what takes long to delete holds up nobody.
        if let Err(error) = tokio::spawn(collector.run()).await {
            warn!(%error, "the collector of VMs has died; nothing more is collected");
        }
    }
    std::future::pending::<()>().await;
}

/// Serves health and metrics, for as long as the returned future is polled.
async fn listen(
    ListenAddress(address): ListenAddress,
    metrics: Metrics,
) -> Result<impl Future<Output = ()>, AgentError> {
    let server = match address {
        Some(address) => {
            let failed = |error| AgentError::Listen(address, error);
            let (bound, server) = metrics::serve(address, metrics).await.map_err(failed)?;
            info!(address = %bound, "serving health and metrics");
            Some(server)
        }
        None => None,
    };
    Ok(async move {
        match server {
            Some(server) => server.await,
            None => std::future::pending().await,
        }
    })
}

/// The images of this host, and who collects them, unless nothing may be collected. From here on they can be asked for by hand, before
/// anybody has let this Node in.
fn open_images(
    args: &AgentArgs,
    tart: &Tart,
    state: &StateDir,
    metrics: &Metrics,
) -> Result<ImageManager, AgentError> {
    let (policy, pulls) = (args.images.gc_policy()?, args.images.max_parallel_image_pulls.into());
    let images = Arc::new(ImageStore::open(tart.clone(), state.clone(), pulls, metrics.clone())?);
    images.offer_partials();
    let collector =
        || ImageCollector::new(images.clone(), tart.clone(), state.clone(), policy, metrics.clone());
    let disk_space = DiskSpace::new((!args.disable_vm_gc).then(|| Arc::new(collector())));
    let manager = ImageManager { images, disk_space };
    let (door, served) = (state.door_path(), manager.clone());
    tokio::spawn(async move { pull_socket::serve(&door, served).await });
    Ok(manager)
}

async fn node_config(args: &AgentArgs, tart: &Tart) -> Result<NodeConfig, AgentError> {
    let facts = HostFacts::discover().await;
    let name = args.node_name(&facts.hostname)?;
    if args.max_pods > 2 {
        warn!("--max-pods {}: macOS runs two VMs at most, further Pods will fail to start", args.max_pods);
    }
    let machine = Machine {
        cores: facts.cores.try_into().unwrap_or(u64::MAX),
        memory: facts.memory,
        storage: volume(tart.home()).map(|volume| volume.total),
    };
    let NodeArgs { host_cpu, host_memory_mb, kube_reserved, eviction_hard, .. } = &args.host;
    let wishes = CapacityOverrides { cores: *host_cpu, memory_mib: *host_memory_mb, pods: args.max_pods };
    Ok(NodeConfig {
        name,
        provider_id: args.provider_id.clone().filter(|id| !id.is_empty()),
        labels: args.node_labels.clone(),
        taints: args.host.register_with_taints.clone(),
        resources: Resources::of(machine, *kube_reserved, eviction_hard, wishes)?,
        facts,
    })
}
