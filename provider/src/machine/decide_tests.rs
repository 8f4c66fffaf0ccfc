//! What is decided for machines in all their states.

use std::time::Duration;

use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::decide::{ClusterSeen, Limits, NodeSeen, Observed, Report, Step, Vms, decide};
use super::roll::Turn;
use crate::crd::ScalewayAppleSiliconMachine as Machine;
use crate::pool::PoolPrefix;

const ID: &str = "scw-applesilicon://fr-par-1/7f6b";
const NOW: i64 = 1_000_000;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// A machine with a finalizer, and this in it.
fn machine(metadata: &Value, spec: &Value, status: &Value) -> Machine {
    let mut meta = json!({ "name": "mac", "namespace": "n", "finalizers": [super::FINALIZER] });
    for (key, value) in metadata.as_object().unwrap() {
        meta[key] = value.clone();
    }
    let kind = json!({
        "apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1", "kind": "ScalewayAppleSiliconMachine",
        "metadata": meta, "spec": spec, "status": status,
    });
    serde_json::from_value(kind).unwrap()
}

fn with_status(status: &Value) -> Machine {
    machine(&json!({}), &json!({ "providerID": ID }), status)
}

fn bootstrapped(is: &str, ago: i64) -> Value {
    json!([{ "type": "Bootstrapped", "status": is, "lastTransitionTime": at(NOW - ago).to_string() }])
}

fn seen(machine: &Machine) -> Observed<'_> {
    Observed {
        machine,
        is_synced: true,
        cluster: ClusterSeen::Ready,
        node: Some(NodeSeen { provider_id: Some(ID.to_owned()) }),
        desired: Some("new"),
        turn: Turn::Now,
        vms: Vms::None,
        default_prefix: None,
        limits: Limits {
            reboot_after: 3,
            bootstrap_attempts: 8,
            update_attempts: 5,
            terminal_retry_after: Duration::from_mins(30),
            roll_min_ready: Duration::from_mins(1),
        },
        now: at(NOW),
    }
}

fn reported(step: &Step) -> Option<&Report> {
    match step {
        Step::Report(report, _) => Some(report),
        _ => None,
    }
}

#[test]
fn deletion_comes_before_everything_and_goes_on_while_paused() {
    let deleted = json!({ "deletionTimestamp": "2026-01-01T00:00:00Z", "annotations": { "cluster.x-k8s.io/paused": "" } });
    let held = machine(&deleted, &json!({}), &json!({ "serverID": "7f6b" }));
    for cluster in [ClusterSeen::None, ClusterSeen::Missing, ClusterSeen::Paused, ClusterSeen::NotReady] {
        assert_eq!(decide(&Observed { cluster, ..seen(&held) }), Step::Delete);
    }
    let done = machine(
        &json!({ "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [] }),
        &json!({}),
        &json!({}),
    );
    assert_eq!(decide(&seen(&done)), Step::Nothing);
}

#[test]
fn a_paused_machine_gets_its_finalizer_and_nothing_else() {
    let bare = machine(&json!({ "finalizers": [] }), &json!({}), &json!({}));
    assert_eq!(decide(&Observed { cluster: ClusterSeen::Paused, ..seen(&bare) }), Step::AddFinalizer);
    let plain = machine(&json!({}), &json!({ "adoptPoolPrefix": "p-" }), &json!({}));
    let by_cluster = decide(&Observed { cluster: ClusterSeen::Paused, ..seen(&plain) });
    assert_eq!(reported(&by_cluster), Some(&Report::Paused));
    let annotated = json!({ "annotations": { "cluster.x-k8s.io/paused": "false" } });
    let annotated = machine(&annotated, &json!({ "adoptPoolPrefix": "p-" }), &json!({}));
    // Before the readiness of the Cluster: a paused machine does not look at it again and again.
    let by_annotation = decide(&Observed { cluster: ClusterSeen::NotReady, ..seen(&annotated) });
    assert_eq!(reported(&by_annotation), Some(&Report::Paused));
}

#[test]
fn a_machine_without_a_host_claims_one_that_it_may_have() {
    let claim = |spec: &Value| machine(&json!({}), spec, &json!({}));
    let own = claim(&json!({ "adoptPoolPrefix": "own-" }));
    let Step::Claim(settings) = decide(&seen(&own)) else { panic!("no claim") };
    assert_eq!(settings.prefix.as_str(), "own-");
    let default = PoolPrefix::new("tuist-pool-");
    let legacy = claim(&json!({}));
    let Step::Claim(settings) = decide(&Observed { default_prefix: default.as_ref(), ..seen(&legacy) })
    else {
        panic!("no claim")
    };
    assert_eq!(settings.prefix.as_str(), "tuist-pool-");
    for (spec, reason) in [
        (json!({}), "NoAdoptPoolPrefix"),
        (json!({ "adoptPoolPrefix": "p-", "os": "macos-tahoe-26.3" }), "InvalidOSPin"),
        (json!({ "adoptPoolPrefix": "p-", "zone": "../x" }), "InvalidZone"),
    ] {
        let machine = claim(&spec);
        let step = decide(&seen(&machine));
        assert!(
            matches!(reported(&step), Some(Report::Refused { reason: is, .. }) if *is == reason),
            "{step:?}"
        );
    }
    assert_eq!(
        reported(&decide(&Observed { cluster: ClusterSeen::NotReady, ..seen(&own) })),
        Some(&Report::WaitsForCluster)
    );
}

#[test]
fn a_provider_id_is_filled_and_never_overwritten() {
    let none = machine(&json!({}), &json!({}), &json!({ "serverID": "7f6b" }));
    assert_eq!(decide(&seen(&none)), Step::SetProviderId(ID.to_owned()));
    let other = machine(
        &json!({}),
        &json!({ "providerID": "scw-applesilicon://fr-par-1/other" }),
        &json!({ "serverID": "7f6b" }),
    );
    assert!(matches!(
        reported(&decide(&seen(&other))),
        Some(Report::Refused { reason: "ProviderIDMismatch", .. })
    ));
    let held = with_status(&json!({ "serverID": "7f6b" }));
    let foreign = Some(NodeSeen { provider_id: Some("scw-applesilicon://fr-par-1/other".to_owned()) });
    let step = decide(&Observed { node: foreign, ..seen(&held) });
    assert!(matches!(reported(&step), Some(Report::Refused { reason: "NodeNameTaken", .. })), "{step:?}");
}

#[test]
fn a_host_is_bootstrapped_until_its_node_has_joined() {
    let fresh = with_status(&json!({ "serverID": "7f6b" }));
    assert_eq!(decide(&Observed { node: None, ..seen(&fresh) }), Step::Bootstrap);
    let converged = |ago| {
        with_status(
            &json!({ "serverID": "7f6b", "hostConfigHash": "new", "conditions": bootstrapped("False", ago) }),
        )
    };
    let waits = converged(10);
    assert_eq!(reported(&decide(&Observed { node: None, ..seen(&waits) })), Some(&Report::WaitsForNode));
    assert_eq!(reported(&decide(&seen(&waits))), Some(&Report::Joined));
    let late = converged(1000);
    assert_eq!(reported(&decide(&Observed { node: None, ..seen(&late) })), Some(&Report::NotJoined));
}

/// After a start the watches are empty for a while, and every Node seems to be gone.
#[test]
fn nothing_is_decided_before_the_watches_have_shown_the_cluster() {
    let served = with_status(&json!({
        "serverID": "7f6b", "ready": true, "hostConfigHash": "old", "conditions": bootstrapped("True", 1000),
    }));
    let empty = Observed { node: None, is_synced: false, cluster: ClusterSeen::Missing, ..seen(&served) };
    assert_eq!(reported(&decide(&empty)), Some(&Report::WaitsForWatches));
    // The watch of Clusters has yet to show that this one is paused.
    let mut deleted = served.clone();
    deleted.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(1000)));
    assert_eq!(
        reported(&decide(&Observed { is_synced: false, ..seen(&deleted) })),
        Some(&Report::WaitsForWatches)
    );
    assert_eq!(decide(&seen(&deleted)), Step::Delete);
    assert_eq!(reported(&decide(&Observed { node: None, ..seen(&served) })), Some(&Report::NodeMissing));
}

/// The Node of a machine that has served is gone while a new configuration is rolled out: no way around the first machine of the fleet.
#[test]
fn a_host_that_has_served_is_bootstrapped_with_another_configuration_in_its_turn() {
    let missing = |ready: bool| {
        with_status(&json!({
            "serverID": "7f6b", "ready": ready, "hostConfigHash": "old", "conditions": bootstrapped("False", 1000),
        }))
    };
    let (served, new) = (missing(true), missing(false));
    let with = |machine, turn| decide(&Observed { node: None, turn, ..seen(machine) });
    assert_eq!(with(&served, Turn::Now), Step::Bootstrap);
    let halted = with(&served, Turn::Halted("why".to_owned()));
    assert_eq!(reported(&halted), Some(&Report::RollHalted("why".to_owned())));
    let later = with(&served, Turn::Later("why".to_owned()));
    assert_eq!(reported(&later), Some(&Report::WaitsForTurn("why".to_owned())));
    assert_eq!(with(&new, Turn::Halted("why".to_owned())), Step::Bootstrap);
    // It did not join, so that its configuration is looked at anew. That is no roll.
    let repaired =
        with_status(&json!({ "serverID": "7f6b", "ready": true, "conditions": bootstrapped("False", 1000) }));
    assert_eq!(with(&repaired, Turn::Halted("why".to_owned())), Step::Bootstrap);
}

/// A pool that refuses every restart keeps no machine from another host.
#[test]
fn restarts_that_fail_end_in_quarantine() {
    let mut status = failing(3, &json!({})).status.unwrap();
    for attempts in 3..8 {
        let machine = with_status(&json!(status));
        assert_eq!(decide(&Observed { node: None, ..seen(&machine) }), Step::Reboot, "{attempts}");
        super::report::reboot_failed(&mut status, at(NOW - 3600));
        assert_eq!(status.bootstrap_attempts, Some(attempts + 1));
    }
    let machine = with_status(&json!(status));
    assert_eq!(decide(&Observed { node: None, ..seen(&machine) }), Step::Quarantine);
}

#[test]
fn a_machine_whose_host_has_no_known_user_is_not_up_to_date() {
    let lost = drifted(&json!({}));
    let step = decide(&Observed { desired: None, ..seen(&lost) });
    assert_eq!(reported(&step), Some(&Report::CredentialsMissing));
    let mut status = lost.status.clone().unwrap();
    super::report::write(&mut status, &Report::CredentialsMissing, at(NOW));
    let said = crate::crd::find_condition(&status.conditions, "HostUpToDate").unwrap();
    assert_eq!(said.reason.as_deref(), Some("CredentialsMissing"));
}

/// What the provider lacks, such as a key, says nothing about the configuration: the fleet goes on, and the machine is tried again.
#[test]
fn a_roll_that_could_not_begin_is_tried_again_after_a_pause_and_is_no_failure() {
    let mut status = drifted(&json!({})).status.unwrap();
    super::report::roll_waits(&mut status, "SSHKeyUnavailable", "no key", at(NOW - 10));
    assert_eq!((status.tart_kubelet_update_attempts, status.failed_host_config_hash.clone()), (None, None));
    let step = decide(&seen(&with_status(&json!(status))));
    assert_eq!(reported(&step), Some(&Report::WaitsAfterFailure));
    super::report::roll_waits(&mut status, "SSHKeyUnavailable", "no key", at(NOW - 60));
    assert_eq!(decide(&seen(&with_status(&json!(status)))), Step::Roll);
}

fn failing(attempts: i32, further: &Value) -> Machine {
    let mut status = json!({
        "serverID": "7f6b", "bootstrapAttempts": attempts, "lastBootstrapFailureTime": at(NOW - 3600).to_string(),
    });
    for (key, value) in further.as_object().unwrap() {
        status[key] = value.clone();
    }
    with_status(&status)
}

#[test]
fn a_host_that_fails_is_restarted_once_and_then_given_up() {
    for (attempts, further, wanted) in [
        (2, json!({}), Step::Bootstrap),
        (3, json!({}), Step::Reboot),
        (4, json!({ "bootstrapRebootIssued": true }), Step::Bootstrap),
        // A pool that never restarts it keeps no machine from another host.
        (8, json!({}), Step::Quarantine),
        (9, json!({ "bootstrapRebootIssued": true }), Step::Quarantine),
    ] {
        let machine = failing(attempts, &further);
        assert_eq!(decide(&Observed { node: None, ..seen(&machine) }), wanted, "{attempts} {further}");
    }
    let soon = with_status(&json!({
        "serverID": "7f6b", "bootstrapAttempts": 8, "lastBootstrapFailureTime": at(NOW - 1).to_string(),
    }));
    assert_eq!(reported(&decide(&Observed { node: None, ..seen(&soon) })), Some(&Report::WaitsAfterFailure));
}

#[test]
fn a_host_that_may_run_vms_is_neither_restarted_nor_given_up() {
    let fails = failing(100, &json!({}));
    assert_eq!(decide(&Observed { vms: Vms::Perhaps, ..seen(&fails) }), Step::Bootstrap);
    let served = failing(100, &json!({ "ready": true }));
    assert_eq!(decide(&Observed { node: None, ..seen(&served) }), Step::Bootstrap);
}

#[test]
fn a_node_that_is_gone_for_a_while_is_missing() {
    let ready = |ago| {
        with_status(
            &json!({ "serverID": "7f6b", "ready": true, "hostConfigHash": "new", "conditions": bootstrapped("True", ago) }),
        )
    };
    let soon = ready(10);
    assert_eq!(reported(&decide(&Observed { node: None, ..seen(&soon) })), Some(&Report::UpToDate));
    let late = ready(1000);
    assert_eq!(reported(&decide(&Observed { node: None, ..seen(&late) })), Some(&Report::NodeMissing));
    assert_eq!(reported(&decide(&seen(&late))), Some(&Report::UpToDate));
}

fn drifted(further: &Value) -> Machine {
    let mut status = json!({
        "serverID": "7f6b", "ready": true, "hostConfigHash": "old", "conditions": bootstrapped("True", 1000),
    });
    for (key, value) in further.as_object().unwrap() {
        status[key] = value.clone();
    }
    with_status(&status)
}

#[test]
fn a_host_with_another_configuration_is_rolled_when_it_is_its_turn() {
    let outdated = drifted(&json!({}));
    assert_eq!(decide(&seen(&outdated)), Step::Roll);
    let later = decide(&Observed { turn: Turn::Later("others".to_owned()), ..seen(&outdated) });
    assert_eq!(reported(&later), Some(&Report::WaitsForTurn("others".to_owned())));
    let halted = decide(&Observed { turn: Turn::Halted("why".to_owned()), ..seen(&outdated) });
    assert_eq!(reported(&halted), Some(&Report::RollHalted("why".to_owned())));
}

#[test]
fn rolls_of_one_configuration_end_after_failures_and_begin_again_for_another() {
    let failed = |hash: &str, ago: i64| {
        drifted(&json!({
            "failedHostConfigHash": hash, "tartKubeletUpdateAttempts": 5, "lastUpdateFailureTime": at(NOW - ago).to_string(),
        }))
    };
    assert_eq!(reported(&decide(&seen(&failed("new", 60)))), Some(&Report::RollEnded));
    assert_eq!(decide(&seen(&failed("new", 3600))), Step::Roll, "after the pause");
    assert_eq!(decide(&seen(&failed("older", 60))), Step::Roll, "another configuration");
    let annotated = json!({ "annotations": { "tuist.dev/retry-roll": "yes" } });
    let resumed = machine(
        &annotated,
        &json!({ "providerID": ID }),
        &failed("new", 60).status.map(|status| json!(status)).unwrap(),
    );
    assert_eq!(decide(&seen(&resumed)), Step::ResumeRoll);
}

proptest! {
    /// Whatever a machine has been through: a host on which VMs may run, or that was ready once, is never restarted or given up.
    #[test]
    fn no_history_restarts_or_gives_up_a_host_that_may_run_vms(
        attempts in 0i32..50, rebooted: bool, ready: bool, perhaps: bool, has_node: bool,
        hash in prop::sample::select(vec!["old", "new"]), is in prop::sample::select(vec!["True", "False"]), ago in 0i64..10_000,
    ) {
        let machine = with_status(&json!({
            "serverID": "7f6b", "ready": ready, "hostConfigHash": hash, "bootstrapAttempts": attempts,
            "bootstrapRebootIssued": rebooted, "lastBootstrapFailureTime": at(NOW - ago).to_string(), "conditions": bootstrapped(is, ago),
        }));
        let vms = if perhaps { Vms::Perhaps } else { Vms::None };
        let node = has_node.then(|| NodeSeen { provider_id: Some(ID.to_owned()) });
        let step = decide(&Observed { node, vms, ..seen(&machine) });
        if matches!(step, Step::Reboot | Step::Quarantine) {
            prop_assert!(!ready && !perhaps && attempts >= 3);
        }
    }

    /// A pause holds whatever else is the case.
    #[test]
    fn nothing_but_deletion_goes_on_while_paused(attempts in 0i32..50, ready: bool, hash in prop::sample::select(vec!["old", "new"])) {
        let machine = with_status(&json!({ "serverID": "7f6b", "ready": ready, "hostConfigHash": hash, "bootstrapAttempts": attempts }));
        let step = decide(&Observed { cluster: ClusterSeen::Paused, ..seen(&machine) });
        prop_assert_eq!(reported(&step), Some(&Report::Paused));
    }
}
