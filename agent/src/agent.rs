//! The agent: all its tasks, from start to SIGTERM.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::cli::AgentArgs;
use crate::identity::{Identity, IdentityError, Sources};
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
    /// The agent has no identity, or no longer.
    #[error(transparent)]
    Identity(#[from] IdentityError),
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
    let state = StateDir::open(&args.state_dir)?;
    let Some(_lock) = state.lock()? else { return Err(AgentError::Twice(args.state_dir)) };

    let config = node_config(&args)?;
    let sources = Sources {
        kubeconfig: args.kubeconfig.clone(),
        bootstrap: args.bootstrap_kubeconfig.clone(),
        pki: state.pki_path(),
    };
    // Somebody may have to approve it, so it can take days.
    let identity = tokio::select! {
        identity = Identity::establish(sources, config.name.clone()) => identity?,
        _ = terminate.recv() => return Ok(()),
        _ = interrupt.recv() => return Ok(()),
    };
    let access = identity.access();
    let client = access.client().map_err(|error| AgentError::Client(Box::new(error)))?;

    let tart = Tart::new(&args.tart_binary);
    info!(node = %config.name, version = env!("CARGO_PKG_VERSION"), server = %access.server(), "starting");
    let health = Health::check(&tart).await;
    if let Some(problem) = &health.problem {
        warn!(reason = problem.reason, "no VM can start: {}", problem.message);
    }
    let (health, health_seen) = watch::channel(health);
    let (uid, uid_seen) = watch::channel(None);
    lease::spawn(access, config.name.clone(), uid_seen).map_err(AgentError::Start)?;

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
        // On a task of its own: whatever holds up the others must not cost the Node its identity.
        Ok(lost) = tokio::spawn(identity.keep()) => return Err(lost.into()),
        () = keeper::keep(client, config, health_seen, uid) => {}
        () = tart_check::watch_health(tart, health) => {}
        _ = terminate.recv() => info!("SIGTERM: ending; VMs run on"),
        _ = interrupt.recv() => info!("SIGINT: ending; VMs run on"),
    }
    Ok(())
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
