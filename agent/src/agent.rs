//! The agent: all its tasks, from start to SIGTERM.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;

use kube::{Api, Client};
use tokio::runtime::Handle;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::api::server::{self, ApiServer};
use crate::api::{ApiContext, ClientCa, ClientCaError, ForwardPlaces, KubeletSettings, Sampler, local};
use crate::apiserver::events::Events;
use crate::cli::{AgentArgs, ListenAddress, NodeArgs};
use crate::env::sources::InputSources;
use crate::error_chain::chain;
use crate::eviction::EvictionManager;
use crate::fs::file::FileError;
use crate::gc::collector::OrphanCollector;
use crate::gc::observer::Observer;
use crate::guest::connections::GuestConnections;
use crate::identity::serving::{ServingCertificate, ServingError};
use crate::identity::{ApiAccess, CredentialSources, Identity, IdentityError};
use crate::image::gc::{BadWatermarks, DiskSpace, ImageCollector};
use crate::image::manager::ImageManager;
use crate::image::prepull::PrePull;
use crate::image::{ImageStore, pull_socket};
use crate::metrics::Metrics;
use crate::names::BadNodeName;
use crate::node::address::{AddressError, AddressSource};
use crate::node::capacity::{BadReservation, CapacityOverrides, Machine, Resources};
use crate::node::controller;
use crate::node::gui_session;
use crate::node::health::{self, HealthSources, HostWatch, NodeHealth};
use crate::node::lease::owner::{self, ForeignLease};
use crate::node::lease::{self, Heartbeat};
use crate::node::node_info::NodeInfos;
use crate::node::object::{NodeConfig, OwnPorts};
use crate::node::pulse::Pulse;
use crate::node::signals::SignalSources;
use crate::node::start_failures::StartReports;
use crate::os::availability::volume;
use crate::os::backup;
use crate::os::host::HostFacts;
use crate::os::power_assertion;
use crate::os::privacy::{self, AccessError};
use crate::pod::manager::{Manager, ManagerError};
use crate::pod::registry::PodRegistry;
use crate::pod::sync::vm_size::Room;
use crate::pod::worker::host::{Host, InputSettings, ReportTargets, VmSettings};
use crate::state::{LeaseRecord, StateDir, TartHomeError, TartHomeOwner, TartHomeRecordError};
use crate::tart::{self, HomeError, Tart};
use crate::volume::HostPaths;

/// Why the agent could not start or go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AgentError {
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error("cannot use the credentials in the kubeconfig")]
    Client(#[source] Box<kube::Error>),
    #[error("this machine's name cannot be a Node's; give one with --node-name")]
    NodeName(#[from] BadNodeName),
    #[error(transparent)]
    Address(#[from] AddressError),
    #[error(transparent)]
    Reservation(#[from] BadReservation),
    #[error(transparent)]
    Watermarks(#[from] BadWatermarks),
    #[error("cannot listen at {0}; choose another address with --metrics-bind-address")]
    Listen(SocketAddr, #[source] io::Error),
    #[error(
        "cannot listen at {0} for the kubelet API; choose another port with --port, or another address with --address"
    )]
    ListenApi(SocketAddr, #[source] io::Error),
    /// A Pod of an earlier agent has the port.
    #[error("the Pod {pod} has the host port {port}; delete the Pod, or choose another port with --port")]
    PortOfPod { pod: String, port: u16 },
    #[error(transparent)]
    ClientCa(#[from] ClientCaError),
    #[error(transparent)]
    Serving(#[from] ServingError),
    #[error(transparent)]
    ForeignLease(#[from] ForeignLease),
    #[error(
        "cannot use the state directory; make it for this user, e.g. with `sudo install -d -m 0700 -o \"$(id -un)\" DIRECTORY`, or name \
         another one with --state-dir"
    )]
    State(#[from] FileError),
    #[error("another tart-kubelet uses the state directory {}", .0.display())]
    Twice(PathBuf),
    #[error(transparent)]
    TartHome(#[from] HomeError),
    #[error(transparent)]
    Access(#[from] AccessError),
    #[error(transparent)]
    TartHomeOwner(#[from] TartHomeError),
    #[error(transparent)]
    TartHomeRecord(#[from] TartHomeRecordError),
    /// The operating system refused something that every process can do.
    #[error("cannot start")]
    Start(#[source] io::Error),
    #[error("cannot manage Pods")]
    Manager(#[from] ManagerError),
}

/// The parts of the agent once the API server knows it.
struct Agent {
    args: AgentArgs,
    state: StateDir,
    tart: Tart,
    node: NodeConfig,
    images: ImageManager,
    metrics: Metrics,
    access: ApiAccess,
    client: Client,
    /// A connection of its own for what Pods name: no Pod can take the requests of another part of the agent.
    object_client: Client,
    events: Events,
    health: watch::Receiver<Option<NodeHealth>>,
}

/// Has Time Machine leave out the state directory, which has the Secrets of Pods in it.
fn exclude_from_backups(state: &StateDir) {
    if let Err(error) = backup::exclude(state.path()) {
        warn!(path = %state.path().display(), %error, "cannot have Time Machine leave the state directory out; see tmutil addexclusion");
    }
}

/// Runs the agent until it is told to end. VMs and the Lease are left alone: the next agent takes them over.
pub(crate) async fn run(args: AgentArgs) -> Result<(), AgentError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(AgentError::Start)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(AgentError::Start)?;
    let (health, health_seen) = watch::channel(None);
    let metrics = Metrics::new();
    let state = StateDir::open(&args.state_dir)?;
    let Some(_lock) = state.lock()? else { return Err(AgentError::Twice(args.state_dir)) };

    exclude_from_backups(&state);
    let tart = Tart::new(&args.tart_binary);
    tart::check_home(tart.home())?;
    check_access(&args, &tart).await?;
    tokio::spawn(power_assertion::hold());
    tokio::spawn(tart::kill_stale_calls(tart.home().to_owned()));
    let mut node = node_config(&args, &tart, &state).await?;
    state.belong_to(&tart)?;
    let owner = TartHomeOwner::take(&tart, &node.name)?;
    let images = open_images(&args, &tart, &state, &metrics, owner.was_used())?;
    let address_source = args.node_ip.map_or_else(|| args.host.address_source(), AddressSource::Given);
    let address = address_source.first().await?;
    // A state directory that was copied to another Mac must not make two agents one.
    let instance = format!("{}-{}", node.facts.machine_id, state.instance()?);
    let sources = CredentialSources {
        kubeconfig: args.kubeconfig.clone(),
        bootstrap: args.bootstrap_kubeconfig.clone(),
        pki: state.pki_path(),
    };
    // A user may have to approve the certificate, so this can take days.
    let identity = tokio::select! {
        identity = Identity::establish(sources, node.name.clone()) => identity?,
        _ = terminate.recv() => return Ok(()),
        _ = interrupt.recv() => return Ok(()),
    };
    let access = identity.access();
    owner.join(access.cluster())?;
    let connect =
        || access.client(Some(metrics.clone())).map_err(|error| AgentError::Client(Box::new(error)));
    let (client, object_client) = (connect()?, connect()?);
    info!(node = %node.name, version = env!("CARGO_PKG_VERSION"), server = %access.server(), "starting");

    let (starts, starts_seen) = StartReports::new();
    let pulse = Pulse::new();
    let signals = SignalSources::new(&state, &tart, &node.facts, &args.host.dhcp_leases);
    let host_seen = HostWatch {
        signals: signals.clone(),
        thresholds: args.host.eviction_hard.clone(),
        pressure_transition_period: args.host.eviction_pressure_transition_period,
        address_source,
        address,
        starts: starts.clone(),
        pulse: pulse.clone(),
        pulse_file: state.pulse_path(),
        metrics: metrics.clone(),
    }
    .spawn()
    .map_err(AgentError::Start)?;
    let session = gui_session::watch(starts.clone(), starts_seen.clone());
    let (tart_health, tart_seen) = watch::channel(None);
    let store = images.images.clone();
    let sources =
        HealthSources { tart: tart_seen, starts: starts_seen, host: host_seen, images: store.local_images() };

    // Before the Node publishes the port: no other process may answer there in the Node's name.
    let address = args.api.socket_address();
    let (listener, bound) = server::bind(address).map_err(|error| AgentError::ListenApi(address, error))?;
    // macOS lets a shim keep the port at one address, and prefers its listener there.
    if let Some(pod) = state.holder_of_port(bound.port())? {
        return Err(AgentError::PortOfPod { pod, port: bound.port() });
    }
    let source = local::Source { metrics: metrics.clone(), health: health_seen.clone() };
    let (local, server) = listen(args.host.metrics_bind_address, source).await?;
    node.ports = OwnPorts { kubelet: bound.port(), local: local.map(|address| address.port()) };
    info!(address = %bound, "listening for the kubelet API");

    let events = Events::new(client.clone(), &node.name);
    let agent = Agent {
        args,
        state,
        tart: tart.clone(),
        node,
        images,
        metrics,
        access,
        client,
        object_client,
        events,
        health: health_seen,
    };
    let host = Arc::new(agent.host(starts)?);
    let eviction = agent.eviction(&host, signals);
    let collector = agent.vm_collector(&host);
    let addresses = host.vms.address.clone();
    let serving = agent.serve_api(listener, &host)?.rotate(agent.client.clone(), addresses);
    let metrics = agent.metrics.clone();
    tokio::select! {
        result = agent.manage(host, (eviction, collector), (instance, pulse.clone())) => result?,
        // On a task of its own: the Node must not lose its identity because another part takes long.
        Ok(lost) = tokio::spawn(identity.keep(metrics)) => return Err(lost.into()),
        () = serving => {}
        () = health::watch_tart(tart, tart_health) => {}
        () = session => {}
        () = pulse.clone().run() => {}
        () = health::follow(sources, health) => {}
        () = store.clone().watch() => {}
        () = server => {}
        () = end(terminate, interrupt, &store) => {}
    }
    Ok(())
}

impl Agent {
    /// What the workers of all Pods share.
    fn host(&self, starts: StartReports) -> Result<Host, AgentError> {
        let Self { args, tart, client, object_client, .. } = self;
        let addresses = health::addresses(self.health.clone());
        let allocatable = Arc::new(self.node.resources.allocatable.clone());
        let shim = std::env::current_exe().map_err(AgentError::Start)?;
        let host_paths = HostPaths::new(args.allowed_host_path.clone(), self.state.path(), tart.home());
        let own_files = [Some(&shim), Some(&args.kubeconfig), args.bootstrap_kubeconfig.as_ref()];
        let host_paths = host_paths.without(own_files.into_iter().flatten().cloned().collect());
        Ok(Host {
            tart: tart.clone(),
            state: self.state.clone(),
            guests: GuestConnections::on(Handle::current()),
            images: self.images.clone(),
            registry: PodRegistry::new(args.max_pods.try_into().unwrap_or(usize::MAX)),
            vms: VmSettings {
                shim,
                boot_limit: args.host.vm_boot_timeout,
                dhcp_leases: args.host.dhcp_leases.clone(),
                serial: args.host.vm_serial,
                cluster_domain: args.host.cluster_domain.clone(),
                allocatable: Room::of(&allocatable),
                local_probe_hosts: args.allow_local_probe_hosts,
                address: addresses.clone(),
            },
            inputs: InputSettings {
                sources: InputSources::new(client, object_client.clone(), allocatable, addresses),
                host_paths: Arc::new(host_paths),
            },
            reports: ReportTargets {
                events: self.events.clone(),
                metrics: self.metrics.clone(),
                starts,
                address_patience: args.host.vm_address_timeout,
            },
        })
    }

    fn local_source(&self) -> local::Source {
        local::Source { metrics: self.metrics.clone(), health: self.health.clone() }
    }

    /// Starts to serve the kubelet API, and returns what keeps its certificate valid.
    fn serve_api(&self, listener: TcpListener, host: &Host) -> Result<ServingCertificate, AgentError> {
        let client_ca = match &self.args.api.client_ca_file {
            Some(path) => ClientCa::from_file(path)?,
            None => ClientCa::of_cluster(&self.access.authorities()),
        };
        let (serving, certificate) = ServingCertificate::new(&self.state.pki_path(), self.node.name.clone())?;
        let context = ApiContext {
            node: self.node.name.clone(),
            facts: self.node.facts.clone(),
            settings: KubeletSettings {
                address: self.args.api.address,
                port: self.node.ports.kubelet,
                max_pods: self.args.max_pods,
                client_ca_file: self.args.api.client_ca_file.clone(),
                cluster_domain: self.args.host.cluster_domain.clone(),
            },
            pods: host.registry.clone(),
            state: self.state.clone(),
            tart: self.tart.clone(),
            guests: host.guests.clone(),
            local: self.local_source(),
            sampler: Sampler::new(host.registry.clone(), self.state.clone(), self.tart.clone()),
            forward_places: ForwardPlaces::default(),
        };
        let access = self.access.clone();
        let server = ApiServer { listener, access, certificate: Arc::new(certificate), client_ca, context };
        server.spawn().map_err(AgentError::Start)?;
        Ok(serving)
    }

    fn eviction(&self, host: &Host, signals: SignalSources) -> EvictionManager {
        EvictionManager {
            pods: host.registry.clone(),
            disk_space: self.images.disk_space.clone(),
            health: self.health.clone(),
            events: self.events.clone(),
            tart: self.tart.clone(),
            signals,
            thresholds: self.args.host.eviction_hard.clone(),
            state: self.state.clone(),
        }
    }

    /// Collects VMs of Pods that are gone; absent with `--disable-vm-gc`.
    fn vm_collector(&self, host: &Host) -> Option<OrphanCollector> {
        if self.args.disable_vm_gc {
            info!("--disable-vm-gc: VMs and images are not collected, whatever happens");
            return None;
        }
        let observer = Observer {
            tart: self.tart.clone(),
            state: self.state.clone(),
            images: Some(self.images.images.clone()),
            pods: Api::all(self.client.clone()),
            node: self.node.name.clone(),
            min_age: self.args.vm_gc_min_age,
        };
        let (registry, metrics) = (host.registry.clone(), self.metrics.clone());
        Some(OrphanCollector::new(observer, registry, metrics, self.args.vm_gc_interval))
    }

    /// Manages the Node and its Pods for as long as it is polled.
    async fn manage(
        self,
        host: Arc<Host>,
        (eviction, collector): (EvictionManager, Option<OrphanCollector>),
        (instance, pulse): (String, Pulse),
    ) -> Result<(), AgentError> {
        let stall_limit = self.args.host.stall_timeout;
        let Self { state, node: config, images, metrics, access, client, events, health, .. } = self;
        let (node, node_seen) = watch::channel(None);
        let node_infos = NodeInfos::new(&config, Api::all(client.clone()), node_seen.clone());
        let mut manager = Manager::new(host, client.clone(), node_infos, state.clone());
        let own = LeaseRecord { node: config.name.to_string(), instance: instance.clone() };
        match state.lease() {
            // The VMs on this Mac are this agent's. They need it though the API server may be away.
            Ok(last) if last.as_ref() == Some(&own) => manager.adopt()?,
            Ok(_) => {}
            Err(error) => warn!(
                error = chain(&error),
                "cannot tell whether this agent had the Node; waiting for the API server"
            ),
        }
        let mut eviction = pin!(eviction.run());
        // Before anything is done in the Node's name.
        let leases = Api::namespaced(client.clone(), lease::NAMESPACE);
        let claimed = tokio::select! {
            claimed = owner::claim(&leases, &config.name, &instance) => claimed.map_err(|foreign| lost(&state, foreign))?,
            never = manager.attend() => match never? {},
            () = &mut eviction => return Ok(()),
        };
        // A full disk must not end the agent.
        if let Err(error) = state.keep_lease(&own) {
            warn!(error = chain(&error), "cannot record that this agent has the Node");
        }
        let (uid, uid_seen) = watch::channel(None);
        let name = config.name.clone();
        let heart = Heartbeat { node: name, instance, claimed, uid: uid_seen, pulse, stall_limit, metrics };
        let foreign = lease::spawn(heart, access).map_err(AgentError::Start)?;
        let prepull = PrePull { manager: images, events: events.clone(), node: node_seen };
        let observers = controller::NodeObservers { uid, node };
        tokio::select! {
            result = manager.run() => result?,
            () = eviction => {}
            () = prepull.follow() => {}
            () = controller::run(client.clone(), config, health, observers, events) => {}
            () = collect(collector) => {}
            Ok(foreign) = foreign => return Err(lost(&state, foreign)),
        }
        Ok(())
    }
}

/// Another agent has the Node: the next agent of this state directory must ask the API server before it does anything.
fn lost(state: &StateDir, foreign: ForeignLease) -> AgentError {
    if let Err(error) = state.forget_lease() {
        warn!(error = chain(&error), "cannot record that another agent has the Node");
    }
    foreign.into()
}

/// Looks whether macOS lets the agent read the directories that it works in: else it would find out Pod by Pod.
async fn check_access(args: &AgentArgs, tart: &Tart) -> Result<(), AgentError> {
    for dir in [&*args.state_dir, tart.home()] {
        privacy::check_access(dir).await?;
    }
    for allowed in &args.allowed_host_path {
        // Pods can do without it.
        if let Err(error) = privacy::check_access(&allowed.path).await {
            warn!(error = chain(&error), "no Pod can use an allowed host path");
        }
    }
    Ok(())
}

/// Waits until the agent is told to end, and has it leave in order.
async fn end(mut terminate: Signal, mut interrupt: Signal, images: &ImageStore) {
    tokio::select! {
        _ = terminate.recv() => info!("SIGTERM: ending; VMs run on"),
        _ = interrupt.recv() => info!("SIGINT: ending; VMs run on"),
    }
    // While workers still wait for their images: a pull without a worker would delete what has arrived.
    images.stop_pulls().await;
}

/// Collects VMs for as long as it is polled.
async fn collect(collector: Option<OrphanCollector>) {
    if let Some(collector) = collector {
        // On a task of its own: a deletion that takes long must not hold up the agent.
        if let Err(error) = tokio::spawn(collector.run()).await {
            warn!(%error, "the collector of VMs has died; nothing more is collected");
        }
    }
    std::future::pending::<()>().await;
}

/// Serves health and metrics, for as long as the returned future is polled. Returns the address, too.
async fn listen(
    ListenAddress(address): ListenAddress,
    source: local::Source,
) -> Result<(Option<SocketAddr>, impl Future<Output = ()>), AgentError> {
    let (bound, server) = match address {
        Some(address) => {
            let failed = |error| AgentError::Listen(address, error);
            let (bound, server) = local::serve(address, source).await.map_err(failed)?;
            info!(address = %bound, "serving health and metrics");
            (Some(bound), Some(server))
        }
        None => (None, None),
    };
    let serving = async move {
        match server {
            Some(server) => server.await,
            None => std::future::pending().await,
        }
    };
    Ok((bound, serving))
}

/// The images of this host, and their collector. From here on a user can pull images with `tart-kubelet images pull`, even before the API
/// server knows this Node.
fn open_images(
    args: &AgentArgs,
    tart: &Tart,
    state: &StateDir,
    metrics: &Metrics,
    home_was_used: bool,
) -> Result<ImageManager, AgentError> {
    let (policy, pulls) = (args.images.gc_policy()?, args.images.max_parallel_image_pulls.into());
    let images = ImageStore::open(tart.clone(), state.clone(), pulls, metrics.clone(), home_was_used)?;
    let images = Arc::new(images);
    images.offer_partials();
    let collector = || Arc::new(ImageCollector::new(images.clone(), policy));
    let disk_space = DiskSpace::new((!args.disable_vm_gc).then(collector));
    let manager = ImageManager { images, disk_space };
    let (socket, served) = (state.pull_socket_path(), manager.clone());
    tokio::spawn(async move { pull_socket::serve(&socket, served).await });
    Ok(manager)
}

async fn node_config(args: &AgentArgs, tart: &Tart, state: &StateDir) -> Result<NodeConfig, AgentError> {
    let facts = HostFacts::discover().await;
    let name = args.node_name(state.node_name()?, &facts.hostname)?;
    state.keep_node_name(&name)?;
    if args.max_pods > 2 {
        warn!("--max-pods {}: macOS runs two VMs at most, further Pods will fail to start", args.max_pods);
    }
    let machine = Machine {
        cores: facts.cores.try_into().unwrap_or(u64::MAX),
        memory: facts.memory,
        storage: volume(tart.home()).map(|volume| volume.total),
    };
    let NodeArgs { host_cpu, host_memory_mb, kube_reserved, eviction_hard, .. } = &args.host;
    let overrides = CapacityOverrides { cores: *host_cpu, memory_mib: *host_memory_mb, pods: args.max_pods };
    Ok(NodeConfig {
        name,
        provider_id: args.provider_id.clone().filter(|id| !id.is_empty()),
        labels: args.node_labels.clone(),
        taints: args.host.register_with_taints.clone(),
        resources: Resources::new(machine, *kube_reserved, eviction_hard, overrides)?,
        facts,
        // Known when the agent listens.
        ports: OwnPorts::default(),
        features: args.host.feature_gates.0.clone(),
    })
}
