//! The watches, and which of them brings a pass over what.

use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt as _, future, stream};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::Node;
use kube::core::NamespaceResourceScope;
use kube::runtime::controller::{self, Action, Controller};
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::{WatchStreamExt as _, reflector as reflect, watcher};
use kube::{Api, Client, Resource, ResourceExt as _};
use tokio::sync::watch;
use tracing::warn;

use super::ManagerConfig;
use crate::apiserver::ApiError;
use crate::cluster::{ClusterReconciler, is_of};
use crate::cluster_api::{CLUSTER_NAME, Cluster};
use crate::crd::{ScalewayAppleSiliconMachine as Machine, TuistCluster};
use crate::csr::Approver;
use crate::error_chain::chain;
use crate::events::Events;
use crate::machine::{ApiServer, Reconciler, Stores};
use crate::metrics::Metrics;
use crate::pool::Pool;

/// After a pass that failed.
const RETRY: Duration = Duration::from_secs(15);
/// After one that found an object changed meanwhile.
const RETRY_CONFLICT: Duration = Duration::from_secs(1);

/// All watches, ready to run.
pub(super) struct Controllers {
    machines: Controller<Machine>,
    reconciler: Arc<Reconciler>,
    clusters: Controller<TuistCluster>,
    cluster_reconciler: Arc<ClusterReconciler>,
    requests: Controller<CertificateSigningRequest>,
    approver: Arc<Approver>,
    store: Store<Machine>,
}

impl Controllers {
    pub(super) fn new(
        client: &Client,
        pool: Arc<dyn Pool>,
        config: &ManagerConfig,
        server: ApiServer,
        events: Events,
        metrics: Arc<Metrics>,
        stopped: watch::Receiver<bool>,
    ) -> Self {
        let all = watcher::Config::default;
        let of = config.namespace.as_deref();
        let machines = Controller::new(api::<Machine>(client, of), all());
        let store = machines.store();

        let (nodes, writer) = reflector::store();
        let macs = all().labels("kubernetes.io/os=darwin");
        let watched = watcher(Api::<Node>::all(client.clone()), macs);
        let node_stream = reflect(writer, watched.modify(slim)).default_backoff().touched_objects();
        let by_name = store.clone();

        let (cluster_store, writer) = reflector::store();
        let watched = watcher(api::<Cluster>(client, of), all());
        let cluster_stream = reflect(writer, watched).default_backoff().touched_objects();
        let by_cluster = store.clone();

        let machines = machines
            .with_config(controller::Config::default().concurrency(config.max_concurrent))
            .reconcile_on(triggers(node_stream, move |node: Node| {
                let name = node.name_any();
                references(&by_name, move |machine| machine.name_any() == name)
            }))
            .reconcile_on(triggers(cluster_stream, move |cluster: Cluster| {
                let (name, namespace) = (cluster.name_any(), cluster.namespace());
                references(&by_cluster, move |machine| {
                    machine.namespace() == namespace && machine.labels().get(CLUSTER_NAME) == Some(&name)
                })
            }))
            .graceful_shutdown_on(until(stopped.clone(), store.clone()));
        let approver = Approver {
            client: client.clone(),
            machines: store.clone(),
            has_tailnet: config.fleet.tailscale.is_some(),
            events: events.clone(),
        };
        let stores = Stores { machines: store.clone(), clusters: cluster_store.clone(), nodes };
        let reconciler = Reconciler::new(
            client.clone(),
            pool,
            stores,
            config.fleet.clone(),
            config.github.clone(),
            config.tailscale_auth_key.clone(),
            server,
            config.limits,
            config.default_prefix.clone(),
            config.max_concurrent.into(),
            config.secrets_namespace.clone(),
            events,
            metrics,
        );

        let clusters = Controller::new(api::<TuistCluster>(client, of), all());
        let stubs = clusters.store();
        let listed = stubs.clone();
        let clusters = clusters
            .watches(api::<Cluster>(client, of), all(), move |cluster: Cluster| {
                let of = stubs.state_filter(|stub| is_of(&cluster, stub));
                of.iter().map(|stub| ObjectRef::from_obj(stub.as_ref())).collect::<Vec<_>>()
            })
            .graceful_shutdown_on(until(stopped.clone(), listed));
        let requests = Controller::new(Api::<CertificateSigningRequest>::all(client.clone()), all());
        let listed = requests.store();
        let requests = requests.graceful_shutdown_on(until(stopped, listed));
        Self {
            machines,
            reconciler: Arc::new(reconciler),
            clusters,
            cluster_reconciler: Arc::new(ClusterReconciler {
                client: client.clone(),
                clusters: cluster_store,
            }),
            requests,
            approver: Arc::new(approver),
            store,
        }
    }

    /// The machines, as the watch knows them.
    pub(super) fn machines(&self) -> Store<Machine> {
        self.store.clone()
    }

    /// Runs until all passes have ended after the manager was told to end.
    pub(super) async fn run(self) {
        let machines = self.machines.run(
            |machine, context: Arc<Reconciler>| async move { context.reconcile(&machine).await },
            |machine: Arc<Machine>, error, _| {
                warn!(machine = machine.name_any(), problem = chain(error), "a pass over a machine failed");
                Action::requeue(if error.is_conflict() { RETRY_CONFLICT } else { RETRY })
            },
            self.reconciler,
        );
        let clusters = self.clusters.run(
            |stub, context: Arc<ClusterReconciler>| async move { context.reconcile(&stub).await },
            |stub: Arc<TuistCluster>, error, _| after(&stub.name_any(), error),
            self.cluster_reconciler,
        );
        let requests = self.requests.run(
            |request, context: Arc<Approver>| async move { context.reconcile(&request).await },
            |request: Arc<CertificateSigningRequest>, error, _| after(&request.name_any(), error),
            self.approver,
        );
        let drain = |()| future::ready(());
        tokio::join!(
            machines.map(drop).for_each(drain),
            clusters.map(drop).for_each(drain),
            requests.map(drop).for_each(drain),
        );
    }
}

/// The objects of a namespace, or of all.
fn api<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: Resource<Scope = NamespaceResourceScope>,
    K::DynamicType: Default,
{
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

fn after(name: &str, error: &ApiError) -> Action {
    warn!(name, problem = chain(error), "a pass failed");
    Action::requeue(if error.is_conflict() { RETRY_CONFLICT } else { RETRY })
}

/// The machines that a change of another object is about.
fn triggers<K: Send + 'static>(
    changes: impl Stream<Item = watcher::Result<K>> + Send + 'static,
    machines: impl Fn(K) -> Vec<ObjectRef<Machine>> + Send + 'static,
) -> impl Stream<Item = ObjectRef<Machine>> + Send + 'static {
    let changed = changes.filter_map(|change| {
        let change =
            change.inspect_err(|error| warn!(problem = chain(error), "a watch broke off; it is begun again"));
        future::ready(change.ok())
    });
    changed.flat_map(move |object| stream::iter(machines(object)))
}

fn references(store: &Store<Machine>, is: impl Fn(&Machine) -> bool) -> Vec<ObjectRef<Machine>> {
    store
        .state_filter(|machine| is(machine))
        .iter()
        .map(|machine| ObjectRef::from_obj(machine.as_ref()))
        .collect()
}

/// What no pass looks at, and takes most of the memory.
fn slim(node: &mut Node) {
    node.metadata.managed_fields = None;
    if let Some(status) = &mut node.status {
        status.images = None;
    }
}

/// The end of a controller. One that is ended before its first list never returns.
async fn until<K>(mut stopped: watch::Receiver<bool>, listed: Store<K>)
where
    K: reflector::Lookup + Clone + 'static,
    K::DynamicType: std::hash::Hash + Eq + Clone,
{
    // An error: the manager is gone, or the watch.
    let _ = stopped.wait_for(|stopped| *stopped).await;
    let _ = listed.wait_until_ready().await;
}
