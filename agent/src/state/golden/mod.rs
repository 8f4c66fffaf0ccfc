//! Files of every release, read by this one; and files with words of a release to come.
//!
//! `golden/<release>/` has each file as that release writes it. Those of this release are compared with what it writes: if a format
//! changes after the release, the new files belong to a folder of their own, and the old ones stay.

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::tart_home::owner::Owner;
use super::*;
use crate::identity::Cluster;
use crate::names::PodName;
use crate::testing::{at, is_read_and_written};

#[test]
fn files_of_every_release_are_read() {
    let exited = Ending::Exited { code: 3, message: Some("why".to_owned()) };
    let outcome = Outcome { ending: exited, started_at: Some(at(5)), finished_at: at(9) };
    is_read_and_written("outcome.json", &outcome);
    let fault = Some(HostFault::VmLimit { ours: 1 });
    let not_started = NotStarted { fault, ..NotStarted::new(NotStartedReason::StartError, "no".to_owned()) };
    let result = Outcome { ending: not_started.into(), started_at: None, finished_at: at(9) };
    is_read_and_written("result.json", &result);
    let stage = Stage::Running { address: "192.168.64.2".parse().unwrap() };
    is_read_and_written(
        "progress.json",
        &Progress {
            enter: vec!["enter".to_owned()],
            probe: vec!["probe".to_owned()],
            ..Progress::example(stage)
        },
    );
    let states = [InitStage::Waiting, InitStage::BackOff(Duration::from_secs(10)), InitStage::Running(at(5))];
    let states = states.into_iter().chain([InitStage::Over(outcome.clone())]);
    let states: Vec<_> =
        states.map(|now| InitState { now, last: Some(outcome.clone()), ..InitState::new("init") }).collect();
    is_read_and_written("init.json", &states);
    let cause = Some(StopCause::FailedLiveness);
    is_read_and_written(
        "stop.json",
        &StopRequest { deadline: at(40), grace: Duration::from_secs(30), cause },
    );
    let pod = PodRecord {
        pod: PodName { namespace: "ns".to_owned(), name: "name".to_owned() },
        accepted_at: at(1),
    };
    is_read_and_written("pod.json", &pod);
    let lease = LeaseRecord { node: "mac-1".to_owned(), instance: "machine-agent".to_owned() };
    is_read_and_written("lease.json", &lease);
    let mut spec = ShimSpec::example(serde_json::from_value(json!("tk-0b1c-2")).unwrap());
    spec.main_mut().command = Some(GuestCommand::example(&["tool", "argument"]));
    spec.main_mut().pre_stop = Some(Hook::Exec(vec!["stop".to_owned()]));
    spec.main_mut().post_start = Some(Hook::Sleep(Duration::from_secs(1)));
    let missing = Missing::Made { share: "w".to_owned(), mode: 0o755 };
    spec.main_mut().mounts = vec![Mount { missing, ..Mount::default() }];
    is_read_and_written("spec.json", &spec);
    let vm: crate::names::VmName = serde_json::from_value(json!("tk-0b1c-1")).unwrap();
    let ran_in = Some(InitVm { vm: vm.clone(), image: spec.image.clone(), image_name: None });
    let init_before = vec![InitState { now: InitStage::Over(outcome), ran_in, ..InitState::new("before") }];
    let spec = ShimSpec::example_of_init(vm, &["init"]);
    is_read_and_written("init-vm-spec.json", &ShimSpec { init_before, main_restarts: Some(0), ..spec });
    let initialized = Outcome { ending: Ending::Initialized, started_at: None, finished_at: at(9) };
    is_read_and_written("init-vm-outcome.json", &initialized);
}

#[test]
fn files_between_agent_and_shim_of_every_release_are_read() {
    let notice = Notice { reason: "FailedPreStopHook".to_owned(), message: "why".to_owned() };
    is_read_and_written("notices.json", &vec![notice]);
    let request = CommandRequest { container: "main".to_owned(), restarts: 2 };
    is_read_and_written("command-request.json", &request);
    let command = GuestCommand::example(&["tool", "argument"]);
    is_read_and_written("command-response.json", &CommandResponse { request, command });
    let words = |text: &str| vec![text.to_owned()];
    let last = LastCommand {
        container: "main".to_owned(),
        started_at: at(5),
        exit_code_line: words("code"),
        exec_line: words("exec"),
        kill_line: words("kill"),
    };
    is_read_and_written("last-command.json", &last);
}

#[test]
fn records_of_every_release_are_read() {
    is_read_and_written("evicted.json", &"The node was low on resource: ephemeral-storage.".to_owned());
    is_read_and_written("tart-home.json", &PathBuf::from("/Users/admin/.tart"));
    let cluster = Cluster { server: "https://a:6443/".to_owned(), authorities: ["digest".to_owned()].into() };
    is_read_and_written("tart-kubelet.json", &Owner::Member { node: "mac-1".to_owned(), cluster });
}

/// Reads a value, and writes it back.
fn passed_on<T: Serialize + DeserializeOwned>(value: &Value) -> (T, Value) {
    let read: T = serde_json::from_value(value.clone()).expect("a word of a newer release");
    let written = json!(read);
    (read, written)
}

#[test]
fn words_of_a_newer_release_are_read_and_kept() {
    let ending = json!({"kind": "suspended", "image": "x"});
    let file = json!({
        "ending": ending, "exit_code": 7, "started_at": null, "finished_at": "1970-01-01T00:00:09Z", "more": 1,
    });
    let (outcome, written) = passed_on::<Outcome>(&file);
    assert_eq!((outcome.ending.exit_code(), outcome.ending.reason()), (7, EndReason::Error));
    assert_eq!((&written["ending"], &written["exit_code"]), (&ending, &json!(7)));

    let progress = |address: Value, is_running: bool| {
        let file = json!({"stage": {"name": "resuming"}, "address": address, "is_running": is_running, "since": at(1)});
        passed_on::<Progress>(&file).0.stage
    };
    let address = "10.0.0.2".parse().unwrap();
    assert_eq!(progress(json!("10.0.0.2"), true), Stage::Running { address });
    assert_eq!(progress(json!("10.0.0.2"), false), Stage::Up { address });
    assert_eq!(progress(Value::Null, false), Stage::Booting);

    let init = json!({"name": "a", "now": {"skipped": 1}, "restarts": 0, "last": null});
    assert_eq!(passed_on::<InitState>(&init).1, init);
    let stop = json!({"deadline": at(40), "grace": Duration::from_secs(30), "cause": "drained"});
    assert_eq!(passed_on::<StopRequest>(&stop).0.cause, Some(StopCause::Newer));
    let not_started = json!({"reason": "StartError", "message": "no", "fault": {"name": "too-hot"}});
    assert_eq!(passed_on::<NotStarted>(&not_started).0.fault, None);
    for hook in [json!({"grpc": 5}), json!("new")] {
        let (read, written) = passed_on::<Hook>(&hook);
        assert!(matches!(read, Hook::Newer(_)) && written == hook, "{read:?}");
    }
    assert!(matches!(passed_on::<Missing>(&json!("linked")).0, Missing::Newer(_)));
}
