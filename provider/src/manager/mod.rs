//! The manager: the process that watches machines, and acts on them while it is the leader.

mod controllers;
mod http;
mod leader;
mod lease;
mod machines;

pub(crate) use machines::ApiMachines;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::config::Kubeconfig;
use kube::runtime::reflector::Store;
use kube::{Api, Client};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tracing::{info, warn};

use self::controllers::Controllers;
use self::lease::Lease;
use crate::apiserver::call;
use crate::crd::ScalewayAppleSiliconMachine as Machine;
use crate::error_chain::chain;
use crate::events::Events;
use crate::github::Github;
use crate::machine::{ApiServer, FleetConfig, Limits};
use crate::metrics::Metrics;
use crate::pool::{Machines, Pool, PoolPrefix};
use crate::reclaim::{ReclaimMetrics, ReclaimSettings, Reclaimer};

/// How the manager works.
#[derive(Debug, Clone)]
pub(crate) struct ManagerConfig {
    pub(crate) fleet: FleetConfig,
    pub(crate) github: Github,
    /// The Secret with the key to the tailnet.
    pub(crate) tailscale_auth_key: Option<String>,
    pub(crate) limits: Limits,
    pub(crate) default_prefix: Option<PoolPrefix>,
    /// How orphans are looked for; `None`: they are not.
    pub(crate) reclaim: Option<Reclaim>,
    /// `None`: machines of all namespaces.
    pub(crate) namespace: Option<String>,
    pub(crate) max_concurrent: u16,
    pub(crate) secrets_namespace: String,
    /// `None`: that of the cluster's own information.
    pub(crate) api_server_url: Option<String>,
    pub(crate) leader_elect: bool,
    pub(crate) metrics_address: SocketAddr,
    pub(crate) health_address: SocketAddr,
}

/// How orphans are looked for.
#[derive(Debug, Clone)]
pub(crate) struct Reclaim {
    pub(crate) settings: ReclaimSettings,
    pub(crate) interval: Duration,
}

/// Runs until it is told to end, and returns then; an error says why it could not go on.
pub(crate) async fn run(
    config: ManagerConfig,
    client: Client,
    pool: Arc<dyn Pool>,
    machines: Arc<dyn Machines>,
) -> Result<(), String> {
    let mut terminate = signal(SignalKind::terminate()).map_err(|error| error.to_string())?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(|error| error.to_string())?;
    let end = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    tokio::pin!(end);

    let instance = instance();
    let server = api_server(&client, &config).await?;
    let metrics = Arc::new(Metrics::default());
    let reclaim_metrics = ReclaimMetrics::default();
    let (stop, stopped) = watch::channel(false);
    let stopped_reclaim = stopped.clone();
    let events = Events::new(client.clone(), instance.clone());
    let reclaimer = config.reclaim.clone().map(|reclaim| {
        let reclaimer =
            Reclaimer::new(Arc::clone(&pool), machines, reclaim.settings, reclaim_metrics.clone());
        (reclaimer, reclaim.interval)
    });
    let controllers = Controllers::new(&client, pool, &config, server, events, Arc::clone(&metrics), stopped);
    let servers = serve(&config, controllers.machines(), Arc::clone(&metrics), reclaim_metrics).await?;
    tokio::spawn(servers);

    let namespace = config.namespace.as_deref().unwrap_or_else(|| client.default_namespace());
    let mut lease = Lease::new(client.clone(), namespace, instance);
    if config.leader_elect {
        tokio::select! {
            () = lease.acquire() => {}
            () = &mut end => return Ok(()),
        }
    }
    metrics.lead();
    let acting = controllers.run();
    let reclaiming = async {
        if let Some((reclaimer, interval)) = reclaimer {
            reclaim(&reclaimer, interval, stopped_reclaim).await;
        }
    };
    let acting = async {
        tokio::join!(acting, reclaiming);
    };
    let kept = async { if config.leader_elect { lease.keep().await } else { std::future::pending().await } };
    Box::pin(leader::act(acting, kept, end, &stop)).await?;
    if config.leader_elect {
        lease.give_up().await;
    }
    Ok(())
}

/// Looks for orphans now, and again after each interval. A look that fails is told and repeated with the next.
async fn reclaim(reclaimer: &Reclaimer, interval: Duration, mut stopped: watch::Receiver<bool>) {
    loop {
        match reclaimer.cycle().await {
            Ok(cycle) => {
                info!(orphans = cycle.orphans.len(), reclaimed = cycle.reclaimed.len(), "looked for orphans");
            }
            Err(error) => warn!(problem = chain(&error), "could not look for orphans everywhere"),
        }
        tokio::select! {
            () = tokio::time::sleep(interval) => {}
            _ = stopped.wait_for(|stopped| *stopped) => return,
        }
    }
}

/// The ports for health and metrics.
async fn serve(
    config: &ManagerConfig,
    machines: Store<Machine>,
    metrics: Arc<Metrics>,
    reclaim: ReclaimMetrics,
) -> Result<impl Future<Output = ()> + use<>, String> {
    let cannot =
        |address: SocketAddr| move |error: std::io::Error| format!("cannot listen at {address}: {error}");
    let ok = ::http::StatusCode::OK;
    let text = move || metrics.text(&machines, Timestamp::now(), |registry| reclaim.register(registry));
    let figures = move |path: &str| (path == "/metrics").then(|| (ok, text()));
    let health = move |path: &str| matches!(path, "/healthz" | "/readyz").then(|| (ok, "ok\n".to_owned()));
    let figures = http::serve(config.metrics_address, Arc::new(figures)).await;
    let figures = figures.map_err(cannot(config.metrics_address))?;
    let health = http::serve(config.health_address, Arc::new(health)).await;
    let health = health.map_err(cannot(config.health_address))?;
    Ok(async move {
        tokio::join!(figures, health);
    })
}

/// Which provider this is. A Pod's host name is its name; the rest tells two starts apart.
fn instance() -> String {
    let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    format!("{}_{}", host.unwrap_or_default(), crate::random::uuid())
}

/// Where agents reach the API server, and its authority, which every namespace has.
async fn api_server(client: &Client, config: &ManagerConfig) -> Result<ApiServer, String> {
    let read = async |namespace: &str, name: &str, key: &str| {
        let api = Api::<ConfigMap>::namespaced(client.clone(), namespace);
        let map = call("read a ConfigMap", api.get(name)).await;
        let map = map.map_err(|error| format!("{namespace}/{name}: {}", chain(&error)))?;
        let value = map.data.and_then(|mut data| data.remove(key));
        value.ok_or_else(|| format!("the ConfigMap {namespace}/{name} has no {key}"))
    };
    let authority = read(&config.secrets_namespace, "kube-root-ca.crt", "ca.crt").await?;
    let url = match &config.api_server_url {
        Some(url) => url.clone(),
        None => {
            let kubeconfig = read("kube-public", "cluster-info", "kubeconfig").await;
            let kubeconfig = kubeconfig.map_err(|error| format!("{error}; --api-server-url says it, too"))?;
            let parsed = Kubeconfig::from_yaml(&kubeconfig).map_err(|error| chain(&error))?;
            let server = parsed.clusters.into_iter().find_map(|named| named.cluster?.server);
            server.ok_or(
                "the ConfigMap kube-public/cluster-info names no server; --api-server-url says it, too",
            )?
        }
    };
    Ok(ApiServer { url, authority })
}
