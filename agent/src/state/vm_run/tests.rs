use super::*;
use crate::state::PodDir;
use crate::state::container_spec::GuestCommand;
use crate::state::records::{Delivery, Ending};

fn spec(attempt: &VmRun) -> ShimSpec {
    ShimSpec::example(attempt.vm())
}

fn pod() -> (tempfile::TempDir, PodDir) {
    let dir = tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap();
    let pod = StateDir::open(dir.path()).unwrap().pod("0b1c".parse().unwrap());
    (dir, pod)
}

#[test]
fn a_life_as_its_files_tell_it() {
    let (_dir, pod) = pod();
    let attempt = pod.attempt(Restart(3));
    attempt.plan(&spec(&attempt)).unwrap();
    let seen = || attempt.view().unwrap();
    assert_eq!((seen().holder, seen().begun), (Holder::Nobody, false));

    attempt.begin().unwrap();
    let lock = attempt.seal().unwrap().unwrap().into_file();
    assert!(
        attempt.inherit_shim_lock(lock).unwrap().is_none(),
        "it was taken up, however little is known of it"
    );
    std::fs::remove_file(attempt.path().join("begun")).unwrap();

    let lock = attempt.seal().unwrap().expect("nobody else is the shim").into_file();
    let shim = attempt.inherit_shim_lock(lock).unwrap().expect("it is the right lock");
    let tart = attempt.take_tart_lock().unwrap().unwrap();
    attempt.begin().unwrap();
    let progress = Progress {
        stage: Stage::Booting,
        since: Timestamp::UNIX_EPOCH,
        enter: Vec::new(),
        probe: Vec::new(),
    };
    attempt.progress(&progress).unwrap();
    assert_eq!((seen().holder, seen().begun, seen().progress), (Holder::Shim, true, Some(progress.clone())));
    let address = "127.0.0.9".parse().unwrap();
    let up = Progress {
        stage: Stage::Up { address },
        since: Timestamp::UNIX_EPOCH,
        enter: Vec::new(),
        probe: Vec::new(),
    };
    attempt.progress(&up).unwrap();
    assert_eq!((seen().progress.as_ref(), attempt.steps().unwrap()), (Some(&up), vec![progress, up.clone()]));

    drop(shim);
    assert_eq!(seen().holder, Holder::Tart);
    drop(tart);
    assert_eq!((seen().holder, seen().outcome), (Holder::Nobody, None));
    let lock = attempt.seal().unwrap().unwrap().into_file();
    assert!(attempt.inherit_shim_lock(lock).unwrap().is_none(), "a VM is never run twice");

    let outcome = Outcome { ending: Ending::Lost, started_at: None, finished_at: Timestamp::UNIX_EPOCH };
    attempt.finish(&outcome).unwrap();
    attempt.mark_cleaned().unwrap();
    assert_eq!((seen().outcome, seen().cleaned), (Some(outcome), true));
}

#[test]
fn notices_are_kept_once_and_not_without_end() {
    let (_dir, pod) = pod();
    let attempt = pod.attempt(Restart(0));
    attempt.plan(&spec(&attempt)).unwrap();
    let notice = |number: usize| Notice { reason: "GuestSetup".into(), message: number.to_string() };
    assert!(attempt.notice(&notice(0)).unwrap() && !attempt.notice(&notice(0)).unwrap());
    let new = (1..1000).filter(|number| attempt.notice(&notice(*number)).unwrap()).count();
    assert_eq!((new, attempt.view().unwrap().notices.len()), (MOST_NOTICES - 1, MOST_NOTICES));
}

#[test]
fn an_end_that_cannot_be_read_is_replaced() {
    let (_dir, pod) = pod();
    let attempt = pod.attempt(Restart(0));
    attempt.plan(&spec(&attempt)).unwrap();
    for name in ["result.json", "outcome.json"] {
        std::fs::write(attempt.path().join(name), "{\"ending\":").unwrap();
    }
    let seen = attempt.view().unwrap();
    assert_eq!((seen.holder, seen.begun, seen.result, seen.outcome), (Holder::Nobody, true, None, None));
    let outcome = Outcome { ending: Ending::Lost, started_at: None, finished_at: Timestamp::UNIX_EPOCH };
    attempt.finish(&outcome).unwrap();
    assert_eq!(attempt.view().unwrap().outcome, Some(outcome));
}

#[test]
fn only_live_vms_of_others_have_their_addresses() {
    let (_dir, pod) = pod();
    let state = StateDir::at(pod.path.ancestors().nth(2).unwrap());
    let address = |last: u8| IpAddr::from([192, 168, 64, last]);
    let up = |attempt: &VmRun, last| {
        attempt.plan(&spec(attempt)).unwrap();
        let stage = Stage::Running { address: address(last) };
        let progress = Progress { stage, since: Timestamp::UNIX_EPOCH, enter: Vec::new(), probe: Vec::new() };
        attempt.progress(&progress).unwrap();
    };
    let (own, live, over) = (
        pod.attempt(Restart(1)),
        state.pod("0b1d".parse().unwrap()).attempt(Restart(0)),
        state.pod("0b1e".parse().unwrap()).attempt(Restart(0)),
    );
    up(&own, 2);
    up(&live, 3);
    up(&over, 4);
    up(&pod.attempt(Restart(0)), 5);
    let _own = own.seal().unwrap().unwrap();
    let shim = live.seal().unwrap().unwrap();
    assert_eq!(own.addresses_of_others().unwrap(), [address(3)]);
    drop(shim);
    // Its shim is gone, but it runs.
    let tart = live.take_tart_lock().unwrap().unwrap();
    assert_eq!(own.addresses_of_others().unwrap(), [address(3)]);
    drop(tart);
    assert_eq!(own.addresses_of_others().unwrap(), Vec::<IpAddr>::new());
}

#[test]
fn no_secret_stays_whatever_has_become_of_the_plan() {
    let (_dir, pod) = pod();
    let attempt = pod.attempt(Restart(0));
    attempt.plan(&spec(&attempt)).unwrap();
    let (whole, half) = (attempt.path().join("spec.json"), attempt.path().join("spec.tmp"));
    std::fs::write(&half, "secret").unwrap();
    attempt.scrub().unwrap();
    assert!(attempt.view().unwrap().spec.is_some() && !half.exists());
    std::fs::write(&whole, "{\"main\": \"secret").unwrap();
    attempt.scrub().unwrap();
    assert!(!whole.exists());
    attempt.scrub().unwrap();
}

#[test]
fn what_is_asked_for_is_delivered_once_and_does_not_stay() {
    let (_dir, pod) = pod();
    let attempt = pod.attempt(Restart(0));
    attempt.plan(&spec(&attempt)).unwrap();
    let due = |restarts| Due { container: "init".to_owned(), restarts };
    let delivery = |restarts| Delivery { due: due(restarts), command: GuestCommand::example(&["secret"]) };
    let has_secret = || attempt.path().join("delivery.json").exists();
    attempt.ask_for_command(&due(1)).unwrap();
    assert_eq!(attempt.view().unwrap().due, Some(due(1)));
    // What was delivered for the start before, by an agent that was late, is no answer.
    attempt.deliver(&delivery(0)).unwrap();
    assert_eq!((attempt.take_delivery(&due(1)).unwrap(), attempt.due().unwrap()), (None, Some(due(1))));
    attempt.deliver(&delivery(1)).unwrap();
    assert_eq!(attempt.due().unwrap(), None);
    assert_eq!(attempt.take_delivery(&due(1)).unwrap(), Some(GuestCommand::example(&["secret"])));
    assert!(!has_secret() && attempt.due().unwrap().is_none());
    // Nobody takes this one.
    attempt.deliver(&delivery(2)).unwrap();
    std::fs::write(attempt.path().join("delivery.tmp"), "secret").unwrap();
    attempt.scrub().unwrap();
    assert!(!has_secret() && !attempt.path().join("delivery.tmp").exists());
}

#[test]
fn attempts_are_in_order_of_number() {
    let (_dir, pod) = pod();
    for restart in [10, 9, 0] {
        let attempt = pod.attempt(Restart(restart));
        attempt.plan(&spec(&attempt)).unwrap();
    }
    let order: Vec<u32> = pod.attempts().unwrap().iter().map(|a| a.restart().0).collect();
    assert_eq!(order, [0, 9, 10]);
}
