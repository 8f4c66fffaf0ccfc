//! Which start of a container a request for its log is about. The rules and the words are the kubelet's.

use crate::names::Restart;
use crate::pod::sync::next_vm::init_states;
use crate::state::{Ending, InitStage, VmRunView};

/// One start of a container, by the number in its log's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ContainerStart {
    Main {
        run: Restart,
        number: u32,
    },
    Init {
        /// The VM run that knows the container's state.
        run: Restart,
        /// The first of these that has a log.
        numbers: Vec<u32>,
    },
}

/// Why there is no log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NoLog {
    /// The container has never started.
    Waiting,
    /// It has started once.
    NoPrevious,
}

/// The start of the main container that is meant. `waits` says whether the Pod's status shows the container as waiting.
pub(super) fn of_main(runs: &[VmRunView], waits: bool, previous: bool) -> Result<ContainerStart, NoLog> {
    let numbered = runs.iter().zip(1..).map(|(run, count)| (run, VmRunView::main_restarts(&runs[..count])));
    let started: Vec<_> = numbered.filter(|(run, _)| run.has_main() && has_started(run)).collect();
    let Some((last, before)) = started.split_last() else {
        return Err(if previous { NoLog::NoPrevious } else { NoLog::Waiting });
    };
    // While the container waits for its next start, its last end is both the current and the previous one.
    let is_current =
        runs.last().is_some_and(|run| run.restart == last.0.restart) && !(last.0.outcome.is_some() && waits);
    let meant = if previous && is_current { before.last() } else { Some(last) };
    let (run, number) = meant.ok_or(NoLog::NoPrevious)?;
    Ok(ContainerStart::Main { run: run.restart, number: *number })
}

/// Whether the main container has started in a run, or has failed to.
fn has_started(run: &VmRunView) -> bool {
    match &run.outcome {
        // The Pod's status shows that it never started.
        Some(outcome) => !matches!(outcome.ending, Ending::InitFailed { .. }),
        None => run.running_since().is_some(),
    }
}

/// The start of an init container that is meant.
pub(super) fn of_init(runs: &[VmRunView], name: &str, previous: bool) -> Result<ContainerStart, NoLog> {
    let none = || if previous { NoLog::NoPrevious } else { NoLog::Waiting };
    let run = runs.last().ok_or_else(none)?;
    let state = init_states(runs).into_iter().find(|state| state.name == name).ok_or_else(none)?;
    let number = state.restarts;
    let numbers = match (&state.now, previous) {
        (InitStage::Running(_) | InitStage::Over(_), false) | (InitStage::BackOff(_), _) => vec![number],
        (InitStage::Running(_) | InitStage::Over(_), true) if number > 0 => vec![number - 1],
        // The next start may have its number already, or not yet.
        (InitStage::Waiting, _) if state.last.is_some() => vec![number, number.saturating_sub(1)],
        _ => return Err(none()),
    };
    Ok(ContainerStart::Init { run: run.restart, numbers })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::VmName;
    use crate::state::{InitState, Outcome, Progress, ShimSpec, Stage};
    use jiff::Timestamp;
    use std::time::Duration;

    fn waiting(restart: u32) -> VmRunView {
        VmRunView::example(restart)
    }

    fn running(restart: u32) -> VmRunView {
        let stage = Stage::Running { address: "10.0.0.1".parse().unwrap() };
        VmRunView { progress: Some(Progress::example(stage)), ..waiting(restart) }
    }

    fn outcome(ending: Ending) -> Outcome {
        Outcome { ending, started_at: Some(Timestamp::UNIX_EPOCH), finished_at: Timestamp::UNIX_EPOCH }
    }

    fn over(restart: u32) -> VmRunView {
        let ending = Ending::Exited { code: 1, message: None };
        VmRunView { outcome: Some(outcome(ending)), ..running(restart) }
    }

    #[test]
    fn the_current_and_the_previous_start_of_a_main_container() {
        let init_failed = VmRunView {
            outcome: Some(outcome(Ending::InitFailed { container: "a".into(), code: 1 })),
            ..waiting(0)
        };
        let main = |restart| Ok(ContainerStart::Main { run: Restart(restart), number: restart });
        let (waits, no_previous) = (Err(NoLog::Waiting), Err(NoLog::NoPrevious));
        for (what, runs, is_waiting, current, previous) in [
            ("never planned", vec![], true, waits.clone(), no_previous.clone()),
            ("boots", vec![waiting(0)], true, waits.clone(), no_previous.clone()),
            ("runs", vec![running(0)], false, main(0), no_previous.clone()),
            ("runs again", vec![over(3), running(4)], false, main(4), main(3)),
            ("has ended", vec![over(0)], false, main(0), no_previous.clone()),
            ("has ended again", vec![over(0), over(1)], false, main(1), main(0)),
            ("backs off", vec![over(0)], true, main(0), main(0)),
            ("boots again", vec![over(0), waiting(1)], true, main(0), main(0)),
            ("init failed", vec![init_failed], true, waits, no_previous),
        ] {
            assert_eq!(of_main(&runs, is_waiting, false), current, "{what}");
            assert_eq!(of_main(&runs, is_waiting, true), previous, "{what}: previous");
        }
    }

    #[test]
    fn the_log_of_a_main_container_has_its_own_number() {
        let vm = |number| VmName::new("0b1c".parse().unwrap(), Restart(number));
        let init = |number: u32| {
            let spec = Some(ShimSpec::example_of_init(vm(number), &["a"]));
            VmRunView { spec, outcome: Some(outcome(Ending::Initialized)), ..waiting(number) }
        };
        let main = |number: u32, restarts: u32, run: VmRunView| VmRunView {
            spec: Some(ShimSpec { main_restarts: Some(restarts), ..ShimSpec::example(vm(number)) }),
            ..run
        };
        let start = |run, number| Ok(ContainerStart::Main { run: Restart(run), number });
        assert_eq!(of_main(&[init(0)], true, false), Err(NoLog::Waiting));
        let runs = [init(0), main(1, 0, over(1)), main(2, 1, running(2))];
        assert_eq!(of_main(&runs, false, false), start(2, 1));
        assert_eq!(of_main(&runs, false, true), start(1, 0));
        // The next VM is planned, and knows the init containers of the VM before it.
        let mut next = main(1, 0, waiting(1));
        let ended = InitStage::Over(outcome(Ending::Exited { code: 0, message: None }));
        next.spec.as_mut().unwrap().init_before =
            vec![InitState { now: ended, restarts: 4, ..InitState::new("a") }];
        let found = of_init(&[init(0), next], "a", false);
        assert_eq!(found, Ok(ContainerStart::Init { run: Restart(1), numbers: vec![4] }));
    }

    #[test]
    fn the_current_and_the_previous_start_of_an_init_container() {
        let end = || outcome(Ending::Exited { code: 1, message: None });
        let state = |now: InitStage, restarts: u32, last: bool| VmRunView {
            init: vec![InitState { now, restarts, last: last.then(end), ..InitState::new("a") }],
            ..waiting(2)
        };
        let init = |numbers: &[u32]| Ok(ContainerStart::Init { run: Restart(2), numbers: numbers.to_vec() });
        let since = Timestamp::UNIX_EPOCH;
        let (waits, no_previous) = (Err(NoLog::Waiting), Err(NoLog::NoPrevious));
        for (what, run, current, previous) in [
            ("waits", state(InitStage::Waiting, 0, false), waits.clone(), no_previous.clone()),
            ("runs", state(InitStage::Running(since), 0, false), init(&[0]), no_previous.clone()),
            ("runs again", state(InitStage::Running(since), 2, true), init(&[2]), init(&[1])),
            ("is over", state(InitStage::Over(end()), 0, false), init(&[0]), no_previous.clone()),
            ("backs off", state(InitStage::BackOff(Duration::ZERO), 1, true), init(&[1]), init(&[1])),
            ("waits again", state(InitStage::Waiting, 1, true), init(&[1, 0]), init(&[1, 0])),
        ] {
            let runs = [run];
            assert_eq!(of_init(&runs, "a", false), current, "{what}");
            assert_eq!(of_init(&runs, "a", true), previous, "{what}: previous");
            assert_eq!(of_init(&runs, "b", false), waits, "{what}: another container");
        }
        assert_eq!(of_init(&[], "a", true), no_previous);
    }
}
