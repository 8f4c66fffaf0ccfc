use std::net::Ipv4Addr;
use std::time::Duration;

use k8s_openapi::api::core::v1::PodSpec;
use serde_json::json;

use super::*;
use crate::names::Restart;
use crate::pod::admission::RefusalReason;
use crate::pod::sync::decide::Deadline;
use crate::probe::state::ContainerHealth;
use crate::state::{InitStage, InitState, InitVm, RestartPolicy, Segment, ShimSpec, StopCause, StopRequest};
use crate::testing::from_json;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn plan() -> VmPlan {
    VmPlan { container: "main".into(), image: "registry.test/macos:15".into(), ..VmPlan::default() }
}

fn with_init() -> VmPlan {
    VmPlan { init: vec!["init".into()], ..plan() }
}

impl<'a> Context<'a> {
    fn example(pod: &'a Pod, plan: Result<&'a VmPlan, &'a Refusal>) -> Self {
        Self { pod, before: None, plan, accepted_at: None, trouble: None, host_ip: None }
    }
}

fn vm_run(restart: u32, stage: Option<Stage>, ending: Option<Ending>) -> VmRunView {
    VmRunView {
        spec: Some(ShimSpec::example(VmName::new("0b1c".parse().unwrap(), Restart(restart)))),
        begun: stage.is_some(),
        progress: stage.map(|stage| Progress { since: at(50), ..Progress::example(stage) }),
        outcome: ending.map(|ending| Outcome { ending, started_at: Some(at(50)), finished_at: at(60) }),
        ..VmRunView::example(restart)
    }
}

/// A VM whose container had failed once before.
fn crashed(view: VmRunView) -> VmRunView {
    VmRunView { spec: view.spec.map(|spec| ShimSpec { crashes: 1, ..spec }), ..view }
}

fn seen(desired: Desired, runs: Vec<VmRunView>) -> Observation {
    Observation::example(desired, runs, at(100))
}

fn shown(seen: &Observation) -> PodStatus {
    shown_as(&plan(), seen)
}

fn shown_as(plan: &VmPlan, seen: &Observation) -> PodStatus {
    let metadata = ObjectMeta {
        name: Some("web-0".into()),
        namespace: Some("ci".into()),
        uid: Some("0b1c".into()),
        generation: Some(1),
        ..ObjectMeta::default()
    };
    let pod = Pod { metadata, ..Pod::default() };
    render(seen, &Context { accepted_at: Some(at(40)), ..Context::example(&pod, Ok(plan)) })
}

/// The status of the main container.
fn main_of(status: PodStatus) -> ContainerStatus {
    status.container_statuses.unwrap().remove(0)
}

const BOOTING: Option<Stage> = Some(Stage::Booting);
const RUNNING: Option<Stage> = Some(Stage::Running { address: IpAddr::V4(Ipv4Addr::new(127, 0, 0, 9)) });

fn running_vm() -> VmRunView {
    vm_run(0, RUNNING, None)
}

/// A status with an init container that has ended after two restarts.
fn init_ended(code: i32) -> PodStatus {
    let status = json!({
        "name": "init", "image": "i", "imageID": "", "ready": true, "restartCount": 2,
        "state": {"terminated": {"exitCode": code}},
    });
    from_json(json!({"initContainerStatuses": [status]}))
}

fn exited(code: i32) -> Ending {
    Ending::Exited { code, message: None }
}

const NEVER: Desired = Desired::Run(RestartPolicy::Never);
const ALWAYS: Desired = Desired::Run(RestartPolicy::Always);
const STOP: Desired = Desired::Stop(Duration::from_secs(30));

#[test]
fn the_phase_follows_from_stage_ending_and_policy() {
    let table = [
        (seen(NEVER, vec![]), "Pending"),
        (seen(NEVER, vec![vm_run(0, BOOTING, None)]), "Pending"),
        (seen(NEVER, vec![vm_run(0, RUNNING, None)]), "Running"),
        (seen(NEVER, vec![vm_run(0, RUNNING, Some(exited(0)))]), "Succeeded"),
        (seen(NEVER, vec![vm_run(0, RUNNING, Some(exited(1)))]), "Failed"),
        (seen(ALWAYS, vec![vm_run(0, RUNNING, Some(exited(0)))]), "Running"),
        (seen(ALWAYS, vec![vm_run(0, RUNNING, Some(exited(0))), vm_run(1, BOOTING, None)]), "Running"),
        (seen(STOP, vec![vm_run(0, RUNNING, Some(Ending::Stopped { killed: false }))]), "Succeeded"),
        (seen(STOP, vec![vm_run(0, RUNNING, Some(Ending::Stopped { killed: true }))]), "Failed"),
        (seen(STOP, vec![]), "Failed"),
        (seen(STOP, vec![vm_run(0, RUNNING, None)]), "Running"),
        (seen(NEVER, vec![vm_run(0, RUNNING, Some(Ending::Lost))]), "Failed"),
    ];
    for (observation, phase) in table {
        assert_eq!(shown(&observation).phase.as_deref(), Some(phase), "{observation:#?}");
    }
}

#[test]
fn an_ended_init_container_stays_ended_when_its_records_are_lost() {
    let with_init = with_init();
    let ended = init_ended(0);
    let pod = Pod { status: Some(ended.clone()), ..Pod::default() };
    let waiting = shown_as(&with_init, &seen(NEVER, vec![]));
    let initialized = |status: &PodStatus| {
        let all = status.conditions.as_ref().unwrap();
        all.iter().find(|one| one.type_ == "Initialized").unwrap().status.clone()
    };
    let unplanned = |run: VmRunView| VmRunView { spec: None, ..run };
    let table = [
        (None, true),
        (Some(unplanned(vm_run(0, None, None))), true),
        (Some(unplanned(vm_run(0, None, Some(Ending::Lost)))), true),
        (Some(vm_run(0, BOOTING, Some(Ending::Lost))), true),
        (Some(running_vm()), true),
        // The new VM runs its init containers again.
        (Some(vm_run(1, BOOTING, None)), false),
    ];
    for (current, is_kept) in table {
        let seen = seen(NEVER, current.into_iter().collect());
        // The API server has refused the agent's last status.
        let context = Context { before: Some(&waiting), ..Context::example(&pod, Ok(&with_init)) };
        let status = render(&seen, &context);
        assert_eq!(status.init_container_statuses == ended.init_container_statuses, is_kept, "{seen:?}");
        assert_eq!(initialized(&status) == "True", is_kept, "{seen:?}");
    }
}

#[test]
fn an_init_container_that_runs_again_stays_terminated_where_the_api_server_demands_it() {
    let with_init = with_init();
    let running = InitState { now: InitStage::Running(at(50)), restarts: 1, ..InitState::new("init") };
    let again = VmRunView { init: vec![running], ..vm_run(1, BOOTING, None) };
    let seen = seen(NEVER, vec![vm_run(0, None, Some(Ending::Lost)), again]);
    for (policy, code, is_kept) in
        [("Always", 0, false), ("OnFailure", 0, true), ("OnFailure", 1, false), ("Never", 1, true)]
    {
        let spec = PodSpec { restart_policy: Some(policy.into()), ..PodSpec::default() };
        let pod = Pod { spec: Some(spec), status: Some(init_ended(code)), ..Pod::default() };
        let state = render(&seen, &Context::example(&pod, Ok(&with_init)))
            .init_container_statuses
            .unwrap()
            .remove(0)
            .state
            .unwrap();
        assert_eq!(state.terminated.is_some(), is_kept, "{policy} {code}");
    }
}

#[test]
fn an_init_container_ends_with_its_vm() {
    let with_init = with_init();
    let init = InitState { now: InitStage::Running(at(50)), ..InitState::new("init") };
    let state = |ending| {
        let run = VmRunView { init: vec![init.clone()], ..vm_run(0, BOOTING, ending) };
        let status = shown_as(&with_init, &seen(NEVER, vec![run]));
        let status = status.init_container_statuses.unwrap().remove(0);
        (status.started, status.state.unwrap())
    };
    let (started, lives) = state(None);
    assert!(started == Some(true) && lives.running.is_some());
    let (started, lost) = state(Some(Ending::Lost));
    let lost = lost.terminated.unwrap();
    assert_eq!(started, Some(false));
    assert_eq!((lost.exit_code, lost.reason.as_deref()), (137, Some("ContainerStatusUnknown")));
}

/// A VM that is only for the init container, with this end and state of it.
fn init_vm(restart: u32, ending: Option<Ending>, now: Option<InitStage>) -> VmRunView {
    let run = vm_run(restart, BOOTING, ending);
    let vm = VmName::new("0b1c".parse().unwrap(), Restart(restart));
    let spec = ShimSpec::example_of_init(vm, &["init"]);
    let spec = ShimSpec { image_name: Some("tools".into()), main_restarts: Some(0), ..spec };
    let init = now.map(|now| InitState { now, ..InitState::new("init") });
    VmRunView { spec: Some(spec), init: init.into_iter().collect(), ..run }
}

/// How an init container has ended.
fn init_over(code: i32) -> InitStage {
    InitStage::Over(Outcome { ending: exited(code), started_at: Some(at(50)), finished_at: at(60) })
}

#[test]
fn a_pod_whose_init_container_has_a_vm_of_its_own_waits_until_it_is_over() {
    let failed = || Ending::InitFailed { container: "init".into(), code: 3 };
    let lost = || Some(Ending::Lost);
    let initialized = || init_vm(0, Some(Ending::Initialized), Some(init_over(0)));
    let running = || init_vm(0, None, Some(InitStage::Running(at(50))));
    let backs_off = "waiting CrashLoopBackOff";
    let table = [
        (seen(NEVER, vec![init_vm(0, None, None)]), "Pending", "waiting PodInitializing"),
        (seen(NEVER, vec![running()]), "Pending", "running"),
        (seen(NEVER, vec![initialized()]), "Pending", "terminated 0"),
        (seen(NEVER, vec![initialized(), VmRunView::example(1)]), "Pending", "terminated 0"),
        // The init container's end is that of its VM.
        (seen(NEVER, vec![init_vm(0, Some(failed()), Some(init_over(3)))]), "Failed", "terminated 3"),
        (seen(NEVER, vec![init_vm(0, lost(), Some(InitStage::Running(at(50))))]), "Failed", "terminated 137"),
        (seen(NEVER, vec![init_vm(0, lost(), None)]), "Failed", "terminated 137"),
        (seen(ALWAYS, vec![init_vm(0, lost(), None)]), "Pending", "terminated 137"),
        (seen(ALWAYS, vec![crashed(init_vm(1, lost(), None))]), "Pending", backs_off),
        // The Pod is deleted before its main container has run.
        (seen(STOP, vec![running()]), "Pending", "running"),
        (seen(STOP, vec![initialized()]), "Failed", "terminated 0"),
    ];
    for (observation, phase, init) in table {
        let status = shown_as(&with_init(), &observation);
        assert_eq!(status.phase.as_deref(), Some(phase), "{observation:#?}");
        let shown = status.init_container_statuses.clone().unwrap().remove(0);
        let state = shown.state.clone().unwrap();
        let words = match (&state.waiting, &state.running, &state.terminated) {
            (Some(waiting), ..) => format!("waiting {}", waiting.reason.as_deref().unwrap_or_default()),
            (_, Some(_), _) => "running".to_owned(),
            (.., Some(end)) => format!("terminated {}", end.exit_code),
            _ => String::new(),
        };
        assert_eq!(words, init, "{observation:#?}");
        if words == backs_off {
            assert_eq!(shown.last_state.unwrap().terminated.unwrap().exit_code, 137);
        }
        let main = main_of(status);
        let waits = main.state.unwrap().waiting.and_then(|waiting| waiting.reason);
        assert_eq!((waits.as_deref(), main.restart_count), (Some("PodInitializing"), 0));
        assert_eq!((main.container_id, main.image.as_str()), (None, "registry.test/macos:15"));
    }
}

#[test]
fn an_init_container_shows_the_vm_that_it_has_run_in() {
    let spec = init_vm(0, None, None).spec.unwrap();
    let ran_in = Some(InitVm { vm: spec.vm, image: spec.image, image_name: spec.image_name });
    let before = InitState { now: init_over(0), ran_in, ..InitState::new("init") };
    let mut main = vm_run(1, RUNNING, None);
    let spec = main.spec.as_mut().unwrap();
    (spec.init_before, spec.main_restarts) = (vec![before], Some(0));
    spec.image = "registry.test/macos@sha256:1".into();
    let status = shown_as(&with_init(), &seen(ALWAYS, vec![main]));
    let init = status.init_container_statuses.clone().unwrap().remove(0);
    assert_eq!((init.image.as_str(), init.image_id.as_str()), ("tools", "registry.test/macos@sha256:0"));
    assert_eq!(init.container_id.as_deref(), Some("tart://tk-0b1c-0"));
    let end = init.state.unwrap().terminated.unwrap();
    assert_eq!((end.container_id.as_deref(), init.ready), (Some("tart://tk-0b1c-0"), true));
    let main = main_of(status);
    assert_eq!((main.container_id.as_deref(), main.restart_count), (Some("tart://tk-0b1c-1"), 0));
}

#[test]
fn a_running_pod_has_an_address_and_is_ready() {
    let status = shown(&seen(NEVER, vec![running_vm()]));
    assert_eq!(status.pod_ip.as_deref(), Some("127.0.0.9"));
    assert_eq!(status.pod_ips.unwrap()[0].ip, "127.0.0.9");
    let container = &status.container_statuses.unwrap()[0];
    assert!(container.ready && container.started == Some(true));
    assert_eq!(container.container_id.as_deref(), Some("tart://tk-0b1c-0"));
    assert!(status.conditions.unwrap().iter().all(|c| c.status == "True"));
}

#[test]
fn a_pod_that_is_over_keeps_its_address() {
    let ended = |desired| shown(&seen(desired, vec![vm_run(0, RUNNING, Some(exited(1)))]));
    let over = ended(NEVER);
    assert_eq!((over.phase.as_deref(), over.pod_ip.as_deref()), (Some("Failed"), Some("127.0.0.9")));
    assert_eq!(over.pod_ips.unwrap()[0].ip, "127.0.0.9");
    let ready = over.conditions.unwrap().into_iter().find(|one| one.type_ == "Ready").unwrap();
    assert_eq!(ready.status, "False");
    // The next VM has an address of its own.
    assert_eq!((ended(ALWAYS).pod_ip, ended(ALWAYS).pod_ips), (None, None));
}

#[test]
fn probes_say_whether_a_running_pod_is_ready() {
    let shown = |started, ready| {
        let health = Some(ContainerHealth { started, ready, failed: None });
        shown(&Observation { health, ..seen(NEVER, vec![running_vm()]) })
    };
    for (started, ready) in [(false, false), (true, false), (true, true)] {
        let status = shown(started, ready);
        assert_eq!(status.phase.as_deref(), Some("Running"));
        let container = &status.container_statuses.unwrap()[0];
        assert_eq!((container.started, container.ready), (Some(started), ready));
        for condition in status.conditions.unwrap() {
            let told = (condition.status.as_str(), condition.reason.as_deref(), condition.message.as_deref());
            let unready =
                ("False", Some("ContainersNotReady"), Some("containers with unready status: [main]"));
            let expected = match condition.type_.as_str() {
                "Ready" | "ContainersReady" if !ready => unready,
                _ => ("True", None, None),
            };
            assert_eq!(told, expected, "{}", condition.type_);
        }
    }
}

#[test]
fn a_container_stopped_for_a_failed_probe_shows_the_reason() {
    let stop = StopRequest {
        deadline: at(55),
        grace: Duration::from_secs(30),
        cause: Some(StopCause::FailedLiveness),
    };
    let gone = |killed| VmRunView { stop: Some(stop), ..vm_run(0, None, Some(Ending::Stopped { killed })) };
    for (killed, code) in [(false, 143), (true, 137)] {
        let over = main_of(shown(&seen(ALWAYS, vec![gone(killed)])));
        let end = over.state.unwrap().terminated.unwrap();
        assert_eq!((end.exit_code, end.reason.as_deref()), (code, Some("Error")));
        assert_eq!(end.message.as_deref(), Some("the container failed liveness probe and was stopped"));
    }
    assert_eq!(shown(&seen(NEVER, vec![gone(false)])).phase.as_deref(), Some("Failed"));
}

#[test]
fn a_restarted_container_shows_how_it_ended_before() {
    let failed = vm_run(0, None, Some(exited(3)));
    let over = shown(&seen(ALWAYS, vec![failed.clone()]));
    assert_eq!(over.phase.as_deref(), Some("Running"), "it starts again at once");
    let failed = crashed(failed);
    let waiting = main_of(shown(&seen(ALWAYS, vec![failed.clone()])));
    let state = waiting.state.unwrap().waiting.unwrap();
    assert_eq!(state.reason.as_deref(), Some("CrashLoopBackOff"));
    let words = "back-off 10s restarting failed container=main pod=web-0_ci(0b1c)";
    assert_eq!(state.message.as_deref(), Some(words));
    assert_eq!(waiting.last_state.unwrap().terminated.unwrap().exit_code, 3);
    let again = main_of(shown(&seen(ALWAYS, vec![failed, vm_run(1, None, None)])));
    assert_eq!(again.restart_count, 1);
    assert_eq!(again.last_state.unwrap().terminated.unwrap().exit_code, 3);
}

#[test]
fn a_container_shows_its_current_image_until_it_restarts() {
    let stop =
        StopRequest { deadline: at(55), grace: Duration::from_secs(30), cause: Some(StopCause::Changed) };
    let old = |view: VmRunView| VmRunView {
        spec: view.spec.map(|spec| ShimSpec { image_name: Some("old".into()), ..spec }),
        stop: Some(stop),
        ..view
    };
    let main = |desired, view| {
        let status =
            shown(&Observation { segments: vec![Segment::example("new")], ..seen(desired, vec![view]) });
        (status.phase.clone().unwrap(), main_of(status))
    };
    let (phase, container) = main(NEVER, old(vm_run(0, RUNNING, None)));
    assert_eq!((phase.as_str(), container.image.as_str()), ("Running", "old"));
    // The container ended for another image and starts again under every policy, unless the Pod is deleted.
    let gone = || old(vm_run(0, RUNNING, Some(Ending::Stopped { killed: false })));
    for (desired, expected) in [(ALWAYS, "Running"), (STOP, "Succeeded")] {
        let (phase, container) = main(desired, gone());
        let end = container.state.unwrap().terminated.unwrap();
        assert_eq!((phase.as_str(), end.exit_code, end.reason.as_deref()), (expected, 0, Some("Completed")));
    }
    // The API server would not let the container leave its terminated state.
    let (phase, container) = main(NEVER, gone());
    let waits = container.state.unwrap().waiting.unwrap();
    let end = container.last_state.unwrap().terminated.unwrap();
    assert_eq!((phase.as_str(), waits.reason.as_deref()), ("Running", Some("ContainerCreating")));
    assert_eq!((end.exit_code, end.reason.as_deref()), (0, Some("Completed")));
}

#[test]
fn an_end_that_would_be_final_is_not_shown_before_a_restart() {
    let stop = Some(StopRequest {
        deadline: at(55),
        grace: Duration::from_secs(30),
        cause: Some(StopCause::FailedLiveness),
    });
    let on_failure = Desired::Run(RestartPolicy::OnFailure);
    let kind = |desired, code| {
        let ended = VmRunView { stop, ..vm_run(0, None, Some(exited(code))) };
        let container = main_of(shown(&seen(desired, vec![ended])));
        let last = container.last_state.unwrap().terminated.map(|end| end.exit_code);
        match container.state.unwrap().terminated {
            Some(end) => (end.exit_code, "terminated", last),
            None => (last.unwrap(), "waiting", last),
        }
    };
    let table = [
        (ALWAYS, 0, "terminated"),
        (ALWAYS, 1, "terminated"),
        (on_failure, 1, "terminated"),
        (on_failure, 0, "waiting"),
        (NEVER, 0, "terminated"),
    ];
    for (desired, code, state) in table {
        let last = (state == "waiting").then_some(code);
        assert_eq!(kind(desired, code), (code, state, last), "{desired:?}");
    }
}

#[test]
fn a_restart_that_cannot_be_planned_says_why() {
    let message = "configmap \"c\" not found".to_owned();
    let trouble = Trouble { reason: "CreateContainerConfigError", message, container: None };
    let (pod, plan) = (Pod::default(), plan());
    let context = Context { trouble: Some(&trouble), ..Context::example(&pod, Ok(&plan)) };
    let failed = crashed(vm_run(1, None, Some(exited(3))));
    for (now, reason) in [(69, "CrashLoopBackOff"), (70, "CreateContainerConfigError")] {
        let observation = Observation { now: at(now), wall: at(now), ..seen(ALWAYS, vec![failed.clone()]) };
        let status = render(&observation, &context);
        assert_eq!(status.phase.as_deref(), Some("Running"));
        let container = main_of(status);
        assert_eq!(container.state.unwrap().waiting.unwrap().reason.as_deref(), Some(reason), "{now}");
        assert_eq!(container.last_state.unwrap().terminated.unwrap().exit_code, 3);
    }
    let over = render(&seen(NEVER, vec![failed]), &context);
    assert_eq!(over.phase.as_deref(), Some("Failed"), "nothing is in the way of what does not start again");
}

#[test]
fn an_evicted_pod_fails_once_nothing_of_it_runs() {
    let with = |view| shown(&Observation { evicted: Some("too large".into()), ..seen(ALWAYS, vec![view]) });
    assert_eq!(with(running_vm()).phase.as_deref(), Some("Running"));
    let status = with(vm_run(0, None, Some(Ending::Stopped { killed: false })));
    let told = (status.phase.as_deref(), status.reason.as_deref(), status.message.as_deref());
    assert_eq!(told, (Some("Failed"), Some("Evicted"), Some("too large")));
    // A container that had ended by itself keeps its own end.
    for (code, phase) in [(0, "Succeeded"), (3, "Failed")] {
        let ended = seen(NEVER, vec![vm_run(0, None, Some(exited(code)))]);
        let status = shown(&Observation { evicted: Some("too large".into()), ..ended });
        assert_eq!((status.phase.as_deref(), status.reason), (Some(phase), None));
        let conditions = status.conditions.unwrap_or_default();
        assert!(conditions.iter().all(|one| one.type_ != "DisruptionTarget"));
    }
}

#[test]
fn a_missed_deadline_fails_the_pod_once_nothing_of_it_runs() {
    let deadline = Some(Deadline { at: at(100), grace: Duration::ZERO });
    let status = shown(&Observation { deadline, ..seen(ALWAYS, vec![running_vm()]) });
    assert_eq!((status.phase.as_deref(), status.reason), (Some("Running"), None));
    let stopped = vm_run(0, None, Some(Ending::Stopped { killed: false }));
    let status = shown(&Observation { deadline, ..seen(ALWAYS, vec![stopped]) });
    let told = (status.phase.as_deref(), status.reason.as_deref());
    assert_eq!(told, (Some("Failed"), Some("DeadlineExceeded")));
}

#[test]
fn no_container_of_a_pod_that_is_over_waits() {
    let deadline = Some(Deadline { at: at(99), grace: Duration::ZERO });
    let runs = || vec![vm_run(0, None, Some(exited(5))), crashed(vm_run(1, None, Some(exited(7))))];
    let codes = |observation: &Observation| {
        let status = shown(observation);
        assert_eq!(status.phase.as_deref(), Some("Failed"), "{observation:?}");
        let container = main_of(status);
        let code =
            |state: Option<ContainerState>| state.and_then(|state| state.terminated).map(|end| end.exit_code);
        (code(container.state), code(container.last_state))
    };
    // Without the deadline the container would start again.
    assert_eq!(codes(&Observation { deadline, ..seen(ALWAYS, runs()) }), (Some(7), None));
    let evicted = Some("too large".to_owned());
    assert_eq!(codes(&Observation { evicted, ..seen(ALWAYS, runs()) }), (Some(7), None));
    // The image was never pulled.
    assert_eq!(codes(&Observation { deadline, ..seen(ALWAYS, vec![]) }), (Some(137), None));
    assert_eq!(codes(&seen(STOP, vec![])), (Some(137), None));
}

#[test]
fn a_pod_that_was_over_before_its_deadline_has_not_missed_it() {
    // The container ended at 60.
    let told = |deadline, desired, code| {
        let deadline = Some(Deadline { at: at(deadline), grace: Duration::ZERO });
        let status =
            shown(&Observation { deadline, ..seen(desired, vec![vm_run(0, None, Some(exited(code)))]) });
        status.reason.or(status.phase).unwrap_or_default()
    };
    assert_eq!(told(61, NEVER, 0), "Succeeded");
    assert_eq!(told(61, NEVER, 1), "Failed");
    assert_eq!(told(60, NEVER, 0), "DeadlineExceeded");
    // A container that will start again is not over.
    assert_eq!(told(61, ALWAYS, 0), "DeadlineExceeded");
}

#[test]
fn a_pod_is_refused_with_a_reason_unless_it_was_admitted_before() {
    let message = "spec.volumes: no".to_owned();
    let refusal = Refusal { reason: RefusalReason::UnsupportedPod, message };
    let pod = Pod::default();
    let context = Context::example(&pod, Err(&refusal));
    let status = render(&Observation { accepted: false, ..seen(NEVER, vec![]) }, &context);
    let told = (status.phase.as_deref(), status.reason.as_deref(), status.message.as_deref());
    assert_eq!(told, (Some("Failed"), Some("UnsupportedPod"), Some("Pod was rejected: spec.volumes: no")));
    assert_eq!(render(&seen(NEVER, vec![running_vm()]), &context).phase.as_deref(), Some("Running"));
    let waiting = render(&seen(NEVER, vec![]), &context);
    assert_eq!(waiting.phase.as_deref(), Some("Pending"));
    let state = main_of(waiting).state.unwrap().waiting.unwrap();
    assert_eq!(state.message.as_deref(), Some("spec.volumes: no"));
}

#[test]
fn an_ephemeral_container_fails_with_advice() {
    let added = json!([{"name": "debugger", "image": "busybox"}]);
    let pod: Pod = from_json(json!({"spec": {"containers": [], "ephemeralContainers": added}}));
    let plan = plan();
    let told = |before: Option<&PodStatus>, now| {
        let observation = Observation { now: at(now), wall: at(now), ..seen(NEVER, vec![]) };
        render(&observation, &Context { before, ..Context::example(&pod, Ok(&plan)) })
    };
    let status = told(None, 100);
    let container = status.ephemeral_container_statuses.clone().unwrap().remove(0);
    assert_eq!((container.name.as_str(), container.image.as_str()), ("debugger", "busybox"));
    let end = container.state.and_then(|state| state.terminated).unwrap();
    assert_eq!(end.message.as_deref(), Some(ephemeral::WHY));
    assert_eq!(ephemeral::answered(&status, None).collect::<Vec<_>>(), ["debugger"]);
    // It is answered once.
    let later = told(Some(&status), 200);
    assert_eq!(later.ephemeral_container_statuses, status.ephemeral_container_statuses);
    assert_eq!(ephemeral::answered(&later, Some(&status)).count(), 0);
}

#[test]
fn a_status_that_does_not_change_is_the_same_status() {
    let observation = seen(NEVER, vec![vm_run(0, BOOTING, None)]);
    let first = shown(&observation);
    let pod = Pod {
        metadata: ObjectMeta { generation: Some(1), ..ObjectMeta::default() },
        status: Some(first.clone()),
        ..Pod::default()
    };
    let plan = plan();
    let (before, accepted_at) = (pod.status.as_ref(), Some(at(40)));
    let context = Context { before, accepted_at, ..Context::example(&pod, Ok(&plan)) };
    assert_eq!(render(&Observation { now: at(500), wall: at(500), ..observation }, &context), first);
}
