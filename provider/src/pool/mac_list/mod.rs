//! A pool without a cloud: Macs that stand in an office, in a Secret with an entry for each.
//!
//! Who has which Mac is in annotations of the Secret itself, and each change of it names the version of the Secret that it was decided on: of
//! two changes at once, one fails and is decided again. A Secret that was replaced has lost its annotations; the ids in the machines' statuses are
//! still there.

mod mac;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::holders::Holders;
use super::{
    ClaimError, ClaimRequest, Destination, HeldHost, Host, HostName, ListedHost, Machines, Pool, PoolError,
    ReleaseOutcome,
};
use crate::names::{HostId, MachineRef, Zone};
use mac::{Mac, Use};

/// How long a call to the API server may take.
const DEADLINE: Duration = Duration::from_secs(15);
/// How often a change is decided again because the Secret has changed.
const TRIES: u32 = 5;

/// The list of Macs cannot be read or changed. What is in it is secret, and not shown.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MacListError {
    /// The API server fails, or refuses.
    #[error("cannot use the Secret {name} with the list of Macs")]
    Api {
        /// The Secret.
        name: String,
        /// Why.
        #[source]
        source: Box<kube::Error>,
    },
    /// The API server does not answer in time.
    #[error("the API server does not answer in time about the Secret {0} with the list of Macs")]
    Timeout(String),
    /// Others change the Secret all the time.
    #[error("the Secret {0} with the list of Macs changes all the time")]
    Contended(String),
}

/// The Macs of a Secret.
pub(crate) struct MacListPool {
    secrets: Api<Secret>,
    name: String,
    machines: Arc<dyn Machines>,
    /// Held from the first to the last call of a claim or a release. What it has: claims whose machines may not have the id in their status yet.
    claimed: Mutex<BTreeMap<HostId, MachineRef>>,
}

/// A change of the annotations.
type Change = BTreeMap<String, Option<String>>;

/// The list as it was read.
struct List {
    version: Option<String>,
    macs: Vec<Mac>,
    /// Names of entries that are not understood.
    unclear: Vec<String>,
}

impl MacListPool {
    /// The Macs of this Secret.
    pub(crate) fn new(secrets: Api<Secret>, name: &str, machines: Arc<dyn Machines>) -> Self {
        Self { secrets, name: name.to_owned(), machines, claimed: Mutex::default() }
    }

    async fn read(&self) -> Result<List, MacListError> {
        let answer = timeout(DEADLINE, self.secrets.get(&self.name)).await;
        let secret = answer.map_err(|_| MacListError::Timeout(self.name.clone()))?;
        let secret = secret.map_err(|source| self.failed(source))?;
        let annotations = secret.metadata.annotations.unwrap_or_default();
        let (mut macs, mut unclear) = (Vec::new(), Vec::new());
        for (name, entry) in secret.data.unwrap_or_default() {
            match Mac::parse(&name, &entry.0, &annotations) {
                Some(mac) => macs.push(mac),
                None => unclear.push(name),
            }
        }
        Ok(List { version: secret.metadata.resource_version, macs, unclear })
    }

    /// Writes annotations, if the Secret is still as it was read. Whether it was.
    async fn write(&self, list: &List, change: &Change) -> Result<bool, MacListError> {
        let patch = json!({"metadata": {"resourceVersion": list.version, "annotations": change}});
        let (parameters, patch) = (PatchParams::default(), Patch::Merge(&patch));
        let patched = timeout(DEADLINE, self.secrets.patch_metadata(&self.name, &parameters, &patch)).await;
        match patched.map_err(|_| MacListError::Timeout(self.name.clone()))? {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
            Err(source) => Err(self.failed(source)),
        }
    }

    fn failed(&self, source: kube::Error) -> MacListError {
        MacListError::Api { name: self.name.clone(), source: Box::new(source) }
    }

    async fn claim_mac(&self, request: &ClaimRequest) -> Result<Host, ClaimError> {
        let machine = &request.machine;
        if let Some(reserved) = HostName::reserved(&machine.name, &request.prefix) {
            return Err(ClaimError::ReservedName {
                name: machine.name.clone(),
                reserved: reserved.to_owned(),
            });
        }
        let mut claimed = self.claimed.lock().await;
        for _ in 0..TRIES {
            let list = self.read().await.map_err(PoolError::from)?;
            let records = self.machines.list().await.map_err(PoolError::from)?;
            let holders = Holders::new(&records, &claimed);
            if !holders.knows(machine) {
                return Err(ClaimError::NoSuchMachine(machine.clone()));
            }
            let recorded = holders.host_of(machine);
            let is_free = |mac: &&Mac| !holders.is_held_by_other(&mac.id, machine);
            let own = list.macs.iter().find(|mac| Some(&mac.id) == recorded);
            let named = || list.macs.iter().filter(is_free).find(|mac| mac.used.is_by(machine));
            let fitting = || list.macs.iter().filter(is_free).find(|mac| mac.fits(request));
            let Some(mac) = own.or_else(named).or_else(fitting) else {
                return Err(ClaimError::NoAvailableHost(shortage(request, &list)));
            };
            let change = Change::from([(mac.claim_annotation(), Some(machine.to_string()))]);
            if mac.used.is_by(machine) || self.write(&list, &change).await.map_err(PoolError::from)? {
                claimed.insert(mac.id.clone(), machine.clone());
                return Ok(Host { name: machine.name.clone(), ..mac.host() });
            }
        }
        Err(PoolError::from(MacListError::Contended(self.name.clone())).into())
    }

    async fn release_mac(&self, held: &HeldHost, to: Destination) -> Result<ReleaseOutcome, PoolError> {
        let released = Ok(ReleaseOutcome::Released { wiped: false, os_unavailable: false });
        let mut claimed = self.claimed.lock().await;
        for _ in 0..TRIES {
            let list = self.read().await?;
            let records = self.machines.list().await?;
            let is_held_by_other = Holders::new(&records, &claimed).is_held_by_other(&held.id, &held.machine);
            let Some(mac) = list.macs.iter().find(|mac| mac.id == held.id) else {
                claimed.remove(&held.id);
                return Ok(ReleaseOutcome::Gone);
            };
            if is_held_by_other || matches!(mac.used, Use::By(_)) && !mac.used.is_by(&held.machine) {
                claimed.remove(&held.id);
                return Ok(ReleaseOutcome::NotOurs { name: mac.shown_name() });
            }
            let mut change = Change::from([(mac.claim_annotation(), None)]);
            match (to, &mac.used) {
                (Destination::Pool, Use::Free) | (_, Use::Quarantined) => change.clear(),
                (Destination::Pool, Use::By(_)) => {}
                (Destination::Quarantine, _) => {
                    change.insert(mac.quarantine_annotation(), Some(held.machine.to_string()));
                }
            }
            if change.is_empty() || self.write(&list, &change).await? {
                claimed.remove(&held.id);
                return released;
            }
        }
        Err(MacListError::Contended(self.name.clone()).into())
    }
}

fn shortage(request: &ClaimRequest, list: &List) -> String {
    let is_listed = |mac: &&Mac| HostName::of(mac.id.as_str(), &request.prefix) == HostName::Free;
    let all = list.macs.iter().filter(is_listed).count();
    let free = list.macs.iter().filter(is_listed).filter(|mac| mac.used == Use::Free).count();
    let unclear = match list.unclear.as_slice() {
        [] => String::new(),
        names => format!("; these entries are not understood: {}", names.join(", ")),
    };
    format!(
        "{all} Macs of the list have a name that begins with `{}`, {free} of them have no machine, and none of those is in {} with the type {} and {}{unclear}",
        request.prefix.as_str(),
        request.zone,
        request.kind,
        request.os,
    )
}

impl Pool for MacListPool {
    fn claim<'a>(&'a self, request: &'a ClaimRequest) -> BoxFuture<'a, Result<Host, ClaimError>> {
        self.claim_mac(request).boxed()
    }

    fn host<'a>(&'a self, _: &'a Zone, id: &'a HostId) -> BoxFuture<'a, Result<Option<Host>, PoolError>> {
        async move { Ok(self.read().await?.macs.iter().find(|mac| mac.id == *id).map(Mac::host)) }.boxed()
    }

    fn hosts<'a>(&'a self, zone: &'a Zone) -> BoxFuture<'a, Result<Vec<ListedHost>, PoolError>> {
        async move {
            let macs = self.read().await?.macs.into_iter().filter(|mac| mac.zone == *zone);
            Ok(macs.map(|mac| ListedHost { name: mac.shown_name(), id: mac.id }).collect())
        }
        .boxed()
    }

    fn release<'a>(
        &'a self,
        held: &'a HeldHost,
        to: Destination,
    ) -> BoxFuture<'a, Result<ReleaseOutcome, PoolError>> {
        self.release_mac(held, to).boxed()
    }

    fn reboot<'a>(&'a self, _: &'a Zone, _: &'a HostId) -> BoxFuture<'a, Result<(), PoolError>> {
        async { Err(PoolError::Unsupported("restart its hosts")) }.boxed()
    }

    fn remove_ssh_key<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<(), PoolError>> {
        async { Ok(()) }.boxed()
    }

    /// The Macs of a list have the keys that their owner gave them.
    fn ensure_ssh_key<'a>(&'a self, _: &'a str, _: &'a str) -> BoxFuture<'a, Result<(), PoolError>> {
        async { Ok(()) }.boxed()
    }
}
