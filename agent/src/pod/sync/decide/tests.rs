use proptest::prelude::*;

use super::*;
use crate::names::VmName;
use crate::state::{
    CommandRequest, Ending, InitStage, InitState, Outcome, Progress, ShimSpec, Stage, StopRequest,
};

const GRACE: Duration = Duration::from_secs(30);

impl Observation {
    /// An accepted Pod without a VM.
    pub(crate) fn example(desired: Desired, runs: Vec<VmRunView>, now: Timestamp) -> Self {
        Self {
            desired,
            is_confirmed: true,
            refused: false,
            accepted: true,
            segments: vec![],
            runs,
            started: None,
            health: None,
            retry_at: None,
            too_large: false,
            evicted: None,
            has_volumes: false,
            vain_wipe: false,
            deadline: None,
            asked: None,
            vain_stops: 0,
            vain_cleans: 0,
            final_status_published: false,
            now,
            wall: now,
        }
    }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn spec(restart: u32) -> ShimSpec {
    ShimSpec::example(VmName::new("0b1c".parse().unwrap(), Restart(restart)))
}

fn planned(restart: u32) -> VmRunView {
    VmRunView { spec: Some(spec(restart)), ..VmRunView::example(restart) }
}

fn live(restart: u32) -> VmRunView {
    let progress = Progress { since: at(90), ..Progress::example(Stage::Booting) };
    VmRunView { holder: Holder::Shim, begun: true, progress: Some(progress), ..planned(restart) }
}

fn due(restart: u32) -> VmRunView {
    let due = CommandRequest { container: "main".to_owned(), restarts: 0 };
    VmRunView { command_request: Some(due), ..live(restart) }
}

/// A VM that has lost its shim.
fn without_shim() -> VmRunView {
    VmRunView { holder: Holder::Tart, ..live(0) }
}

fn ended(restart: u32, code: i32) -> VmRunView {
    let ending = Ending::Exited { code, message: None };
    let outcome = Outcome { ending, started_at: Some(at(95)), finished_at: at(99) };
    VmRunView { holder: Holder::None, outcome: Some(outcome), ..live(restart) }
}

/// A VM that runs on after its container has ended.
fn with_result(code: i32, view: VmRunView) -> VmRunView {
    VmRunView { result: ended(view.restart.0, code).outcome, ..view }
}

fn cleaned(restart: u32, code: i32) -> VmRunView {
    VmRunView { cleaned: true, ..ended(restart, code) }
}

/// A VM whose container had failed once before.
fn crashed(view: VmRunView) -> VmRunView {
    VmRunView { spec: view.spec.map(|spec| ShimSpec { crashes: 1, ..spec }), ..view }
}

/// A VM whose container had run long enough for a fresh back-off.
fn well(view: VmRunView) -> VmRunView {
    let outcome = view.outcome.map(|outcome| Outcome { started_at: Some(at(-1000)), ..outcome });
    VmRunView { outcome, ..view }
}

fn seen(desired: Desired, runs: Vec<VmRunView>) -> Observation {
    Observation::example(desired, runs, at(100))
}

fn assert_decisions<const N: usize>(table: [(Observation, Decision); N]) {
    for (observation, decision) in table {
        assert_eq!(decide(&observation), decision, "{observation:#?}");
    }
}

const RUN: Desired = Desired::Run(RestartPolicy::Never);

#[test]
fn a_pod_that_the_api_server_has_not_confirmed_is_attended_to_and_nothing_more() {
    let again = Desired::Run(RestartPolicy::Always);
    let stop = Desired::Stop(GRACE);
    let failed =
        Some(ContainerHealth { started: true, ready: false, failed: Some(StopCause::FailedLiveness) });
    let hungry = VmRunView { wants_disk_space: true, ..live(0) };
    let outdated = || {
        let spec = live(0).spec.map(|spec| ShimSpec { image_name: Some("old".into()), ..spec });
        VmRunView { spec, ..live(0) }
    };
    for (seen, expected) in [
        // It goes on with what an earlier agent has begun.
        (
            Observation { health: failed, ..seen(again, vec![live(0)]) },
            Decision::StopFor(Restart(0), StopCause::FailedLiveness),
        ),
        (seen(again, vec![hungry]), Decision::FreeSpace(Restart(0))),
        (seen(again, vec![due(0)]), Decision::SendCommand(Restart(0))),
        (seen(again, vec![without_shim()]), Decision::AskGuest(Restart(0))),
        (seen(again, vec![VmRunView { holder: Holder::None, ..live(0) }]), Decision::RecordLoss(Restart(0))),
        (seen(again, vec![ended(0, 1)]), Decision::DeleteVm(Restart(0))),
        (seen(stop, vec![live(0)]), Decision::AskToStop(Restart(0), GRACE)),
        (Observation { has_volumes: true, ..seen(RUN, vec![cleaned(0, 0)]) }, Decision::RemoveVolumes),
        // It begins nothing, and ends nothing for good.
        (Observation { accepted: false, ..seen(RUN, vec![]) }, Decision::Wait(None)),
        (seen(RUN, vec![]), Decision::Wait(None)),
        (seen(RUN, vec![planned(0)]), Decision::Wait(None)),
        (Observation { now: at(10_000), ..seen(again, vec![cleaned(0, 1)]) }, Decision::Wait(None)),
        (Observation { started: Some(Restart(3)), ..seen(RUN, vec![]) }, Decision::Wait(None)),
        (Observation { too_large: true, ..seen(RUN, vec![live(0)]) }, Decision::Wait(None)),
        (
            Observation { segments: vec![Segment::example("new")], ..seen(again, vec![outdated()]) },
            Decision::Wait(None),
        ),
        (
            Observation { final_status_published: true, ..seen(stop, vec![cleaned(0, 0)]) },
            Decision::Wait(None),
        ),
    ] {
        let unconfirmed = Observation { is_confirmed: false, ..seen.clone() };
        assert_eq!(decide(&unconfirmed), expected, "{seen:?}");
        // What it waits with is done for a Pod that is confirmed.
        assert_eq!(decide(&seen) == expected, expected != Decision::Wait(None), "{seen:?}");
    }
}

#[test]
fn a_pod_to_run() {
    let plan = |restart, crashes| Decision::Plan { restart: Restart(restart), segment: 0, crashes };
    let again = Desired::Run(RestartPolicy::Always);
    let table = [
        (seen(RUN, vec![]), plan(0, 0)),
        (Observation { accepted: false, ..seen(RUN, vec![]) }, Decision::Accept),
        // The API shows a VM that the state directory lacks.
        (Observation { accepted: false, started: Some(Restart(3)), ..seen(RUN, vec![]) }, Decision::Accept),
        (
            Observation { started: Some(Restart(3)), ..seen(RUN, vec![]) },
            Decision::RecordMissingRun(Restart(3)),
        ),
        // Neither deadline, deletion nor refusal changes that.
        (
            Observation {
                started: Some(Restart(3)),
                deadline: Some(Deadline { at: at(50), grace: GRACE }),
                ..seen(RUN, vec![])
            },
            Decision::RecordMissingRun(Restart(3)),
        ),
        (
            Observation { started: Some(Restart(3)), ..seen(Desired::Stop(GRACE), vec![]) },
            Decision::RecordMissingRun(Restart(3)),
        ),
        (
            Observation { accepted: false, refused: true, started: Some(Restart(3)), ..seen(RUN, vec![]) },
            Decision::RecordMissingRun(Restart(3)),
        ),
        (
            Observation { started: Some(Restart(0)), ..seen(RUN, vec![planned(0)]) },
            Decision::Launch(Restart(0)),
        ),
        (Observation { accepted: false, refused: true, ..seen(RUN, vec![]) }, Decision::Wait(None)),
        (Observation { retry_at: Some(at(110)), ..seen(RUN, vec![]) }, Decision::Wait(Some(at(110)))),
        (Observation { refused: true, ..seen(RUN, vec![]) }, Decision::Wait(None)),
        (Observation { refused: true, ..seen(RUN, vec![live(0)]) }, Decision::Wait(None)),
        (Observation { refused: true, ..seen(again, vec![cleaned(0, 0)]) }, Decision::Wait(None)),
        (seen(RUN, vec![VmRunView { spec: None, ..planned(0) }]), plan(0, 0)),
        (seen(RUN, vec![planned(0)]), Decision::Launch(Restart(0))),
        (seen(RUN, vec![live(0)]), Decision::Wait(None)),
        (seen(RUN, vec![VmRunView { wants_disk_space: true, ..live(0) }]), Decision::FreeSpace(Restart(0))),
        (seen(RUN, vec![due(0)]), Decision::SendCommand(Restart(0))),
        (seen(RUN, vec![VmRunView { wants_disk_space: true, ..due(0) }]), Decision::FreeSpace(Restart(0))),
        (Observation { retry_at: Some(at(110)), ..seen(RUN, vec![due(0)]) }, Decision::Wait(Some(at(110)))),
        (seen(Desired::Stop(GRACE), vec![due(0)]), Decision::AskToStop(Restart(0), GRACE)),
        // The Pod is gone: its exit code is of no use.
        (seen(RUN, vec![VmRunView { holder: Holder::None, ..due(0) }]), Decision::RecordLoss(Restart(0))),
        (seen(RUN, vec![without_shim()]), Decision::AskGuest(Restart(0))),
        (
            seen(RUN, vec![VmRunView { guest_asked: true, ..without_shim() }]),
            Decision::StopWithoutShim(Restart(0)),
        ),
        (seen(RUN, vec![VmRunView { holder: Holder::None, ..live(0) }]), Decision::RecordLoss(Restart(0))),
        // A process has outlived a shim that ended well.
        (
            seen(RUN, vec![VmRunView { holder: Holder::Tart, ..ended(0, 0) }]),
            Decision::StopWithoutShim(Restart(0)),
        ),
        (seen(RUN, vec![VmRunView { holder: Holder::Shim, ..ended(0, 0) }]), Decision::DeleteVm(Restart(0))),
        (seen(RUN, vec![ended(0, 0)]), Decision::DeleteVm(Restart(0))),
        (seen(RUN, vec![cleaned(0, 0)]), Decision::Wait(None)),
        // A VM without a plan is over all the same.
        (seen(RUN, vec![VmRunView { spec: None, ..cleaned(0, 0) }]), Decision::Wait(None)),
        (seen(again, vec![VmRunView { spec: None, ..cleaned(3, 1) }]), plan(4, 1)),
        (seen(again, vec![cleaned(0, 0)]), plan(1, 1)),
        (seen(again, vec![crashed(cleaned(1, 0))]), Decision::Wait(Some(at(109)))),
        (Observation { now: at(109), ..seen(again, vec![crashed(cleaned(1, 0))]) }, plan(2, 2)),
        (seen(again, vec![cleaned(0, 0), live(1)]), Decision::Wait(None)),
        // The plan was never written.
        (seen(again, vec![crashed(cleaned(0, 0)), VmRunView { spec: None, ..planned(1) }]), plan(1, 2)),
        (seen(again, vec![crashed(well(cleaned(0, 0))), VmRunView { spec: None, ..planned(1) }]), plan(1, 1)),
        (seen(again, vec![cleaned(0, 0), cleaned(1, 0), live(2)]), Decision::ForgetRun(Restart(0))),
        (seen(again, vec![ended(0, 0), live(1)]), Decision::DeleteVm(Restart(0))),
    ];
    assert_decisions(table);
}

#[test]
fn a_pod_to_stop() {
    let stop = Desired::Stop(GRACE);
    let asked = |second| VmRunView {
        stop: Some(StopRequest { deadline: at(second), grace: Duration::from_secs(30), cause: None }),
        ..live(0)
    };
    let table = [
        (seen(stop, vec![live(0)]), Decision::AskToStop(Restart(0), GRACE)),
        (seen(stop, vec![asked(130)]), Decision::Wait(Some(at(160)))),
        (seen(stop, vec![asked(131)]), Decision::AskToStop(Restart(0), GRACE)),
        (Observation { now: at(159), ..seen(stop, vec![asked(130)]) }, Decision::Wait(Some(at(160)))),
        (Observation { now: at(160), ..seen(stop, vec![asked(130)]) }, Decision::KillShim(Restart(0))),
        (seen(stop, vec![planned(0)]), Decision::RecordLoss(Restart(0))),
        (seen(stop, vec![ended(0, 0)]), Decision::DeleteVm(Restart(0))),
        (seen(stop, vec![cleaned(0, 0)]), Decision::Wait(None)),
        (
            Observation { final_status_published: true, ..seen(stop, vec![cleaned(0, 0)]) },
            Decision::DeletePod,
        ),
        (
            Observation { final_status_published: true, ..seen(stop, vec![ended(0, 0)]) },
            Decision::DeleteVm(Restart(0)),
        ),
        (Observation { final_status_published: true, ..seen(stop, vec![]) }, Decision::DeletePod),
        (seen(Desired::Gone, vec![live(0)]), Decision::AskToStop(Restart(0), Duration::ZERO)),
        (seen(Desired::Gone, vec![cleaned(0, 0)]), Decision::ForgetPod),
        (seen(Desired::Finished(GRACE), vec![live(0)]), Decision::AskToStop(Restart(0), GRACE)),
        (seen(Desired::Finished(GRACE), vec![cleaned(0, 0)]), Decision::Wait(None)),
    ];
    assert_decisions(table);
}

#[test]
fn a_shim_that_does_not_stop_its_vm_is_killed() {
    let asked = || vec![VmRunView { guest_asked: true, ..without_shim() }];
    for desired in [RUN, Desired::Stop(GRACE), Desired::Finished(GRACE), Desired::Gone] {
        let after = |vain_stops| decide(&Observation { vain_stops, ..seen(desired, asked()) });
        assert_eq!(after(2), Decision::StopWithoutShim(Restart(0)));
        assert_eq!(after(3), Decision::KillStrayProcesses(Restart(0)));
    }
}

#[test]
fn a_shim_that_does_not_exit_after_its_outcome_is_killed() {
    for desired in [RUN, Desired::Stop(GRACE), Desired::Finished(GRACE), Desired::Gone] {
        let after = |holder, vain_cleans| {
            let over = VmRunView { holder, ..ended(0, 0) };
            decide(&Observation { vain_cleans, ..seen(desired, vec![over]) })
        };
        assert_eq!(after(Holder::Shim, VAIN_CLEANS - 1), Decision::DeleteVm(Restart(0)));
        assert_eq!(after(Holder::Shim, VAIN_CLEANS), Decision::KillShim(Restart(0)));
        assert_eq!(after(Holder::None, VAIN_CLEANS), Decision::DeleteVm(Restart(0)), "it is gone");
    }
}

#[test]
fn a_guest_is_asked_once_and_only_while_the_pod_exists() {
    let (ask, stop) = (Decision::AskGuest(Restart(0)), Decision::StopWithoutShim(Restart(0)));
    let asked = |desired, asked| Observation { asked, ..seen(desired, vec![without_shim()]) };
    for desired in [RUN, Desired::Stop(GRACE), Desired::Finished(GRACE)] {
        assert_eq!(decide(&asked(desired, None)), ask);
        // Even if that could not be recorded.
        assert_eq!(decide(&asked(desired, Some(Restart(0)))), stop);
        // Another VM was asked.
        assert_eq!(decide(&asked(desired, Some(Restart(1)))), ask);
    }
    assert_eq!(decide(&asked(Desired::Gone, None)), stop);
}

#[test]
fn no_grace_period_is_too_long() {
    for grace in [Duration::from_secs(1_000_000_000_000), Duration::MAX] {
        let stop = Desired::Stop(grace);
        assert_eq!(decide(&seen(stop, vec![live(0)])), Decision::AskToStop(Restart(0), grace));
        let request = StopRequest { deadline: Timestamp::MAX, grace: Duration::from_secs(30), cause: None };
        let asked = VmRunView { stop: Some(request), ..live(0) };
        assert_eq!(decide(&seen(stop, vec![asked])), Decision::Wait(Some(Timestamp::MAX)));
    }
}

#[test]
fn a_container_that_fails_a_probe() {
    let again = Desired::Run(RestartPolicy::OnFailure);
    let failed = |desired, run| Observation {
        health: Some(ContainerHealth {
            started: true,
            ready: false,
            failed: Some(StopCause::FailedLiveness),
        }),
        ..seen(desired, vec![run])
    };
    let asked = |run, second| VmRunView {
        stop: Some(StopRequest {
            deadline: at(second),
            grace: Duration::from_secs(30),
            cause: Some(StopCause::FailedLiveness),
        }),
        ..run
    };
    let plan = Decision::Plan { restart: Restart(1), segment: 0, crashes: 1 };
    let table = [
        (failed(again, live(0)), Decision::StopFor(Restart(0), StopCause::FailedLiveness)),
        (failed(RUN, live(0)), Decision::StopFor(Restart(0), StopCause::FailedLiveness)),
        (
            Observation {
                health: Some(ContainerHealth { started: false, ready: false, failed: None }),
                ..seen(again, vec![live(0)])
            },
            Decision::Wait(None),
        ),
        // The container has ended by itself meanwhile.
        (failed(again, VmRunView { result: ended(0, 0).outcome, ..live(0) }), Decision::Wait(None)),
        // The shim is asked once, whatever probes say now. A restarted agent reads the reason from the request.
        (failed(again, asked(live(0), 130)), Decision::Wait(Some(at(160)))),
        (seen(again, vec![asked(live(0), 130)]), Decision::Wait(Some(at(160)))),
        (seen(again, vec![asked(live(0), 70)]), Decision::KillShim(Restart(0))),
        (Observation { now: at(109), ..seen(again, vec![asked(cleaned(0, 0), 130)]) }, plan),
        (Observation { now: at(109), ..seen(RUN, vec![asked(cleaned(0, 0), 130)]) }, Decision::Wait(None)),
        // Probes do not matter for a Pod that is to stop.
        (failed(Desired::Stop(GRACE), live(0)), Decision::AskToStop(Restart(0), GRACE)),
        (failed(Desired::Stop(GRACE), asked(live(0), 130)), Decision::Wait(Some(at(160)))),
        (failed(Desired::Stop(GRACE), asked(live(0), 131)), Decision::AskToStop(Restart(0), GRACE)),
    ];
    assert_decisions(table);
}

/// A VM that was planned when the Pod named this image.
fn made_of(image: &str, view: VmRunView) -> VmRunView {
    let spec = view.spec.map(|spec| ShimSpec { image_name: Some(image.to_owned()), ..spec });
    VmRunView { spec, ..view }
}

#[test]
fn a_container_that_is_to_have_another_image() {
    let again = Desired::Run(RestartPolicy::Always);
    let named =
        |desired, run| Observation { segments: vec![Segment::example("b")], ..seen(desired, vec![run]) };
    let asked = |view, cause| VmRunView {
        stop: Some(StopRequest { deadline: at(129), grace: Duration::from_secs(30), cause }),
        ..view
    };
    let asked_late = |view, cause| VmRunView { ended_before_stop: true, ..asked(view, cause) };
    let changed = Some(StopCause::Changed);
    let stop = Decision::StopFor(Restart(0), StopCause::Changed);
    let plan = |restart, crashes| Decision::Plan { restart: Restart(restart), segment: 0, crashes };
    let old = |view| made_of("a", view);
    let table = [
        (named(RUN, made_of("b", live(0))), Decision::Wait(None)),
        // The plan of an older agent names no image.
        (named(RUN, live(0)), Decision::Wait(None)),
        // As in the kubelet, under every policy and at every stage.
        (named(RUN, old(live(0))), stop),
        (named(again, old(live(0))), stop),
        (named(RUN, old(VmRunView { wants_disk_space: true, ..live(0) })), stop),
        (
            Observation {
                health: Some(ContainerHealth {
                    started: true,
                    ready: false,
                    failed: Some(StopCause::FailedLiveness),
                }),
                ..named(RUN, old(live(0)))
            },
            stop,
        ),
        // The container has ended by itself meanwhile.
        (named(RUN, old(VmRunView { result: ended(0, 0).outcome, ..live(0) })), Decision::Wait(None)),
        // The shim is asked once, then the container starts with the other image.
        (named(RUN, asked(old(live(0)), changed)), Decision::Wait(Some(at(159)))),
        (named(RUN, asked(old(ended(0, 0)), changed)), Decision::DeleteVm(Restart(0))),
        (named(RUN, asked(old(cleaned(0, 0)), changed)), plan(1, 0)),
        (named(RUN, asked(old(cleaned(0, 137)), changed)), plan(1, 0)),
        // Even if the Pod names the first image again.
        (named(RUN, asked(made_of("b", cleaned(0, 0)), changed)), plan(1, 0)),
        // The request came after the end: the policy decides.
        (named(RUN, asked_late(old(cleaned(0, 0)), changed)), Decision::Wait(None)),
        (named(RUN, asked_late(old(cleaned(0, 1)), changed)), Decision::Wait(None)),
        (named(again, asked_late(old(cleaned(0, 0)), changed)), plan(1, 1)),
        // The Pod is refused now, so the running VM stays.
        (Observation { refused: true, ..named(RUN, old(live(0))) }, Decision::Wait(None)),
        // The plan was never written.
        (
            Observation {
                segments: vec![Segment::example("b")],
                ..seen(RUN, vec![asked(old(cleaned(0, 1)), changed), VmRunView { spec: None, ..planned(1) }])
            },
            plan(1, 0),
        ),
        // A VM that does not run yet is planned again. A VM that is over stays over.
        (named(RUN, old(crashed(planned(1)))), plan(1, 1)),
        (named(RUN, made_of("b", planned(1))), Decision::Launch(Restart(1))),
        (named(RUN, old(cleaned(0, 1))), Decision::Wait(None)),
        // The other image has a back-off of its own.
        (named(again, made_of("b", crashed(cleaned(1, 1)))), Decision::Wait(Some(at(109)))),
        (named(again, old(crashed(cleaned(1, 1)))), plan(2, 1)),
        // Another image does not matter for a Pod that is to stop.
        (named(Desired::Stop(GRACE), old(live(0))), Decision::AskToStop(Restart(0), GRACE)),
        (named(Desired::Stop(GRACE), asked(old(cleaned(0, 0)), changed)), Decision::Wait(None)),
        (named(Desired::Finished(GRACE), asked(old(cleaned(0, 0)), changed)), Decision::Wait(None)),
    ];
    assert_decisions(table);
}

/// `[b: one] [a: main]`.
fn two_segments() -> Vec<Segment> {
    let own = Segment { image: "b".into(), init: vec!["one".into()], main: None };
    vec![own, Segment::example("a")]
}

/// The VM of the first of two segments.
fn of_init(view: VmRunView) -> VmRunView {
    let spec = ShimSpec::example_of_init(spec(view.restart.0).vm, &["one"]);
    made_of("b", VmRunView { spec: Some(spec), ..view })
}

/// The same after this end. Its init container has succeeded, or its state is unknown.
fn init_ended(restart: u32, ending: Ending) -> VmRunView {
    let outcome = Outcome { ending, ..ended(restart, 0).outcome.unwrap() };
    let mut view = of_init(VmRunView { outcome: Some(outcome.clone()), ..ended(restart, 0) });
    if outcome.ending == Ending::Initialized {
        let end = Outcome { ending: Ending::Exited { code: 0, message: None }, ..outcome };
        view.init = vec![InitState { now: InitStage::Over(end), ..InitState::new("one") }];
    }
    view
}

fn gone(view: VmRunView) -> VmRunView {
    VmRunView { cleaned: true, ..view }
}

/// A VM that knows that the init container has succeeded in the VM before it.
fn after_init(view: VmRunView) -> VmRunView {
    let mut view = made_of("a", view);
    let before = init_ended(0, Ending::Initialized).init;
    view.spec = view.spec.map(|spec| ShimSpec { init_before: before, main_restarts: Some(0), ..spec });
    view
}

#[test]
fn a_pod_with_an_init_container_in_a_vm_of_its_own() {
    let again = Desired::Run(RestartPolicy::Always);
    let two = |desired, runs| Observation { segments: two_segments(), ..seen(desired, runs) };
    let plan = |restart, segment, crashes| Decision::Plan { restart: Restart(restart), segment, crashes };
    let failed = || init_ended(0, Ending::InitFailed { container: "one".into(), code: 3 });
    let named = |segments| Observation { segments, ..seen(RUN, vec![of_init(live(0))]) };
    let mut other_init = two_segments();
    other_init[0].image = "c".into();
    let table = [
        (two(RUN, vec![]), plan(0, 0, 0)),
        (two(RUN, vec![of_init(planned(0))]), Decision::Launch(Restart(0))),
        (two(RUN, vec![of_init(live(0))]), Decision::Wait(None)),
        // The VM is deleted before the next one is planned, under every policy.
        (two(RUN, vec![init_ended(0, Ending::Initialized)]), Decision::DeleteVm(Restart(0))),
        (two(RUN, vec![gone(init_ended(0, Ending::Initialized))]), plan(1, 1, 0)),
        (two(again, vec![gone(init_ended(0, Ending::Initialized))]), plan(1, 1, 0)),
        // The plan was never written.
        (
            two(RUN, vec![gone(init_ended(0, Ending::Initialized)), VmRunView { spec: None, ..planned(1) }]),
            plan(1, 1, 0),
        ),
        (
            two(RUN, vec![gone(init_ended(0, Ending::Initialized)), after_init(planned(1))]),
            Decision::Launch(Restart(1)),
        ),
        // The records of the init container's VM go when two younger ones have their own.
        (
            two(
                again,
                vec![
                    gone(init_ended(0, Ending::Initialized)),
                    gone(after_init(ended(1, 1))),
                    after_init(live(2)),
                ],
            ),
            Decision::ForgetRun(Restart(0)),
        ),
        // A restart of the main container does not bring the init container's VM back.
        (two(again, vec![gone(after_init(ended(1, 1)))]), plan(2, 1, 1)),
        // A failure is final where the policy says so, else the same segment is tried again, with a back-off.
        (two(RUN, vec![gone(failed())]), Decision::Wait(None)),
        (two(RUN, vec![gone(init_ended(0, Ending::Lost))]), Decision::Wait(None)),
        (two(again, vec![gone(init_ended(0, Ending::Lost))]), plan(1, 0, 1)),
        (two(again, vec![crashed(gone(init_ended(1, Ending::Lost)))]), Decision::Wait(Some(at(109)))),
        // In a Pod that is to stop, nothing follows.
        (two(Desired::Stop(GRACE), vec![of_init(live(0))]), Decision::AskToStop(Restart(0), GRACE)),
        (two(Desired::Stop(GRACE), vec![gone(init_ended(0, Ending::Initialized))]), Decision::Wait(None)),
        // An init container runs to its end with the image that it has, whatever image the Pod names for it or for the main one.
        (named(other_init.clone()), Decision::Wait(None)),
        // A VM that has not begun is planned again.
        (Observation { segments: other_init, ..seen(RUN, vec![of_init(planned(0))]) }, plan(0, 0, 0)),
        (
            Observation { segments: vec![Segment::example("a")], ..seen(RUN, vec![of_init(planned(0))]) },
            plan(0, 0, 0),
        ),
    ];
    assert_decisions(table);
}

#[test]
fn volumes_stay_from_one_vm_to_the_next() {
    let runs = vec![gone(init_ended(0, Ending::Initialized))];
    let two = Observation { segments: two_segments(), has_volumes: true, ..seen(RUN, runs) };
    assert_eq!(decide(&two), Decision::Plan { restart: Restart(1), segment: 1, crashes: 0 });
    let stop = Observation { desired: Desired::Stop(GRACE), ..two.clone() };
    assert_eq!(decide(&stop), Decision::RemoveVolumes);
    let late = Observation { deadline: Some(Deadline { at: at(90), grace: GRACE }), ..two };
    assert_eq!(decide(&late), Decision::RemoveVolumes);
}

#[test]
fn a_long_run_resets_the_back_off() {
    let ran = |seconds: i64| {
        let mut view = cleaned(6, 1);
        view.spec = view.spec.map(|spec| ShimSpec { crashes: 6, ..spec });
        view.outcome = view.outcome.map(|end| Outcome { started_at: Some(at(99 - seconds)), ..end });
        decide(&seen(Desired::Run(RestartPolicy::Always), vec![view]))
    };
    assert_eq!(ran(599), Decision::Wait(Some(at(399))));
    assert_eq!(ran(600), Decision::Plan { restart: Restart(7), segment: 0, crashes: 1 });
}

#[test]
fn a_pod_that_is_evicted() {
    let large = |runs| Observation { too_large: true, ..seen(RUN, runs) };
    let evicted = |runs| Observation { evicted: Some("too large".into()), ..large(runs) };
    let going = |view| VmRunView {
        stop: Some(StopRequest { deadline: at(101), grace: Duration::from_secs(30), cause: None }),
        ..view
    };
    let table = [
        (large(vec![live(0)]), Decision::Evict),
        (evicted(vec![live(0)]), Decision::AskToStop(Restart(0), Duration::from_secs(1))),
        (evicted(vec![going(live(0))]), Decision::Wait(Some(at(131)))),
        (evicted(vec![ended(0, 0)]), Decision::DeleteVm(Restart(0))),
        // The container has ended by itself.
        (large(vec![ended(0, 0)]), Decision::DeleteVm(Restart(0))),
        (large(vec![cleaned(0, 1)]), Decision::Wait(None)),
        (large(vec![with_result(0, live(0))]), Decision::Wait(None)),
        // Under every restart policy.
        (
            Observation { desired: Desired::Run(RestartPolicy::Always), ..evicted(vec![cleaned(0, 0)]) },
            Decision::Wait(None),
        ),
        // A Pod that is being deleted keeps its own grace period.
        (
            Observation { desired: Desired::Stop(GRACE), ..large(vec![live(0)]) },
            Decision::AskToStop(Restart(0), GRACE),
        ),
    ];
    assert_decisions(table);
}

#[test]
fn volumes_go_with_the_last_vm() {
    let with = |desired, runs| Observation {
        has_volumes: true,
        final_status_published: true,
        ..seen(desired, runs)
    };
    let again = Desired::Run(RestartPolicy::Always);
    let evicted = |runs| Observation { evicted: Some("too large".into()), ..with(again, runs) };
    let deadline = Some(Deadline { at: at(90), grace: GRACE });
    let late = |runs| Observation { deadline, ..with(again, runs) };
    let vain = |runs| Observation { vain_wipe: true, ..with(Desired::Stop(GRACE), runs) };
    let table = [
        // Also while the API server is down.
        (with(RUN, vec![ended(0, 0)]), Decision::RemoveVolumes),
        (with(RUN, vec![cleaned(0, 0)]), Decision::RemoveVolumes),
        (with(RUN, vec![ended(0, 1), live(1)]), Decision::DeleteVm(Restart(0))),
        (with(again, vec![ended(0, 1)]), Decision::DeleteVm(Restart(0))),
        (with(again, vec![cleaned(0, 1)]), Decision::Plan { restart: Restart(1), segment: 0, crashes: 1 }),
        // A VM that runs keeps its volumes.
        (
            with(RUN, vec![VmRunView { holder: Holder::Tart, ..ended(0, 0) }]),
            Decision::StopWithoutShim(Restart(0)),
        ),
        (with(RUN, vec![with_result(0, live(0))]), Decision::Wait(None)),
        (with(Desired::Finished(GRACE), vec![ended(0, 0)]), Decision::RemoveVolumes),
        (with(Desired::Stop(GRACE), vec![ended(0, 0)]), Decision::RemoveVolumes),
        (with(Desired::Stop(GRACE), vec![live(0)]), Decision::AskToStop(Restart(0), GRACE)),
        (with(Desired::Gone, vec![ended(0, 0)]), Decision::RemoveVolumes),
        (evicted(vec![ended(0, 0)]), Decision::RemoveVolumes),
        (late(vec![ended(0, 0)]), Decision::RemoveVolumes),
        // Volumes and VMs are removed independently.
        (vain(vec![ended(0, 0)]), Decision::DeleteVm(Restart(0))),
        (vain(vec![cleaned(0, 0)]), Decision::RemoveVolumes),
        (with(Desired::Finished(GRACE), vec![cleaned(0, 0)]), Decision::RemoveVolumes),
        (with(Desired::Stop(GRACE), vec![cleaned(0, 0)]), Decision::RemoveVolumes),
        (
            Observation { has_volumes: false, ..with(Desired::Stop(GRACE), vec![cleaned(0, 0)]) },
            Decision::DeletePod,
        ),
        (Observation { has_volumes: false, ..with(Desired::Gone, vec![cleaned(0, 0)]) }, Decision::ForgetPod),
    ];
    assert_decisions(table);
}

#[test]
fn a_pod_with_a_deadline() {
    let with = |second, runs| Observation {
        deadline: Some(Deadline { at: at(second), grace: GRACE }),
        ..seen(RUN, runs)
    };
    let table = [
        (with(101, vec![live(0)]), Decision::Wait(Some(at(101)))),
        (with(100, vec![live(0)]), Decision::AskToStop(Restart(0), GRACE)),
        (with(100, vec![planned(0)]), Decision::RecordLoss(Restart(0))),
        (with(100, vec![cleaned(0, 1)]), Decision::Wait(None)),
        (with(100, vec![]), Decision::Wait(None)),
        // The container ended in time, though the API server does not know yet.
        (with(100, vec![with_result(0, live(0))]), Decision::Wait(None)),
        (Observation { desired: Desired::Gone, ..with(100, vec![]) }, Decision::ForgetPod),
    ];
    assert_decisions(table);
}

fn any_run(restart: u32) -> impl Strategy<Value = VmRunView> {
    let holder = prop_oneof![Just(Holder::Shim), Just(Holder::Tart), Just(Holder::None)];
    let cause =
        prop_oneof![Just(None), Just(Some(StopCause::FailedLiveness)), Just(Some(StopCause::Changed))];
    (holder, any::<[bool; 7]>(), 0..3i32, cause).prop_map(
        move |(holder, [spec, begun, stop, asked, over, cleaned, old], code, cause)| {
            let full = made_of(if old { "a" } else { "b" }, ended(restart, code));
            VmRunView {
                holder,
                spec: full.spec.filter(|_| spec),
                begun,
                progress: full.progress.filter(|_| begun),
                stop: stop.then_some(StopRequest {
                    deadline: at(120),
                    grace: Duration::from_secs(30),
                    cause,
                }),
                guest_asked: asked,
                outcome: full.outcome.filter(|_| over),
                cleaned,
                ..planned(restart)
            }
        },
    )
}

/// A run of either of two segments.
fn any_run_of_two(restart: u32) -> impl Strategy<Value = VmRunView> {
    let ending = prop_oneof![
        Just(Ending::Initialized),
        Just(Ending::Lost),
        Just(Ending::InitFailed { container: "one".into(), code: 3 }),
    ];
    (any_run(restart), any::<bool>(), ending).prop_map(move |(run, is_init, ending)| {
        if !is_init {
            return after_init(run);
        }
        let full = init_ended(restart, ending);
        let over = run.outcome.is_some();
        VmRunView {
            spec: full.spec.filter(|_| run.spec.is_some()),
            init: if over { full.init } else { vec![] },
            outcome: full.outcome.filter(|_| over),
            ..run
        }
    })
}

fn any_observation_of_two() -> impl Strategy<Value = Observation> {
    let runs = prop_oneof![
        Just(vec![]).boxed(),
        any_run_of_two(0).prop_map(|a| vec![a]).boxed(),
        (any_run_of_two(0), any_run_of_two(1)).prop_map(|(a, b)| vec![a, b]).boxed(),
        (any_run_of_two(0), any_run_of_two(1), any_run_of_two(2)).prop_map(|(a, b, c)| vec![a, b, c]).boxed(),
    ];
    (any_observation(), runs).prop_map(|(seen, runs)| Observation { runs, segments: two_segments(), ..seen })
}

fn any_observation() -> impl Strategy<Value = Observation> {
    let desired = prop_oneof![
        Just(RUN),
        Just(Desired::Run(RestartPolicy::Always)),
        Just(Desired::Run(RestartPolicy::OnFailure)),
        Just(Desired::Stop(GRACE)),
        Just(Desired::Finished(GRACE)),
        Just(Desired::Gone),
    ];
    let runs = prop_oneof![
        Just(vec![]).boxed(),
        any_run(0).prop_map(|a| vec![a]).boxed(),
        (any_run(0), any_run(1)).prop_map(|(a, b)| vec![a, b]).boxed(),
    ];
    let health = prop_oneof![
        Just(None),
        Just(Some(ContainerHealth { started: false, ready: false, failed: None })),
        Just(Some(ContainerHealth { started: true, ready: true, failed: Some(StopCause::FailedLiveness) })),
    ];
    let asked = prop_oneof![Just(None), (0..2u32).prop_map(|restart| Some(Restart(restart)))];
    let started = asked.clone();
    (desired, runs, health, any::<[bool; 5]>(), asked, started, 0..5u32).prop_map(
        |(
            desired,
            runs,
            health,
            [refused, accepted, published, volumes, vain],
            asked,
            started,
            vain_stops,
        )| {
            Observation {
                started,
                has_volumes: volumes,
                vain_wipe: vain,
                refused,
                accepted,
                segments: vec![Segment::example("b")],
                health,
                asked,
                vain_stops,
                final_status_published: published,
                ..seen(desired, runs)
            }
        },
    )
}

proptest! {
    /// One VM per Pod: a new one is only ever made when nothing of the old ones is left.
    #[test]
    fn a_vm_is_planned_only_when_no_other_is_left(seen in any_observation()) {
        if let Decision::Plan { .. } | Decision::Launch(_) = decide(&seen) {
            for run in &seen.runs {
                prop_assert!(run.holder == Holder::None || run.outcome.is_some() && run.holder == Holder::Shim);
                let untouched = run.outcome.is_none() && !run.begun;
                prop_assert!(run.cleaned || untouched, "{:?}", run);
            }
        }
    }

    /// The same for a Pod with several VMs.
    #[test]
    fn no_two_vms_of_a_pod_exist_at_once(seen in any_observation_of_two()) {
        if let Decision::Plan { .. } | Decision::Launch(_) = decide(&seen) {
            for run in &seen.runs {
                prop_assert!(run.cleaned || run.outcome.is_none() && !run.begun, "{:?}", run);
            }
        }
    }

    /// The order of segments: the main container's VM is planned only after the init container has succeeded, and the init container's VM
    /// only as long as it has not.
    #[test]
    fn an_init_container_that_has_succeeded_is_not_planned_again(seen in any_observation_of_two()) {
        if let Decision::Plan { segment, .. } = decide(&seen) {
            let states = crate::pod::sync::next_vm::init_states(&seen.runs);
            let has_succeeded = states.iter().any(|state| state.name == "one" && state.has_succeeded());
            prop_assert_eq!(segment, usize::from(has_succeeded));
        }
    }

    /// A VM is launched only for the segment whose turn it is.
    #[test]
    fn a_vm_is_launched_in_its_turn(seen in any_observation_of_two()) {
        if let Decision::Launch(restart) = decide(&seen) {
            let run = seen.runs.iter().find(|run| run.restart == restart).unwrap();
            prop_assert_eq!(usize::from(run.has_main()), seen.next_segment());
        }
    }

    /// What the next plan takes over is not forgotten, nor the main container's last end.
    #[test]
    fn records_that_are_needed_are_not_forgotten(seen in any_observation_of_two()) {
        if let Decision::ForgetRun(restart) = decide(&seen) {
            let (current, older) = seen.runs.split_last().unwrap();
            prop_assert!(current.restart != restart && older.last().unwrap().restart != restart);
            let of_main = older.iter().rfind(|run| run.has_main());
            prop_assert!(of_main.is_none_or(|run| run.restart != restart));
        }
    }

    /// A VM that the API shows as started does not run again because its records are lost.
    #[test]
    fn a_started_vm_is_not_planned_again(seen in any_observation()) {
        if let Decision::Plan { restart, .. } = decide(&seen) {
            prop_assert!(seen.started.is_none() || !seen.runs.is_empty(), "{:?}", restart);
        }
    }

    /// Probes and other images stop nothing but the current VM of a Pod that stays, and only once.
    #[test]
    fn a_container_is_stopped_only_while_it_lives(seen in any_observation()) {
        if let Decision::StopFor(restart, cause) = decide(&seen) {
            let current = seen.runs.last().unwrap();
            prop_assert!(matches!(seen.desired, Desired::Run(_)) && current.restart == restart);
            prop_assert!(current.holder == Holder::Shim && current.outcome.is_none() && current.result.is_none());
            prop_assert!(current.stop.is_none_or(|stop| stop.cause.is_none()));
            match cause {
                StopCause::Changed => prop_assert!(seen.is_outdated(current)),
                cause => prop_assert_eq!(seen.health.and_then(|health| health.failed), Some(cause)),
            }
        }
    }

    /// The agent stops only VMs without a shim, and only after it has asked the guest for the exit code.
    #[test]
    fn a_vm_with_a_shim_is_stopped_by_its_shim(seen in any_observation()) {
        if let Decision::StopWithoutShim(restart) | Decision::KillStrayProcesses(restart) = decide(&seen) {
            let run = seen.runs.iter().find(|a| a.restart == restart).unwrap();
            prop_assert_eq!(run.holder, Holder::Tart);
            let is_asked = run.guest_asked || seen.asked == Some(restart);
            prop_assert!(is_asked || run.outcome.is_some() || seen.desired == Desired::Gone);
        }
    }

    /// The agent asks the guest once and then stops the VM, even if nothing can be recorded.
    #[test]
    fn no_guest_is_asked_twice(mut seen in any_observation()) {
        if let Decision::AskGuest(restart) = decide(&seen) {
            prop_assert!(seen.desired != Desired::Gone);
            seen.asked = Some(restart);
            let next = decide(&seen);
            prop_assert!(next == Decision::StopWithoutShim(restart) || next == Decision::KillStrayProcesses(restart), "{:?}", next);
        }
    }

    /// A VM is deleted only when no process works on it and its outcome is known.
    #[test]
    fn nothing_live_is_deleted(seen in any_observation()) {
        let live = |a: &VmRunView| a.holder == Holder::Tart || (a.holder == Holder::Shim && a.outcome.is_none());
        match decide(&seen) {
            Decision::DeleteVm(restart) => {
                let run = seen.runs.iter().find(|a| a.restart == restart).unwrap();
                prop_assert!(!live(run) && run.outcome.is_some());
            }
            Decision::ForgetPod | Decision::DeletePod => {
                for run in &seen.runs {
                    prop_assert!(!live(run) && run.cleaned);
                }
            }
            _ => {}
        }
    }

    /// Volumes are removed only when no VM has them or will have them.
    #[test]
    fn a_vm_never_loses_its_volumes(seen in any_observation()) {
        if decide(&seen) == Decision::RemoveVolumes {
            prop_assert!(seen.is_idle());
            let wiped = Observation { has_volumes: false, now: at(100_000), ..seen };
            let starts = matches!(decide(&wiped), Decision::Plan { .. } | Decision::Launch(_));
            prop_assert!(!starts);
        }
    }

    /// The Pod object goes only after its final status is with the API server.
    #[test]
    fn no_pod_is_deleted_without_a_final_status(seen in any_observation()) {
        if decide(&seen) == Decision::DeletePod {
            prop_assert!(seen.final_status_published && matches!(seen.desired, Desired::Stop(_)));
        }
    }

    /// A Pod that has succeeded or failed is not run again.
    #[test]
    fn a_finished_pod_is_not_run_again(mut seen in any_observation(), over in any::<bool>()) {
        seen.desired = if over { Desired::Finished(GRACE) } else { Desired::Gone };
        let runs = matches!(decide(&seen), Decision::Plan { .. } | Decision::Launch(_) | Decision::Accept);
        prop_assert!(!runs);
    }
}

#[test]
fn a_vm_counts_from_its_launch_until_it_is_known_to_be_over() {
    let without_shim = VmRunView { holder: Holder::Tart, ..ended(0, 0) };
    let lost = VmRunView { holder: Holder::None, ..live(0) };
    let leaving = VmRunView { holder: Holder::Shim, ..ended(0, 0) };
    let table = [
        (vec![], false),
        (vec![planned(0)], false),
        (vec![live(0)], true),
        (vec![lost], true),
        (vec![without_shim], true),
        (vec![leaving], false),
        (vec![cleaned(0, 1), live(1)], true),
        (vec![cleaned(0, 1), planned(1)], false),
    ];
    for (runs, expected) in table {
        assert_eq!(seen(RUN, runs.clone()).has_vm(), expected, "{runs:?}");
    }
}
