//! The reclaimer of orphan hosts: finds hosts that no machine has and that are not free, counts them, and, where it is told to, gives them back.
//!
//! Hosts are left so by an object that was deleted by force, by a provider that died between a claim and its record, and by operators. An
//! operator's own host looks the same, so only names with a certain beginning are given back, and nothing is without it.

mod decide;
mod metrics;
#[cfg(test)]
mod model_decision;
#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;

pub(crate) use decide::{OrphanHost, Standing, standing};
pub(crate) use metrics::ReclaimMetrics;

use crate::error_chain::chain;
use crate::names::{HostId, MachineRef, Zone};
use crate::pool::{
    Destination, HeldHost, ListedHost, MachineRecord, Machines, MachinesError, Pool, PoolError, PoolPrefix,
    ReleaseOutcome,
};

/// What is looked at, and what may be given back.
#[derive(Debug, Clone)]
pub(crate) struct ReclaimSettings {
    /// `--default-adopt-pool-prefix`: what reclaimed hosts are called. Without it there is no reclaimer.
    pub(crate) prefix: PoolPrefix,
    /// `--orphan-reclaim-zones`. The zones of all machines are looked at as well.
    pub(crate) zones: Vec<Zone>,
    /// `--orphan-reclaim-claim-name-prefix`: only hosts whose names begin so are given back. `None`: none is, they are only counted.
    pub(crate) claim_name_prefix: Option<String>,
}

/// Finds orphan hosts. Only the leader runs it.
pub(crate) struct Reclaimer {
    pool: Arc<dyn Pool>,
    machines: Arc<dyn Machines>,
    settings: ReclaimSettings,
    metrics: ReclaimMetrics,
}

/// What one look at all zones has found and done.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Cycle {
    /// The orphan hosts, by zone and reason.
    pub(crate) orphans: Vec<(Zone, OrphanHost, HostId)>,
    /// Hosts that were given back.
    pub(crate) reclaimed: Vec<HostId>,
}

/// Why a look was broken off. The next one comes anyway.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReclaimError {
    /// Nothing may be given back without knowing who has it.
    #[error(transparent)]
    Machines(#[from] MachinesError),
    /// A zone could not be looked at; the others were.
    #[error("cannot look at {zone}")]
    Zone {
        /// The zone.
        zone: Zone,
        /// Why.
        #[source]
        source: PoolError,
    },
}

impl Reclaimer {
    /// A reclaimer.
    pub(crate) fn new(
        pool: Arc<dyn Pool>,
        machines: Arc<dyn Machines>,
        settings: ReclaimSettings,
        metrics: ReclaimMetrics,
    ) -> Self {
        Self { pool, machines, settings, metrics }
    }

    /// Looks at all zones once. A zone that fails does not keep the others from being looked at; its error is the result.
    pub(crate) async fn cycle(&self) -> Result<Cycle, ReclaimError> {
        let records = self.machines.list().await?;
        let zones: BTreeSet<Zone> =
            self.settings.zones.iter().chain(records.iter().map(|record| &record.zone)).cloned().collect();
        let mut cycle = Cycle::default();
        let mut failed = None;
        for zone in zones {
            if let Err(error) = self.look_at(&zone, &records, &mut cycle).await {
                match error {
                    ReclaimError::Machines(_) => return Err(error),
                    ReclaimError::Zone { .. } => failed = failed.or(Some(error)),
                }
            }
        }
        failed.map_or(Ok(cycle), Err)
    }

    async fn look_at(
        &self,
        zone: &Zone,
        records: &[MachineRecord],
        cycle: &mut Cycle,
    ) -> Result<(), ReclaimError> {
        let hosts = self.pool.hosts(zone).await;
        let hosts = hosts.map_err(|source| ReclaimError::Zone { zone: zone.clone(), source })?;
        let standings: Vec<Standing> =
            hosts.iter().map(|host| standing(host, &self.settings, records)).collect();
        self.metrics.count(zone, &standings);
        for (host, standing) in hosts.iter().zip(standings) {
            if let Standing::Orphan(orphan) = standing {
                self.attend_to(zone, host, orphan, cycle).await?;
            }
        }
        Ok(())
    }

    /// Gives an orphan host back, if that is asked for.
    async fn attend_to(
        &self,
        zone: &Zone,
        host: &ListedHost,
        orphan: OrphanHost,
        cycle: &mut Cycle,
    ) -> Result<(), ReclaimError> {
        cycle.orphans.push((zone.clone(), orphan, host.id.clone()));
        if !decide::may_be_reclaimed(orphan, &host.name, &self.settings) {
            tracing::warn!(%zone, host = %host.id, name = host.name, reason = orphan.as_str(), "a host belongs to no machine and is not free");
            return Ok(());
        }
        // A machine may have got this host since the list.
        let records = self.machines.list().await?;
        if matches!(standing(host, &self.settings, &records), Standing::Orphan(_)) {
            self.reclaim(zone, &host.id, &host.name, cycle).await;
        }
        Ok(())
    }

    /// Gives a host back if it still bears the name that it bore in the list. An operator, or a claim, may have renamed it since.
    async fn reclaim(&self, zone: &Zone, id: &HostId, name: &str, cycle: &mut Cycle) {
        match self.pool.host(zone, id).await {
            Ok(Some(host)) if host.name == name => {}
            Ok(now) => {
                let now = now.map(|host| host.name);
                tracing::info!(%zone, host = %id, name, ?now, "a host that had no machine was left alone");
                return;
            }
            Err(error) => {
                tracing::warn!(%zone, host = %id, name, error = chain(&error), "a host without a machine cannot be looked at");
                return;
            }
        }
        let held = HeldHost {
            // No machine has this host.
            machine: MachineRef { namespace: String::new(), name: name.to_owned() },
            id: id.clone(),
            zone: zone.clone(),
            prefix: self.settings.prefix.clone(),
            os: None,
        };
        match self.pool.release(&held, Destination::Pool).await {
            Ok(ReleaseOutcome::Released { .. }) => {
                tracing::warn!(%zone, host = %id, name, "a host without a machine is given back to the pool");
                self.metrics.reclaimed();
                cycle.reclaimed.push(id.clone());
            }
            Ok(outcome) => {
                tracing::info!(%zone, host = %id, name, ?outcome, "a host that had no machine was left alone");
            }
            Err(error) => {
                tracing::warn!(%zone, host = %id, name, error = chain(&error), "a host without a machine cannot be given back yet");
            }
        }
    }
}
