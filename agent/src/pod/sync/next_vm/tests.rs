use super::*;
use crate::names::VmName;
use crate::state::{Ending, InitStage, Outcome, ShimSpec};
use crate::testing::at;

fn vm(number: u32) -> VmName {
    VmName::new("0b1c".parse().unwrap(), Restart(number))
}

fn segment(image: &str, init: &[&str], main: bool) -> Segment {
    let init = init.iter().map(|&name| name.to_owned()).collect();
    Segment { image: image.to_owned(), init, main: main.then(|| "main".to_owned()) }
}

/// `[b: one] [a: two] [b: three] [a: four, main]`.
fn four() -> Vec<Segment> {
    vec![
        segment("b", &["one"], false),
        segment("a", &["two"], false),
        segment("b", &["three"], false),
        segment("a", &["four"], true),
    ]
}

fn outcome(ending: Ending) -> Outcome {
    Outcome { ending, started_at: Some(at(5)), finished_at: at(9) }
}

fn exited(code: i32) -> Outcome {
    outcome(Ending::Exited { code, message: None })
}

fn over(name: &str, code: i32) -> InitState {
    InitState { now: InitStage::Over(exited(code)), ..InitState::new(name) }
}

/// A run of a segment that took this over, and ended with its init containers in these states.
fn run(number: u32, segment: &Segment, taken: TakenOver, init: Vec<InitState>, end: Ending) -> VmRunView {
    let names: Vec<&str> = segment.init.iter().map(String::as_str).collect();
    let mut spec = ShimSpec::example_of_init(vm(number), &names);
    spec.main = segment.main.as_ref().and_then(|_| ShimSpec::example(vm(number)).main);
    spec.image = format!("{}@sha256:0", segment.image);
    spec.image_name = Some(segment.image.clone());
    spec.init_before = taken.init;
    spec.main_restarts = Some(taken.main_restarts);
    VmRunView {
        spec: Some(spec),
        begun: true,
        init,
        outcome: Some(outcome(end)),
        cleaned: true,
        ..VmRunView::example(number)
    }
}

/// Plans and ends one VM after the other. Each has the exit code of its segment's init containers and its own end.
fn history(segments: &[Segment], ends: &[(i32, Ending)]) -> (Vec<usize>, Vec<VmRunView>) {
    let (mut numbers, mut runs) = (Vec::new(), Vec::new());
    for (number, (code, end)) in (0..).zip(ends) {
        let next = next_segment(segments, &runs);
        numbers.push(next);
        let taken = taken_over(&runs, Restart(number), &segments[next]);
        let known = |name: &String| taken.init.iter().find(|state| state.name == *name).cloned();
        // As the shim does it.
        let start = |name: &String| {
            let state = known(name).unwrap_or_else(|| InitState::new(name));
            let restarts = state.restarts + u32::from(state.last.is_some());
            InitState { now: InitStage::Over(exited(*code)), restarts, ran_in: None, ..state }
        };
        let init = segments[next].init.iter().map(start).collect();
        runs.push(run(number, &segments[next], taken, init, end.clone()));
    }
    (numbers, runs)
}

const INITIALIZED: (i32, Ending) = (0, Ending::Initialized);

fn failed(code: i32) -> (i32, Ending) {
    (code, Ending::Lost)
}

#[test]
fn segments_run_in_order_and_each_until_it_has_succeeded() {
    let main = || (0, Ending::Exited { code: 1, message: None });
    for (ends, expected) in [
        (vec![INITIALIZED, INITIALIZED, INITIALIZED, main()], vec![0, 1, 2, 3]),
        // A VM that is lost is made again, and nothing that has succeeded before it.
        (vec![INITIALIZED, failed(1), failed(1), INITIALIZED, INITIALIZED, main()], vec![0, 1, 1, 1, 2, 3]),
        // A restart of the main container is a new VM for its own segment only.
        (vec![INITIALIZED, INITIALIZED, INITIALIZED, main(), main(), main()], vec![0, 1, 2, 3, 3, 3]),
    ] {
        assert_eq!(history(&four(), &ends).0, expected);
    }
    assert_eq!(history(&[segment("a", &["one"], true)], &[main(), main()]).0, [0, 0]);
    assert_eq!(next_segment(&[], &[]), 0);
}

#[test]
fn the_main_container_counts_its_own_vms_only() {
    let main = || (0, Ending::Exited { code: 1, message: None });
    let (_, runs) = history(&four(), &[INITIALIZED, failed(1), INITIALIZED, INITIALIZED, main(), main()]);
    let count = |until: usize| (runs[until].has_main(), VmRunView::main_restarts(&runs[..=until]));
    let counts: Vec<_> = (0..runs.len()).map(count).collect();
    assert_eq!(counts, [(false, 0), (false, 0), (false, 0), (false, 0), (true, 0), (true, 1)]);
    // The spec of an older agent has no count: its runs are all of the main container.
    let mut older = runs[5].clone();
    older.spec.as_mut().unwrap().main_restarts = None;
    assert_eq!(taken_over(&[older], Restart(6), &four()[3]).main_restarts, 6);
    let lost = VmRunView { begun: true, ..VmRunView::example(3) };
    assert_eq!(taken_over(&[lost], Restart(4), &four()[0]).main_restarts, 4, "a lost spec");
    // The directory of a run whose plan was never written.
    let planned: Vec<_> = runs[..1].iter().cloned().chain([VmRunView::example(1)]).collect();
    assert_eq!(VmRunView::main_restarts(&planned), 0);
    assert_eq!(taken_over(&runs, Restart(0), &four()[0]), TakenOver::default());
}

#[test]
fn a_succeeded_init_container_keeps_its_state_and_its_vm() {
    let (_, runs) = history(&four(), &[INITIALIZED, failed(3), INITIALIZED, INITIALIZED]);
    let taken = taken_over(&runs, Restart(4), &four()[3]);
    let shown: Vec<_> = taken
        .init
        .iter()
        .map(|state| {
            let vm = state.ran_in.as_ref().map(|ran_in| (ran_in.vm.restart().0, ran_in.image.as_str()));
            (state.name.as_str(), state.has_succeeded(), state.restarts, vm)
        })
        .collect();
    let expected = [
        ("one", true, 0, Some((0, "b@sha256:0"))),
        ("two", true, 1, Some((2, "a@sha256:0"))),
        ("three", true, 0, Some((3, "b@sha256:0"))),
    ];
    assert_eq!(shown, expected);
    assert_eq!(taken.init[1].last, Some(exited(3)));
}

#[test]
fn an_init_container_of_the_main_container_s_vm_runs_again_in_each() {
    let ended = Ending::Exited { code: 1, message: None };
    let (_, runs) = history(&four(), &[INITIALIZED, INITIALIZED, INITIALIZED, (0, ended)]);
    let taken = taken_over(&runs, Restart(4), &four()[3]);
    let four = taken.init.iter().find(|state| state.name == "four").unwrap();
    assert_eq!((&four.now, &four.last), (&InitStage::Waiting, &Some(exited(0))));
    assert!(taken.init.iter().filter(|state| state.name != "four").all(InitState::has_succeeded));
}

#[test]
fn a_vm_that_did_not_start_is_the_failure_of_its_first_container() {
    let segment = segment("b", &["one", "two"], false);
    let not_started = run(0, &segment, TakenOver::default(), vec![], Ending::Lost);
    let states = not_started.init_states();
    assert_eq!(states.len(), 1);
    assert_eq!(states[0], InitState { now: InitStage::Over(outcome(Ending::Lost)), ..InitState::new("one") });
    let second =
        run(0, &segment, TakenOver::default(), vec![over("one", 0), InitState::new("two")], Ending::Lost);
    assert_eq!(second.failed_init().map(|(name, _)| name.as_str()), Some("two"));
    let taken = taken_over(&[second], Restart(1), &segment);
    let last = |name: &str| taken.init.iter().find(|state| state.name == name).unwrap().last.clone();
    // The disk of the new VM is new, so both run again.
    assert_eq!((last("one"), last("two")), (Some(exited(0)), Some(outcome(Ending::Lost))));
    let running = InitState { now: InitStage::Running(at(5)), ..InitState::new("one") };
    let lost = run(0, &segment, TakenOver::default(), vec![running], Ending::Lost);
    let taken = taken_over(&[lost], Restart(1), &segment);
    assert_eq!(taken.init[0].last, Some(outcome(Ending::Lost)));
    let done =
        run(0, &segment, TakenOver::default(), vec![over("one", 0), over("two", 0)], Ending::Initialized);
    assert_eq!(done.failed_init(), None);
}

#[test]
fn a_run_without_a_spec_does_not_make_the_others_run_again() {
    let (_, mut runs) = history(&four(), &[INITIALIZED, INITIALIZED]);
    let lost = VmRunView { begun: true, outcome: Some(outcome(Ending::Lost)), ..VmRunView::example(2) };
    runs.push(lost);
    assert_eq!(next_segment(&four(), &runs), 2);
    assert_eq!(taken_over(&runs, Restart(3), &four()[2]).init.len(), 2);
}
