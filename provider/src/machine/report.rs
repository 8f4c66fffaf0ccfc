//! What a decision says in the status of a machine.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::decide::{BOOTSTRAPPED, HOST_UP_TO_DATE, PROVISIONED, READY, Report};
use crate::crd::{
    AddressType, ConditionStatus, Initialization, MachineAddress, Phase,
    ScalewayAppleSiliconMachineStatus as Status, find_condition, set_condition,
};
use ConditionStatus::{False, True};

/// Why a roll failed that says nothing about the configuration.
pub(super) const HOST_NOT_READY: &str = "HostNotReady";
/// Why rolls of a machine have ended.
const ROLL_ENDED: &str = "TartKubeletUpdateExceededRetries";

/// Sets a condition of a status.
pub(super) fn condition(
    status: &mut Status,
    type_: &str,
    is: ConditionStatus,
    reason: &str,
    message: &str,
    now: Timestamp,
) {
    set_condition(&mut status.conditions, type_, is, reason, message, now);
}

/// Writes a report into a status.
pub(super) fn write(status: &mut Status, report: &Report, now: Timestamp) {
    match report {
        // A pause leaves everything as it is.
        Report::Paused | Report::WaitsAfterFailure | Report::WaitsForWatches => {}
        Report::WaitsForCluster => {
            if status.server_id.is_none() {
                let message = "its Cluster is missing, or its infrastructure is not provisioned";
                condition(status, PROVISIONED, False, "WaitingForCluster", message, now);
                status.phase = Some(Phase::Pending);
            }
        }
        Report::Refused { reason, message } => {
            let which = if status.server_id.is_some() { BOOTSTRAPPED } else { PROVISIONED };
            condition(status, which, False, reason, message, now);
            if status.server_id.is_none() {
                status.phase = Some(Phase::Pending);
            }
        }
        Report::WaitsForNode => {
            let message = "the agent runs on the host; its Node is not there yet";
            condition(status, BOOTSTRAPPED, False, "WaitingForNode", message, now);
        }
        Report::NotJoined => {
            bootstrap_failed(
                status,
                "NodeNotJoined",
                "the agent runs on the host, but did not join the cluster in time",
                now,
            );
            // The next attempt looks at everything again.
            status.host_config_hash = None;
        }
        Report::NodeMissing => {
            condition(status, BOOTSTRAPPED, False, "NodeMissing", "the Node of this machine is gone", now);
            status.phase = Some(Phase::Bootstrapping);
        }
        Report::Joined => {
            condition(status, BOOTSTRAPPED, True, "NodeJoined", "", now);
            status.bootstrap_attempts = None;
            status.bootstrap_reboot_issued = None;
            status.last_bootstrap_failure_time = None;
            up_to_date(status, now);
        }
        Report::WaitsForTurn(why) => condition(status, HOST_UP_TO_DATE, False, "RollPending", why, now),
        Report::RollHalted(why) => condition(status, HOST_UP_TO_DATE, False, "RollHalted", why, now),
        Report::RollEnded => {
            let message = status.failure_message.clone().unwrap_or_default();
            status.failure_reason.get_or_insert_with(|| ROLL_ENDED.to_owned());
            status.phase = Some(Phase::Failed);
            condition(status, HOST_UP_TO_DATE, False, "RollEnded", &message, now);
        }
        Report::CredentialsMissing => {
            let message = "the Secret with the host's user is gone, and the pool does not have it, either";
            condition(status, HOST_UP_TO_DATE, False, "CredentialsMissing", message, now);
        }
        Report::UpToDate => up_to_date(status, now),
    }
    ready(status, now);
}

fn up_to_date(status: &mut Status, now: Timestamp) {
    condition(status, HOST_UP_TO_DATE, True, "UpToDate", "", now);
    status.ready = true;
    status.initialization = Some(Initialization { provisioned: Some(true) });
    status.phase = Some(Phase::Ready);
    status.failure_reason = None;
    status.failure_message = None;
    status.failed_host_config_hash = None;
    status.tart_kubelet_update_attempts = None;
}

/// The summary, which Cluster API shows in its Machine.
pub(super) fn ready(status: &mut Status, now: Timestamp) {
    let first = [PROVISIONED, BOOTSTRAPPED].into_iter().find_map(|type_| {
        let known = find_condition(&status.conditions, type_)?;
        (known.status != True).then(|| (known.reason.clone(), known.message.clone()))
    });
    let (is, reason, message) = match first {
        Some((reason, message)) => (False, reason, message),
        None if status.ready => (True, Some("Ready".to_owned()), None),
        None => (False, Some("NotBootstrapped".to_owned()), None),
    };
    condition(status, READY, is, &reason.unwrap_or_default(), &message.unwrap_or_default(), now);
}

/// A host was claimed.
pub(super) fn claimed(status: &mut Status, server: &str, now: Timestamp) {
    status.server_id = Some(server.to_owned());
    status.bootstrap_attempts = None;
    status.bootstrap_reboot_issued = None;
    status.last_bootstrap_failure_time = None;
    status.phase = Some(Phase::Bootstrapping);
    condition(status, PROVISIONED, True, "HostClaimed", "", now);
}

/// A bootstrap failed.
pub(super) fn bootstrap_failed(status: &mut Status, reason: &str, message: &str, now: Timestamp) {
    status.bootstrap_attempts = Some(status.bootstrap_attempts.unwrap_or(0).saturating_add(1));
    status.last_bootstrap_failure_time = Some(Time(now));
    status.phase = Some(Phase::Bootstrapping);
    condition(status, BOOTSTRAPPED, False, reason, message, now);
}

/// A host could not be restarted: it is as if a bootstrap had failed, and ends as that does.
pub(super) fn reboot_failed(status: &mut Status, now: Timestamp) {
    status.bootstrap_attempts = Some(status.bootstrap_attempts.unwrap_or(0).saturating_add(1));
    status.last_bootstrap_failure_time = Some(Time(now));
}

/// A roll could not begin, which is not the host's fault. It is tried again after a pause, and counts as no failure.
pub(super) fn roll_waits(status: &mut Status, reason: &str, message: &str, now: Timestamp) {
    status.last_update_failure_time = Some(Time(now));
    condition(status, HOST_UP_TO_DATE, False, reason, message, now);
}

/// The host has its configuration. The time of the condition is when the agent began to join.
pub(super) fn converged(status: &mut Status, hash: &str, binary: &str, now: Timestamp) {
    status.host_config_hash = Some(hash.to_owned());
    status.tart_kubelet_binary_sha = Some(binary.to_owned());
    status.conditions.retain(|known| known.type_ != BOOTSTRAPPED);
    write(status, &Report::WaitsForNode, now);
}

/// The host has this address in its tailnet, or none.
pub(super) fn in_tailnet(status: &mut Status, tailnet: Option<MachineAddress>) {
    status.addresses.retain(|known| known.type_ != AddressType::InternalIP);
    status.addresses.extend(tailnet);
}

/// A roll succeeded.
pub(super) fn rolled(status: &mut Status, hash: &str, binary: &str, now: Timestamp) {
    status.host_config_hash = Some(hash.to_owned());
    status.tart_kubelet_binary_sha = Some(binary.to_owned());
    write(status, &Report::UpToDate, now);
}

/// A roll failed. Attempts count for one configuration.
pub(super) fn roll_failed(
    status: &mut Status,
    desired: &str,
    limit: u32,
    was_ready: bool,
    message: &str,
    now: Timestamp,
) {
    let is_same = status.failed_host_config_hash.as_deref() == Some(desired);
    let attempts = status.tart_kubelet_update_attempts.filter(|_| is_same).unwrap_or(0).saturating_add(1);
    status.tart_kubelet_update_attempts = Some(attempts);
    status.failed_host_config_hash = Some(desired.to_owned());
    status.last_update_failure_time = Some(Time(now));
    status.failure_message = Some(message.to_owned());
    status.failure_reason = (!was_ready).then(|| HOST_NOT_READY.to_owned());
    condition(status, HOST_UP_TO_DATE, False, "RollFailed", message, now);
    if limit > 0 && u32::try_from(attempts).unwrap_or(0) >= limit {
        write(status, &Report::RollEnded, now);
    }
}

/// An operator lets rolls begin again.
pub(super) fn resumed(status: &mut Status, now: Timestamp) {
    status.failed_host_config_hash = None;
    status.tart_kubelet_update_attempts = None;
    status.failure_reason = None;
    status.failure_message = None;
    if status.phase == Some(Phase::Failed) {
        status.phase = Some(Phase::Ready);
    }
    condition(status, HOST_UP_TO_DATE, False, "RollPending", "", now);
}

/// The host was given up. The machine is as before its claim, and waits a little before the next.
pub(super) fn given_up(status: &mut Status, message: &str, now: Timestamp) {
    *status = Status {
        phase: Some(Phase::Pending),
        conditions: std::mem::take(&mut status.conditions),
        last_bootstrap_failure_time: Some(Time(now)),
        ..Status::default()
    };
    condition(status, PROVISIONED, False, "HostReleased", message, now);
    status.conditions.retain(|known| known.type_ != BOOTSTRAPPED && known.type_ != HOST_UP_TO_DATE);
    ready(status, now);
}
