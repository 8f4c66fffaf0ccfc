//! What is counted.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt as _;
use kube::runtime::reflector::Store;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::crd::{ConditionStatus, Phase, ScalewayAppleSiliconMachine as Machine};

const BUCKETS: [f64; 9] = [0.01, 0.1, 1.0, 5.0, 15.0, 60.0, 180.0, 600.0, 1800.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MachineLabels {
    machine: String,
    fleet: String,
    phase: &'static str,
    failure_reason: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WaitLabels {
    machine: String,
    condition: String,
    reason: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    result: &'static str,
}

/// What is counted as it happens.
#[derive(Debug)]
pub(crate) struct Metrics {
    rolls: Family<ResultLabels, Counter>,
    passes: Family<ResultLabels, Counter>,
    durations: Histogram,
    is_leader: AtomicBool,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            rolls: results(),
            passes: results(),
            durations: Histogram::new(BUCKETS),
            is_leader: AtomicBool::new(false),
        }
    }
}

fn result(is_ok: bool) -> ResultLabels {
    ResultLabels { result: if is_ok { "success" } else { "failure" } }
}

/// Counters that are 0 before the first event: Prometheus sees an increase only from a value that it has scraped.
fn results() -> Family<ResultLabels, Counter> {
    let counters = Family::<ResultLabels, Counter>::default();
    for is_ok in [true, false] {
        drop(counters.get_or_create(&result(is_ok)));
    }
    counters
}

impl Metrics {
    pub(crate) fn rolled(&self, is_ok: bool) {
        self.rolls.get_or_create(&result(is_ok)).inc();
    }

    pub(crate) fn reconciled(&self, took: Duration, is_ok: bool) {
        self.passes.get_or_create(&result(is_ok)).inc();
        self.durations.observe(took.as_secs_f64());
    }

    pub(crate) fn lead(&self) {
        self.is_leader.store(true, Ordering::Relaxed);
    }

    /// All figures as text, with those that others add. Those of machines come from the watch at this moment: a machine that is gone has none.
    pub(crate) fn text(
        &self,
        machines: &Store<Machine>,
        now: Timestamp,
        add: impl FnOnce(&mut Registry),
    ) -> String {
        let mut registry = Registry::default();
        let phases = Family::<MachineLabels, Gauge>::default();
        let waits = Family::<WaitLabels, Gauge>::default();
        for machine in machines.state() {
            let status = machine.status.clone().unwrap_or_default();
            let labels = MachineLabels {
                machine: machine.name_any(),
                fleet: machine.spec.fleet_name.clone().unwrap_or_default(),
                phase: status.phase.unwrap_or(Phase::Pending).as_str(),
                failure_reason: status.failure_reason.unwrap_or_default(),
            };
            phases.get_or_create(&labels).set(1);
            for known in status.conditions.iter().filter(|known| known.status != ConditionStatus::True) {
                let labels = WaitLabels {
                    machine: machine.name_any(),
                    condition: known.type_.clone(),
                    reason: known.reason.clone().unwrap_or_default(),
                };
                waits.get_or_create(&labels).set(now.duration_since(known.last_transition_time.0).as_secs());
            }
        }
        let leader = Gauge::<i64>::default();
        leader.set(self.is_leader.load(Ordering::Relaxed).into());
        let help = "The phase of each machine, and why rolls of it have ended";
        registry.register("capt_scaleway_applesilicon_machine_phase", help, phases);
        let help = "For how many seconds a condition of a machine has not been true";
        registry.register("tart_provider_machine_condition_not_true_seconds", help, waits);
        registry.register("tart_provider_rolls", "Rolls of hosts", self.rolls.clone());
        registry.register("tart_provider_reconciles", "Passes over machines", self.passes.clone());
        registry.register("tart_provider_reconcile_seconds", "How long passes take", self.durations.clone());
        registry.register("tart_provider_leader", "Whether this provider acts", leader);
        add(&mut registry);
        let mut text = String::new();
        // Writing to memory does not fail.
        let _ = encode(&mut text, &registry);
        text
    }
}
