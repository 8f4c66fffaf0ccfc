//! The agent: all its tasks, from start to SIGTERM.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::cli::AgentArgs;
use crate::image::Images;
use crate::node::desired::NodeConfig;
use crate::node::host::{self, HostFacts};
use crate::node::tart_check::{self, Health};
use crate::node::{BadNodeName, NodeName, keeper, lease};
use crate::pod::events::Events;
use crate::pod::manager::{Manager, ManagerError};
use crate::pod::worker::Host;
use crate::state::{StateDir, StateError};
use crate::tart::Tart;

/// Why the agent could not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The kubeconfig cannot be used.
    #[error("cannot use the kubeconfig {}; name another one with --kubeconfig", .0.display())]
    Kubeconfig(PathBuf, #[source] Box<KubeconfigError>),
    /// The credentials in the kubeconfig cannot be used.
    #[error("cannot use the credentials in the kubeconfig")]
    Client(#[source] Box<kube::Error>),
    /// This machine's name is not one for a Node.
    #[error("this machine's name cannot be a Node's; give one with --node-name")]
    NodeName(#[from] BadNodeName),
    /// The state directory cannot be used.
    #[error("cannot use the state directory; name another one with --state-dir")]
    State(#[from] StateError),
    /// Another agent runs.
    #[error("another tart-kubelet uses the state directory {}", .0.display())]
    Twice(PathBuf),
    /// Something that every process can do failed.
    #[error("cannot start")]
    Start(#[source] io::Error),
    /// The Pods can no longer be managed.
    #[error("cannot manage Pods")]
    Manager(#[from] ManagerError),
}

/// Runs the agent until it is told to end. VMs and the Lease are left alone: the next agent takes them over.
pub async fn run(args: AgentArgs) -> Result<(), AgentError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(AgentError::Start)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(AgentError::Start)?;
    let api = api_config(&args).await?;
    let client = Client::try_from(api.clone()).map_err(|error| AgentError::Client(Box::new(error)))?;
    let state = StateDir::open(&args.state_dir)?;
    let Some(_lock) = state.lock()? else { return Err(AgentError::Twice(args.state_dir)) };

    let tart = Tart::new(&args.tart_binary);
    let config = node_config(&args)?;
    info!(node = %config.name, version = env!("CARGO_PKG_VERSION"), server = %api.cluster_url, "starting");
    let health = Health::check(&tart).await;
    if let Some(problem) = &health.problem {
        warn!(reason = problem.reason, "no VM can start: {}", problem.message);
    }
    let (health, health_seen) = watch::channel(health);
    let (uid, uid_seen) = watch::channel(None);
    lease::spawn(api, config.name.clone(), uid_seen).map_err(AgentError::Start)?;

    let host = Arc::new(Host {
        program: std::env::current_exe().map_err(AgentError::Start)?,
        images: Arc::new(Images::new(tart.clone())),
        address: config.address,
        events: Events::new(client.clone(), &config.name),
        tart: tart.clone(),
    });
    let manager = Manager::new(host, client.clone(), config.name.clone(), state);
    tokio::select! {
        result = manager.run() => result?,
        () = keeper::keep(client, config, health_seen, uid) => {}
        () = tart_check::watch_health(tart, health) => {}
        _ = terminate.recv() => info!("SIGTERM: ending; VMs run on"),
        _ = interrupt.recv() => info!("SIGINT: ending; VMs run on"),
    }
    Ok(())
}

async fn api_config(args: &AgentArgs) -> Result<Config, AgentError> {
    let unusable = |error| AgentError::Kubeconfig(args.kubeconfig.clone(), Box::new(error));
    let kubeconfig = Kubeconfig::read_from(&args.kubeconfig).map_err(unusable)?;
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.map_err(unusable)
}

fn node_config(args: &AgentArgs) -> Result<NodeConfig, AgentError> {
    let facts = HostFacts::discover();
    let name = match &args.node_name {
        Some(name) => name.clone(),
        None => facts.hostname.to_ascii_lowercase().parse::<NodeName>()?,
    };
    if args.max_pods > 2 {
        warn!("--max-pods {}: macOS runs two VMs at most, further Pods will fail to start", args.max_pods);
    }
    Ok(NodeConfig {
        name,
        provider_id: args.provider_id.clone().filter(|id| !id.is_empty()),
        labels: args.node_labels.clone(),
        address: args.node_ip.or_else(host::routable_address),
        max_pods: args.max_pods,
        facts,
    })
}
