//! What the reconciler decides for a machine of the model test: it looks at a real object, with the real decision.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::crd::ScalewayAppleSiliconMachine as Machine;
use crate::machine::{ClusterSeen, FINALIZER, Limits, Observed, Step, Turn, Vms, decide, provider_id};
use crate::pool::MachineRecord;
use crate::pool::scaleway::scene::prefix;

/// How often a machine is bootstrapped before its host is given up.
const ATTEMPTS: u32 = 2;

/// What the model knows of a machine beside its record.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known {
    pub(super) is_deleting: bool,
    pub(super) is_paused: bool,
    pub(super) has_failed: bool,
}

fn object(record: &MachineRecord, known: Known) -> Machine {
    let host = record.host.as_ref();
    let mut object: Value = json!({
        "apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1", "kind": "ScalewayAppleSiliconMachine",
        "metadata": { "name": record.machine.name, "namespace": record.machine.namespace, "finalizers": [FINALIZER] },
        "spec": { "adoptPoolPrefix": prefix().as_str() },
        "status": { "bootstrapAttempts": if known.has_failed { ATTEMPTS } else { 0 } },
    });
    if let Some(host) = host {
        object["spec"]["providerID"] = json!(provider_id(&record.zone, host));
        object["status"]["serverID"] = json!(host.as_str());
    }
    if known.is_deleting {
        object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    }
    if known.is_paused {
        object["metadata"]["annotations"] = json!({ "cluster.x-k8s.io/paused": "" });
    }
    serde_json::from_value(object).unwrap()
}

/// The next step for a machine. Its Cluster is ready, or paused with it.
pub(super) fn next_step(record: &MachineRecord, known: Known, is_cluster_paused: bool) -> Step {
    decide(&Observed {
        machine: &object(record, known),
        is_synced: true,
        cluster: if is_cluster_paused { ClusterSeen::Paused } else { ClusterSeen::Ready },
        node: None,
        desired: None,
        turn: Turn::Now,
        vms: Vms::None,
        default_prefix: None,
        limits: Limits {
            reboot_after: 0,
            bootstrap_attempts: ATTEMPTS,
            update_attempts: 0,
            terminal_retry_after: Duration::ZERO,
            roll_min_ready: Duration::ZERO,
        },
        now: Timestamp::UNIX_EPOCH,
    })
}
