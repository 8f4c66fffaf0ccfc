//! What is counted about orphans.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::Orphan;
use crate::names::Zone;

/// The labels of a count.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    zone: String,
    reason: &'static str,
}

/// The counts.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReclaimMetrics {
    orphans: Family<Labels, Gauge>,
    reclaimed: Counter,
}

impl ReclaimMetrics {
    /// Adds the counts to those that are served.
    pub(crate) fn register(&self, registry: &mut Registry) {
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

    /// Sets the counts of a zone. A reason that is gone becomes zero.
    pub(super) fn count(&self, zone: &Zone, orphans: &[Orphan]) {
        for reason in Orphan::ALL {
            let labels = Labels { zone: zone.to_string(), reason: reason.as_str() };
            let number = orphans.iter().filter(|orphan| **orphan == reason).count();
            self.orphans.get_or_create(&labels).set(i64::try_from(number).unwrap_or(i64::MAX));
        }
    }

    pub(super) fn reclaimed(&self) {
        self.reclaimed.inc();
    }
}
