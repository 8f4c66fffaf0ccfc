//! What tests of the pool stand on: a simulated Scaleway, and the machines of a cluster.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use scaleway_sim::{Call, Install, NewServer, Settings, World};

use super::ScalewayPool;
use crate::apiserver::ApiError;
use crate::names::{HostId, MachineRef, Zone};
use crate::pool::{
    ClaimRequest, HeldHost, MachineRecord, Machines, MachinesError, OsFamily, Pool as _, PoolPrefix,
};
use crate::scaleway::{RetryPolicy, Scaleway, ScalewayConfig};

pub(crate) const SECRET: &str = "canary-secret-key";

/// Fast, so that a test of a failure does not wait.
pub(crate) const RETRY: RetryPolicy = RetryPolicy {
    tries: 3,
    timeout: Duration::from_secs(4),
    first: Duration::from_millis(1),
    longest: Duration::from_millis(4),
};

/// What happens before a list of machines is read; `false` has the API server fail.
type OnList = Box<dyn FnMut(&mut Vec<MachineRecord>) -> bool + Send>;

/// The machines of a cluster.
#[derive(Default)]
pub(crate) struct Cluster {
    records: Mutex<Vec<MachineRecord>>,
    /// What happens before each list is read.
    on_list: Mutex<Option<OnList>>,
}

impl Cluster {
    pub(crate) fn with<T>(&self, change: impl FnOnce(&mut Vec<MachineRecord>) -> T) -> T {
        change(&mut self.records.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adds a machine without a host.
    pub(crate) fn add(&self, name: &str) {
        let record = MachineRecord { machine: machine(name), zone: zone(), prefix: None, host: None };
        self.with(|records| records.push(record));
    }

    /// Writes a machine's status.
    pub(crate) fn record(&self, name: &str, host: Option<&HostId>) {
        self.with(|records| {
            for record in records.iter_mut().filter(|record| record.machine.name == name) {
                record.host = host.cloned();
            }
        });
    }

    /// The object is gone, whatever it held.
    pub(crate) fn remove(&self, name: &str) {
        self.with(|records| records.retain(|record| record.machine.name != name));
    }

    /// Has something happen before each list is read; `false` has the API server fail.
    pub(crate) fn on_list(&self, act: impl FnMut(&mut Vec<MachineRecord>) -> bool + Send + 'static) {
        *self.on_list.lock().unwrap() = Some(Box::new(act));
    }
}

impl Machines for Cluster {
    fn list(&self) -> BoxFuture<'_, Result<Vec<MachineRecord>, MachinesError>> {
        async {
            let mut on_list = self.on_list.lock().unwrap();
            let is_there = on_list.as_mut().is_none_or(|act| self.with(act));
            if is_there {
                Ok(self.with(|records| records.clone()))
            } else {
                let source = Box::new(kube::Error::Service("the API server is away".into()));
                Err(MachinesError(ApiError::Call { what: "list the machines", source }))
            }
        }
        .boxed()
    }
}

/// A simulated Scaleway and a cluster.
pub(crate) struct Scene {
    pub(crate) scaleway: scaleway_sim::Scaleway,
    pub(crate) cluster: Arc<Cluster>,
    project_id: String,
}

impl Scene {
    /// Servers with these names. Installations end by hand; servers can be renamed meanwhile.
    pub(crate) async fn new(names: &[&str]) -> Self {
        let settings = Settings {
            secret_key: SECRET.to_owned(),
            install: Install::ByHand,
            renames_while_changing: true,
            ..Settings::default()
        };
        Self::with(settings, names).await
    }

    pub(crate) async fn with(settings: Settings, names: &[&str]) -> Self {
        let project_id = settings.project_id.clone();
        let scaleway = scaleway_sim::Scaleway::start(settings).await.unwrap();
        for name in names {
            scaleway.world().order(NewServer::named(name));
        }
        Self { scaleway, cluster: Arc::default(), project_id }
    }

    /// A client as a new process has it.
    pub(crate) fn client(&self, retry: RetryPolicy) -> Scaleway {
        let config = ScalewayConfig::new(&self.scaleway.url(), SECRET, &self.project_id).unwrap();
        Scaleway::new(config, retry).unwrap()
    }

    /// A pool as a new process has it: it remembers nothing.
    pub(crate) fn pool(&self) -> Arc<ScalewayPool> {
        let machines = Arc::clone(&self.cluster) as Arc<dyn Machines>;
        Arc::new(ScalewayPool::new(self.client(RETRY), machines))
    }

    /// Adds a fault.
    pub(crate) fn fault(&self, rule: &str) {
        self.scaleway.world().add_rule(rule.parse().unwrap());
    }

    /// The id of the server that is called so.
    pub(crate) fn id(&self, name: &str) -> HostId {
        let mut world = self.scaleway.world();
        let server = world.servers().iter().find(|server| server.name == name);
        HostId::parse(&server.unwrap_or_else(|| panic!("no server {name}")).id).unwrap()
    }

    pub(crate) fn name(&self, id: &HostId) -> String {
        self.server(id, |server| server.name.clone())
    }

    pub(crate) fn server<T>(&self, id: &HostId, look: impl FnOnce(&mut scaleway_sim::Server) -> T) -> T {
        look(self.scaleway.world().server(id.as_str()).unwrap())
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.scaleway.world().servers().iter().map(|server| server.name.clone()).collect()
    }

    pub(crate) fn writes(&self) -> usize {
        self.scaleway.world().writes().len()
    }

    /// A machine that has claimed a host and whose status says so.
    pub(crate) async fn adopted(&self, pool: &ScalewayPool, name: &str) -> HostId {
        self.cluster.add(name);
        let id = pool.claim(&request(name)).await.unwrap().id;
        self.cluster.record(name, Some(&id));
        id
    }

    /// Waits until so many calls of a kind have arrived.
    pub(crate) async fn arrived(&self, call: Call, number: usize) {
        let has = |world: &World| world.count(call) >= number;
        while !has(&self.scaleway.world()) {
            tokio::task::yield_now().await;
        }
    }
}

pub(crate) fn zone() -> Zone {
    Zone::parse("fr-par-1").unwrap()
}

pub(crate) fn machine(name: &str) -> MachineRef {
    MachineRef { namespace: "default".to_owned(), name: name.to_owned() }
}

pub(crate) fn prefix() -> PoolPrefix {
    PoolPrefix::new("tuist-pool-").unwrap()
}

pub(crate) fn request(name: &str) -> ClaimRequest {
    ClaimRequest {
        machine: machine(name),
        prefix: prefix(),
        zone: zone(),
        kind: "M2-L".to_owned(),
        os: OsFamily::pin("Tahoe").unwrap(),
    }
}

pub(crate) fn held(name: &str, id: &HostId) -> HeldHost {
    HeldHost {
        machine: machine(name),
        id: id.clone(),
        zone: zone(),
        prefix: prefix(),
        os: Some(OsFamily::pin("Tahoe").unwrap()),
    }
}
