//! The Node: the agent's version, the heartbeat, the Node's conditions and the addresses that are left for VMs.

use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use jiff::Timestamp;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

use super::{Label, Metrics};
use crate::mutex::lock;
use crate::os::availability::Availability;

metrics! {
    pub(super) struct NodeMetrics {
        started: Instant = Instant::now();
        heartbeat: Mutex<HeartbeatTimes> = Mutex::default();
        build_info: Family<Label, Gauge> = build_info(),
            "tart_kubelet_build_info", "The version of the agent";
        heartbeat_age: Gauge<f64, AtomicU64> = Gauge::default(),
            "tart_kubelet_heartbeat_age_seconds", "Time since the Node's Lease was last renewed, or since the start";
        conditions: Family<[(&'static str, &'static str); 2], Gauge> = Family::default(),
            "tart_kubelet_node_condition", "The Node's conditions as the agent says them";
        addresses: Family<Label, Gauge> = Family::default(),
            "tart_kubelet_dhcp_addresses", "Addresses that macOS has for VMs: those that can be lent, and all";
        certificates: Family<Label, Gauge> = Family::default(),
            "tart_kubelet_certificate_expiration_timestamp_seconds",
            "When the certificate expires with which the agent is a client of the API server, if it is the agent's own";
    }
}

fn build_info() -> Family<Label, Gauge> {
    let info = Family::<Label, Gauge>::default();
    info.get_or_create(&[("version", env!("CARGO_PKG_VERSION"))]).set(1);
    info
}

/// When the heartbeat last did what it is for.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct HeartbeatTimes {
    /// Its loop ran, whether or not it had a Lease to renew.
    pub(crate) looped: Option<Instant>,
    pub(crate) renewed: Option<Instant>,
}

impl NodeMetrics {
    pub(super) fn update_heartbeat_age(&self) {
        let since = lock(&self.heartbeat).renewed.unwrap_or(self.started);
        self.heartbeat_age.set(since.elapsed().as_secs_f64());
    }
}

impl Metrics {
    pub(crate) fn heartbeat_looped(&self) {
        lock(&self.0.node.heartbeat).looped = Some(Instant::now());
    }

    pub(crate) fn lease_renewed(&self) {
        lock(&self.0.node.heartbeat).renewed = Some(Instant::now());
    }

    pub(crate) fn heartbeat(&self) -> HeartbeatTimes {
        *lock(&self.0.node.heartbeat)
    }

    /// Replaces the Node's conditions: the type of each, and whether it is `True`.
    pub(crate) fn node_conditions(&self, conditions: impl IntoIterator<Item = (&'static str, bool)>) {
        for (condition, holds) in conditions {
            for (status, is_current) in [("True", holds), ("False", !holds)] {
                let labels = [("condition", condition), ("status", status)];
                self.0.node.conditions.get_or_create(&labels).set(i64::from(is_current));
            }
        }
    }

    /// When the agent's own client certificate expires; `None` if it has none.
    pub(crate) fn certificate_end(&self, end: Option<Timestamp>) {
        let family = &self.0.node.certificates;
        let Some(end) = end else { return family.clear() };
        family.get_or_create(&[("certificate", "client")]).set(end.as_second());
    }

    /// Addresses for VMs; `None` where the agent does not know how many there are.
    pub(crate) fn dhcp_addresses(&self, addresses: Option<Availability>) {
        let family = &self.0.node.addresses;
        let Some(Availability { available, total }) = addresses else { return family.clear() };
        for (state, number) in [("available", available), ("total", total)] {
            family.get_or_create(&[("state", state)]).set(number.try_into().unwrap_or(i64::MAX));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::tests::assert_lines;

    #[test]
    fn each_condition_has_a_sample_per_status() {
        let metrics = Metrics::new();
        metrics.node_conditions([("Ready", true)]);
        metrics.node_conditions([("Ready", false)]);
        assert_lines(
            &metrics,
            &[
                "tart_kubelet_node_condition{condition=\"Ready\",status=\"False\"} 1",
                "tart_kubelet_node_condition{condition=\"Ready\",status=\"True\"} 0",
            ],
        );
    }

    #[test]
    fn a_certificate_that_is_gone_has_no_sample() {
        let metrics = Metrics::new();
        metrics.certificate_end(Some(Timestamp::constant(1_900_000_000, 0)));
        let name = "tart_kubelet_certificate_expiration_timestamp_seconds";
        assert_lines(&metrics, &[&format!("{name}{{certificate=\"client\"}} 1900000000")]);
        metrics.certificate_end(None);
        assert!(!metrics.text().contains(name), "{}", metrics.text());
    }

    #[test]
    fn unknown_addresses_have_no_samples() {
        let metrics = Metrics::new();
        metrics.dhcp_addresses(Some(Availability { available: 3, total: 254 }));
        assert_lines(&metrics, &["tart_kubelet_dhcp_addresses{state=\"available\"} 3"]);
        metrics.dhcp_addresses(None);
        assert!(!metrics.text().contains("dhcp"), "{}", metrics.text());
    }
}
