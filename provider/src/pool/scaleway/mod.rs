//! A pool of Scaleway's servers. A server's name says who has it, because the name is all that can be written.
//!
//! A rename is unconditional, and the last one wins. So a claim has two phases: the server gets a name that is like no other, and then, if that
//! name is still there, the machine's. The lock keeps the claims and releases of this process apart; leader election keeps processes apart; and
//! a call of a former leader that arrives late changes a name, but not which machine's status has the server's id.
//!
//! A server is wiped before it gets a free name. No machine finds what another one has left.

mod candidate;
mod host;
mod image;
#[cfg(test)]
pub(crate) mod scene;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::sync::Mutex;

use super::holders::Holders;
use super::{
    ClaimError, ClaimRequest, Destination, HeldHost, Host, HostName, ListedHost, MachineRecord, Machines,
    Pool, PoolError, ReleaseOutcome,
};
use crate::names::{HostId, MachineRef, Zone};
use crate::scaleway::{Image, Scaleway, Server};
use candidate::Choice;

/// Scaleway's servers.
pub(crate) struct ScalewayPool {
    scaleway: Scaleway,
    machines: Arc<dyn Machines>,
    /// Held from the first to the last call of a claim or a release.
    memory: Mutex<Memory>,
    /// Held while a key is replaced.
    keys: Mutex<()>,
}

/// What this process has done, and what nothing else says yet.
#[derive(Debug, Default)]
struct Memory {
    /// Claims whose machines may not have the id in their status yet.
    claimed: BTreeMap<HostId, MachineRef>,
    /// Servers that are being installed because this machine gives them back.
    wiped: BTreeMap<HostId, MachineRef>,
}

/// Whether a server is still its machine's.
enum Ownership {
    Ours(Box<Server>),
    Not(ReleaseOutcome),
}

impl ScalewayPool {
    /// A pool. `machines` says which machine holds which server.
    pub(crate) fn new(scaleway: Scaleway, machines: Arc<dyn Machines>) -> Self {
        Self { scaleway, machines, memory: Mutex::default(), keys: Mutex::default() }
    }

    async fn claim_server(&self, request: &ClaimRequest) -> Result<Host, ClaimError> {
        let machine = &request.machine;
        if let Some(reserved) = HostName::reserved(&machine.name, &request.prefix) {
            return Err(ClaimError::ReservedName {
                name: machine.name.clone(),
                reserved: reserved.to_owned(),
            });
        }
        let mut memory = self.memory.lock().await;
        let servers = self.scaleway.servers(&request.zone).await.map_err(PoolError::from)?;
        let records = self.machines.list().await.map_err(PoolError::from)?;
        let holders = Holders::new(&records, &memory.claimed);
        if !holders.knows(machine) {
            return Err(ClaimError::NoSuchMachine(machine.clone()));
        }
        let candidates = match candidate::choose(request, &servers, &holders) {
            Choice::Own(server) => {
                memory.claim(&server.id, machine);
                return Ok(host::of_server(server));
            }
            Choice::Try(candidates) => candidates,
            Choice::None(shortage) => return Err(ClaimError::NoAvailableHost(shortage)),
        };
        for candidate in candidates {
            if let Some(server) = self.try_claim(request, &candidate.id).await.map_err(PoolError::from)? {
                memory.claim(&server.id, machine);
                return Ok(host::of_server(&server));
            }
        }
        Err(ClaimError::NoAvailableHost(
            "those that were free have just been taken, or have begun to change".to_owned(),
        ))
    }

    /// Both phases for one server; `None` if it is no candidate any more. A failure of the second phase leaves a name by which later claims
    /// find the server.
    async fn try_claim(
        &self,
        request: &ClaimRequest,
        id: &HostId,
    ) -> Result<Option<Server>, crate::scaleway::ScalewayError> {
        let zone = &request.zone;
        let pending = HostName::new_pending();
        let passed_over = |error: crate::scaleway::ScalewayError| {
            if error.is_not_found() || error.transient_state().is_some() { Ok(None) } else { Err(error) }
        };
        if let Err(error) = self.scaleway.rename(zone, id, &pending).await {
            return passed_over(error);
        }
        match self.scaleway.server(zone, id).await {
            Ok(server) if server.name == pending => {}
            Ok(_) => return Ok(None),
            Err(error) => return passed_over(error),
        }
        self.scaleway.rename(zone, id, &request.machine.name).await.map(Some).or_else(passed_over)
    }

    async fn release_server(&self, held: &HeldHost, to: Destination) -> Result<ReleaseOutcome, PoolError> {
        let mut memory = self.memory.lock().await;
        let records = self.machines.list().await?;
        let server = match self.ownership(held, &records, &memory).await? {
            Ownership::Ours(server) => server,
            Ownership::Not(outcome) => {
                memory.forget(&held.id);
                return Ok(outcome);
            }
        };
        let released = match to {
            Destination::Pool => self.to_pool(held, &server, &mut memory).await,
            Destination::Quarantine => self.to_quarantine(held, &server, &mut memory).await,
        };
        match released {
            Ok(outcome) => {
                memory.forget(&held.id);
                Ok(outcome)
            }
            Err(PoolError::Scaleway(error)) if error.is_not_found() => {
                memory.forget(&held.id);
                Ok(ReleaseOutcome::Gone)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether the server is still this machine's: no other machine's status has it, and its name is one that claims and releases give. A
    /// free name can be that of an earlier try, and the name of another machine that of a call that arrived late.
    async fn ownership(
        &self,
        held: &HeldHost,
        records: &[MachineRecord],
        memory: &Memory,
    ) -> Result<Ownership, PoolError> {
        let server = match self.scaleway.server(&held.zone, &held.id).await {
            Err(error) if error.is_not_found() => return Ok(Ownership::Not(ReleaseOutcome::Gone)),
            server => server?,
        };
        let machine = &held.machine;
        let holders = Holders::new(records, &memory.claimed);
        let is_ours = match HostName::of(&server.name, &held.prefix) {
            HostName::Free | HostName::Pending => true,
            HostName::Quarantined => server.name == HostName::new_quarantined(&machine.name),
            HostName::Taken(name) => name == machine.name || holders.knows_name(name),
        };
        if is_ours && !holders.is_held_by_other(&held.id, machine) {
            Ok(Ownership::Ours(Box::new(server)))
        } else {
            Ok(Ownership::Not(ReleaseOutcome::NotOurs { name: server.name }))
        }
    }

    /// Wipes the server, then gives it a free name. A server that cannot be renamed while it is installed is renamed by a later try.
    async fn to_pool(
        &self,
        held: &HeldHost,
        server: &Server,
        memory: &mut Memory,
    ) -> Result<ReleaseOutcome, PoolError> {
        let os_unavailable = self.wipe(held, server, memory).await?;
        if HostName::of(&server.name, &held.prefix) != HostName::Free {
            let renamed = self.scaleway.rename(&held.zone, &held.id, &held.prefix.new_name()).await;
            renamed.map_err(busy)?;
        }
        Ok(ReleaseOutcome::Released { wiped: true, os_unavailable })
    }

    /// Renames the server, so that it is never handed out, and then wipes it, because its agent still has credentials. A server that is too
    /// broken to be wiped stays as it is.
    async fn to_quarantine(
        &self,
        held: &HeldHost,
        server: &Server,
        memory: &mut Memory,
    ) -> Result<ReleaseOutcome, PoolError> {
        let name = HostName::new_quarantined(&held.machine.name);
        if server.name != name {
            self.scaleway.rename(&held.zone, &held.id, &name).await.map_err(busy)?;
        }
        match self.wipe(held, server, memory).await {
            Ok(os_unavailable) => Ok(ReleaseOutcome::Released { wiped: true, os_unavailable }),
            Err(PoolError::Scaleway(error)) if error.is_refused() => {
                Ok(ReleaseOutcome::Released { wiped: false, os_unavailable: false })
            }
            Err(error) => Err(error),
        }
    }

    /// Has the server installed anew, once for each release. Whether the release of macOS that was asked for is not to be had.
    async fn wipe(&self, held: &HeldHost, server: &Server, memory: &mut Memory) -> Result<bool, PoolError> {
        if server.status == REINSTALLING || memory.wiped.get(&held.id) == Some(&held.machine) {
            return Ok(false);
        }
        let image = self.image(held, server).await?;
        match self.scaleway.reinstall(&held.zone, &held.id, image.as_ref()).await {
            Err(error) if error.transient_state() != Some(REINSTALLING) => return Err(busy(error)),
            _ => {}
        }
        memory.wiped.insert(held.id.clone(), held.machine.clone());
        Ok(held.os.is_some() && image.is_none())
    }

    /// The image to install. It is looked up each time: Scaleway retires images without notice.
    async fn image(&self, held: &HeldHost, server: &Server) -> Result<Option<Image>, PoolError> {
        let Some(family) = &held.os else { return Ok(None) };
        let images = self.scaleway.images(&held.zone, &server.kind).await?;
        Ok(image::newest(&images, family).cloned())
    }

    /// Adds the key before it removes others of its name: a server that is installed meanwhile has one that works.
    async fn ensure_key(&self, name: &str, authorized_key: &str) -> Result<(), PoolError> {
        let _keys = self.keys.lock().await;
        let keys = self.scaleway.ssh_keys(name).await?;
        let (same, others): (Vec<_>, Vec<_>) =
            keys.iter().partition(|key| key_words(&key.public_key) == key_words(authorized_key));
        if same.is_empty() {
            self.scaleway.add_ssh_key(name, authorized_key).await?;
        }
        for key in others {
            self.scaleway.remove_ssh_key(&key.id).await?;
        }
        Ok(())
    }
}

const REINSTALLING: &str = "reinstalling";

impl Memory {
    fn claim(&mut self, id: &HostId, machine: &MachineRef) {
        self.forget(id);
        self.claimed.insert(id.clone(), machine.clone());
    }

    fn forget(&mut self, id: &HostId) {
        self.claimed.remove(id);
        self.wiped.remove(id);
    }
}

/// A server that is doing something else is no failure.
fn busy(error: crate::scaleway::ScalewayError) -> PoolError {
    match error.transient_state() {
        Some(state) => PoolError::Busy(super::HostState::Changing(state.to_owned())),
        None => error.into(),
    }
}

/// Type and key, without the comment.
fn key_words(key: &str) -> Vec<&str> {
    key.split_whitespace().take(2).collect()
}

impl Pool for ScalewayPool {
    fn claim<'a>(&'a self, request: &'a ClaimRequest) -> BoxFuture<'a, Result<Host, ClaimError>> {
        self.claim_server(request).boxed()
    }

    fn host<'a>(&'a self, zone: &'a Zone, id: &'a HostId) -> BoxFuture<'a, Result<Option<Host>, PoolError>> {
        async move {
            match self.scaleway.server(zone, id).await {
                Ok(server) => Ok(Some(host::of_server(&server))),
                Err(error) if error.is_not_found() => Ok(None),
                Err(error) => Err(error.into()),
            }
        }
        .boxed()
    }

    fn hosts<'a>(&'a self, zone: &'a Zone) -> BoxFuture<'a, Result<Vec<ListedHost>, PoolError>> {
        async move {
            let servers = self.scaleway.servers(zone).await?;
            Ok(servers.into_iter().map(|server| ListedHost { id: server.id, name: server.name }).collect())
        }
        .boxed()
    }

    fn release<'a>(
        &'a self,
        held: &'a HeldHost,
        to: Destination,
    ) -> BoxFuture<'a, Result<ReleaseOutcome, PoolError>> {
        self.release_server(held, to).boxed()
    }

    fn reboot<'a>(&'a self, zone: &'a Zone, id: &'a HostId) -> BoxFuture<'a, Result<(), PoolError>> {
        async move {
            match self.scaleway.reboot(zone, id).await {
                Err(error) if error.is_not_found() => Err(PoolError::NoSuchHost(id.clone())),
                // An earlier try whose answer was lost.
                Err(error) if error.transient_state() == Some("rebooting") => Ok(()),
                rebooted => rebooted.map_err(busy),
            }
        }
        .boxed()
    }

    fn ensure_ssh_key<'a>(
        &'a self,
        name: &'a str,
        authorized_key: &'a str,
    ) -> BoxFuture<'a, Result<(), PoolError>> {
        self.ensure_key(name, authorized_key).boxed()
    }

    fn remove_ssh_key<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), PoolError>> {
        async move {
            let _keys = self.keys.lock().await;
            for key in self.scaleway.ssh_keys(name).await? {
                self.scaleway.remove_ssh_key(&key.id).await?;
            }
            Ok(())
        }
        .boxed()
    }
}
