use jiff::Timestamp;

use super::*;
use crate::state::container_spec::GuestCommand;
use crate::state::outcome::Ending;
use crate::state::records::{CommandRequest, CommandResponse, Stage};
use crate::testing::dir;

fn lost() -> Outcome {
    Outcome { ending: Ending::Lost, started_at: None, finished_at: Timestamp::UNIX_EPOCH }
}

#[test]
fn the_view_shows_every_step_of_a_run() {
    let _quiet = crate::testing::no_programs();
    let dir = dir();
    let run = VmRun::planned_example(dir.path());
    let seen = || run.view().unwrap();
    assert_eq!((seen().holder, seen().begun), (Holder::None, false));

    run.mark_begun().unwrap();
    let lock = run.take_shim_lock().unwrap().unwrap().into_file();
    assert!(run.inherit_shim_lock(lock).unwrap().is_none(), "a run with the mark alone has had a shim");
    std::fs::remove_file(run.path().join("begun")).unwrap();

    let lock = run.take_shim_lock().unwrap().expect("no shim lives").into_file();
    let shim = run.inherit_shim_lock(lock).unwrap().expect("it is the right lock");
    let tart = run.take_tart_lock().unwrap().unwrap();
    run.mark_begun().unwrap();
    let booting = Progress::example(Stage::Booting);
    run.record_progress(&booting).unwrap();
    assert_eq!((seen().holder, seen().begun, seen().progress), (Holder::Shim, true, Some(booting.clone())));
    let up = Progress::example(Stage::Up { address: "127.0.0.9".parse().unwrap() });
    run.record_progress(&up).unwrap();
    assert_eq!((seen().progress.as_ref(), run.steps().unwrap()), (Some(&up), vec![booting, up.clone()]));

    drop(shim);
    assert_eq!(seen().holder, Holder::Tart);
    drop(tart);
    assert_eq!((seen().holder, seen().outcome), (Holder::None, None));
    let lock = run.take_shim_lock().unwrap().unwrap().into_file();
    assert!(run.inherit_shim_lock(lock).unwrap().is_none(), "a VM is never run twice");

    run.record_outcome(&lost()).unwrap();
    run.mark_cleaned().unwrap();
    assert_eq!((seen().outcome, seen().cleaned), (Some(lost()), true));
}

#[test]
fn equal_notices_are_kept_once_and_their_number_is_bounded() {
    let dir = dir();
    let run = VmRun::planned_example(dir.path());
    let notice = |number: usize| Notice { reason: "GuestSetup".into(), message: number.to_string() };
    assert!(run.record_notice(&notice(0)).unwrap() && !run.record_notice(&notice(0)).unwrap());
    let new = (1..1000).filter(|number| run.record_notice(&notice(*number)).unwrap()).count();
    assert_eq!((new, run.view().unwrap().notices.len()), (MAX_NOTICES - 1, MAX_NOTICES));
}

#[test]
fn a_spoilt_outcome_is_replaced() {
    let dir = dir();
    let run = VmRun::planned_example(dir.path());
    for name in ["result.json", "outcome.json"] {
        std::fs::write(run.path().join(name), "{\"ending\":").unwrap();
    }
    let seen = run.view().unwrap();
    assert_eq!((seen.holder, seen.begun, seen.result, seen.outcome), (Holder::None, true, None, None));
    run.record_outcome(&lost()).unwrap();
    assert_eq!(run.view().unwrap().outcome, Some(lost()));
}

#[test]
fn addresses_of_others_are_those_of_live_vms() {
    let _quiet = crate::testing::no_programs();
    let dir = dir();
    let state = StateDir::open(dir.path()).unwrap();
    let run = |uid: &str, restart| state.pod(uid.parse().unwrap()).run(Restart(restart));
    let address = |last: u8| IpAddr::from([192, 168, 64, last]);
    let up = |run: &VmRun, last| {
        run.plan(&ShimSpec::example(run.vm())).unwrap();
        run.record_progress(&Progress::example(Stage::Running { address: address(last) })).unwrap();
    };
    let (own, live, over) = (run("0b1c", 1), run("0b1d", 0), run("0b1e", 0));
    up(&own, 2);
    up(&live, 3);
    up(&over, 4);
    up(&run("0b1c", 0), 5);
    let _own = own.take_shim_lock().unwrap().unwrap();
    let shim = live.take_shim_lock().unwrap().unwrap();
    assert_eq!(own.addresses_of_others().unwrap(), [address(3)]);
    drop(shim);
    // The shim is gone, but the VM runs.
    let tart = live.take_tart_lock().unwrap().unwrap();
    assert_eq!(own.addresses_of_others().unwrap(), [address(3)]);
    drop(tart);
    assert_eq!(own.addresses_of_others().unwrap(), Vec::<IpAddr>::new());
}

#[test]
fn secrets_are_removed_from_whole_half_written_and_spoilt_specs() {
    let dir = dir();
    let run = VmRun::planned_example(dir.path());
    let (whole, half) = (run.path().join("spec.json"), run.path().join("spec.tmp"));
    std::fs::write(&half, "secret").unwrap();
    run.remove_secrets().unwrap();
    assert!(run.view().unwrap().spec.is_some() && !half.exists());
    std::fs::write(&whole, "{\"main\": \"secret").unwrap();
    run.remove_secrets().unwrap();
    assert!(!whole.exists());
    run.remove_secrets().unwrap();
}

#[test]
fn a_command_response_is_read_once_and_removed() {
    let dir = dir();
    let run = VmRun::planned_example(dir.path());
    let request = |restarts| CommandRequest { container: "init".to_owned(), restarts };
    let response = |restarts| CommandResponse {
        request: request(restarts),
        command: GuestCommand::example(&["secret"]),
    };
    let has_secret = || run.path().join("command-response.json").exists();
    run.request_command(&request(1)).unwrap();
    assert_eq!(run.view().unwrap().command_request, Some(request(1)));
    // A late response to the start before is no answer.
    run.write_command_response(&response(0)).unwrap();
    assert_eq!(
        (run.take_command_response(&request(1)).unwrap(), run.command_request().unwrap()),
        (None, Some(request(1)))
    );
    run.write_command_response(&response(1)).unwrap();
    assert_eq!(run.command_request().unwrap(), None);
    assert_eq!(run.take_command_response(&request(1)).unwrap(), Some(GuestCommand::example(&["secret"])));
    assert!(!has_secret() && run.command_request().unwrap().is_none());
    // No shim reads this one.
    run.write_command_response(&response(2)).unwrap();
    std::fs::write(run.path().join("command-response.tmp"), "secret").unwrap();
    run.remove_secrets().unwrap();
    assert!(!has_secret() && !run.path().join("command-response.tmp").exists());
}

#[test]
fn runs_are_in_order_of_number() {
    let dir = dir();
    let pod = StateDir::open(dir.path()).unwrap().pod("0b1c".parse().unwrap());
    for restart in [10, 9, 0] {
        let run = pod.run(Restart(restart));
        run.plan(&ShimSpec::example(run.vm())).unwrap();
    }
    let order: Vec<u32> = pod.runs().unwrap().iter().map(|run| run.restart().0).collect();
    assert_eq!(order, [0, 9, 10]);
}
