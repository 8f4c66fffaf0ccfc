//! What is counted about hosts.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::{OrphanHost, Standing};
use crate::names::Zone;

/// The labels of a count of orphan hosts.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OrphanLabels {
    zone: String,
    reason: &'static str,
}

/// The labels of a count of hosts.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HostLabels {
    zone: String,
    state: &'static str,
}

/// The counts.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReclaimMetrics {
    hosts: Family<HostLabels, Gauge>,
    orphans: Family<OrphanLabels, Gauge>,
    reclaimed: Counter,
}

impl ReclaimMetrics {
    /// Adds the counts to those that are served.
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "tart_provider_pool_hosts",
            "Hosts by whose they are, when they were last looked at",
            self.hosts.clone(),
        );
        registry.register(
            "scaleway_orphan_servers",
            "Hosts that no machine has and that are not free",
            self.orphans.clone(),
        );
        registry.register(
            "scaleway_orphan_servers_reclaimed",
            "Hosts without a machine that were given back to the pool",
            self.reclaimed.clone(),
        );
    }

    /// Sets the counts of a zone. What is gone becomes zero.
    pub(super) fn count(&self, zone: &Zone, hosts: &[Standing]) {
        let number = |is: &dyn Fn(&Standing) -> bool| {
            i64::try_from(hosts.iter().filter(|standing| is(standing)).count()).unwrap_or(i64::MAX)
        };
        for state in Standing::WORDS {
            let labels = HostLabels { zone: zone.to_string(), state };
            self.hosts.get_or_create(&labels).set(number(&|standing| standing.as_str() == state));
        }
        for reason in OrphanHost::ALL {
            let labels = OrphanLabels { zone: zone.to_string(), reason: reason.as_str() };
            self.orphans
                .get_or_create(&labels)
                .set(number(&|standing| *standing == Standing::Orphan(reason)));
        }
    }

    pub(super) fn reclaimed(&self) {
        self.reclaimed.inc();
    }
}
