//! The machines as the API server has them now, for the pool.

use futures::future::BoxFuture;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt as _};

use crate::apiserver::call;
use crate::crd::ScalewayAppleSiliconMachine as Machine;
use crate::names::{HostId, MachineRef, Zone};
use crate::pool::{MachineRecord, Machines, MachinesError, PoolPrefix};

/// Asks the API server, and no cache.
pub(crate) struct ApiMachines(pub(crate) Client);

impl Machines for ApiMachines {
    fn list(&self) -> BoxFuture<'_, Result<Vec<MachineRecord>, MachinesError>> {
        Box::pin(async {
            let api = Api::<Machine>::all(self.0.clone());
            let machines = call("list the machines", api.list(&ListParams::default())).await?;
            Ok(machines.iter().filter_map(record).collect())
        })
    }
}

/// A machine whose zone is no zone holds no host.
fn record(machine: &Machine) -> Option<MachineRecord> {
    let host = machine.status.as_ref().and_then(|status| status.server_id.as_deref());
    Some(MachineRecord {
        machine: MachineRef { namespace: machine.namespace().unwrap_or_default(), name: machine.name_any() },
        zone: Zone::parse(&machine.spec.zone).ok()?,
        prefix: machine.spec.adopt_pool_prefix.as_deref().and_then(PoolPrefix::new),
        host: host.and_then(|host| HostId::parse(host).ok()),
    })
}
