//! What can still be learnt of a container whose shim is gone. The VM runs on for a moment, and its guest may know how the container
//! has ended.
//!
//! The guest is not trusted: it has little time, and what it says is bounded and parsed.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::timeout;
use tracing::info;

use super::stray_processes::gone;
use crate::fs::file::FileError;
use crate::guest::{Exec, Guest};
use crate::names::VmName;
use crate::shim::container::exec_output::told_code;
use crate::shim::container::flush;
use crate::shim::container::guest_status;
use crate::shim::container::termination_message::{Tail, TerminationMessage};
use crate::state::{
    ContainerSpec, Ending, InitStage, InitState, LastCommand, Outcome, ShimSpec, VmRun, VmRunView,
};
use crate::tart::Tart;

/// How long the guest may take to tell an exit code.
const EXIT_LIMIT: Duration = Duration::from_secs(10);
/// A number, and the end of its line.
const EXIT_WORDS: usize = 16;
/// How long a guest that has said how it ends may take to be gone.
const LEAVING: Duration = Duration::from_secs(10);

/// Asks the guest of a VM that has lost its shim how its container has ended, and writes down what it tells. What it does not tell is lost.
pub(crate) async fn ask_guest(attempt: &VmRun, tart: &Tart) -> Result<(), FileError> {
    let view = attempt.view()?;
    if let Some(spec) = &view.spec {
        if spec.main.command.is_none() {
            wait_for_last_word(attempt, &view).await?;
        } else if let Some(command) = attempt.last_command()? {
            ask_for_exit(attempt, tart, spec, &view, &command).await?;
        }
    }
    attempt.mark_asked()
}

/// How a container has ended whose shim did not live to say so, as far as somebody has left word of it.
pub(crate) fn known_end(view: &VmRunView, now: Timestamp) -> Option<Outcome> {
    view.result.clone().or_else(|| init_failure(view)).or_else(|| told_by_guest(view, now))
}

/// The end that a guest without a command tells of. One that had to be stopped has not ended as it says. Nor, maybe, has one that says
/// all is well: its host may have lost power, or its tart crashed, while it still worked. Only a shim that has seen its VM end well can
/// tell, and work that is done twice hurts less than work that only seems done.
fn told_by_guest(view: &VmRunView, now: Timestamp) -> Option<Outcome> {
    let ending = view.spec.as_ref().filter(|_| !view.asked).and_then(guest_status::of)?;
    (ending.exit_code() != 0).then(|| Outcome { ending, started_at: view.running_since(), finished_at: now })
}

/// The end of a Pod one of whose init containers has failed for good.
fn init_failure(view: &VmRunView) -> Option<Outcome> {
    let once = view.spec.as_ref().is_some_and(|spec| !spec.init_again);
    let failed = view.init.iter().filter(|_| once).find_map(|state| match &state.now {
        InitStage::Over(outcome) if outcome.ending.exit_code() != 0 => Some((state, outcome)),
        _ => None,
    });
    failed.map(|(state, outcome)| Outcome {
        ending: Ending::InitFailed { container: state.name.clone(), code: outcome.ending.exit_code() },
        started_at: None,
        finished_at: outcome.finished_at,
    })
}

/// Gives a guest without a command that has said that it fails the time to do so.
async fn wait_for_last_word(attempt: &VmRun, view: &VmRunView) -> Result<(), FileError> {
    if view.result.is_some() || told_by_guest(view, Timestamp::now()).is_none() {
        return Ok(());
    }
    // Only what it says at the very end counts.
    match gone(attempt, LEAVING).await?.then(|| told_by_guest(view, Timestamp::now())).flatten() {
        Some(end) => attempt.result(&end),
        None => Ok(()),
    }
}

/// Asks for the exit code of the command that was last started, and for its last words.
async fn ask_for_exit(
    attempt: &VmRun,
    tart: &Tart,
    spec: &ShimSpec,
    view: &VmRunView,
    command: &LastCommand,
) -> Result<(), FileError> {
    let is_its = |one: &&ContainerSpec| one.name == command.container;
    let Some(container) = spec.init.iter().chain([&spec.main]).find(is_its) else { return Ok(()) };
    let is_main = container.name == spec.main.name;
    let known = match &view.result {
        None => None,
        // Its shim knew that much, and not yet what it had to say.
        Some(Outcome { ending: Ending::Exited { code, message: None }, .. }) if is_main => Some(*code),
        Some(_) => return Ok(()),
    };
    let Some((mut guest, code)) = exit_of(tart, &attempt.vm(), command, known).await else { return Ok(()) };
    let finished_at = view.result.as_ref().map_or_else(Timestamp::now, |result| result.finished_at);
    let words =
        TerminationMessage { path: &container.termination.path, or_log: container.termination.or_log };
    let state = view.init.iter().find(|state| state.name == container.name);
    let log = state.map_or_else(|| container.log.clone(), |state| container.log_after(state.restarts));
    let message = words.read(&mut guest, code, &Tail::of_log(&log)).await;
    info!(vm = %attempt.vm(), container = container.name, code, "the guest knows how the container has ended");
    let ending = Ending::Exited { code, message };
    let outcome = Outcome { ending, started_at: Some(command.begun), finished_at };
    if is_main {
        attempt.result(&outcome)?;
        if spec.shares.iter().any(|share| !share.read_only) {
            flush(&mut guest).await;
        }
        return Ok(());
    }
    let mut states = view.init.clone();
    // The command may be that of the start before, whose end is known.
    let is_known = |state: &InitState| {
        let last = state.last.as_ref().and_then(|last| last.started_at);
        matches!(state.now, InitStage::Over(_)) || last == Some(command.begun)
    };
    let unfinished = states.iter_mut().find(|state| state.name == container.name && !is_known(state));
    match unfinished {
        Some(state) => {
            state.now = InitStage::Over(outcome);
            attempt.record_init(&states)
        }
        None => Ok(()),
    }
}

/// The guest, and the exit code that is `known`, or that it tells in time.
async fn exit_of(
    tart: &Tart,
    vm: &VmName,
    command: &LastCommand,
    known: Option<i32>,
) -> Option<(Guest, i32)> {
    let ask = async {
        let mut guest = Guest::connect(&tart.vm_dir(vm).join("control.sock")).await.ok()?;
        if let Some(code) = known {
            return Some((guest, code));
        }
        let exec = Exec { argv: command.exit.clone(), ..Exec::default() };
        let code = told_code(&guest.run(exec, EXIT_LIMIT, EXIT_WORDS).await.output)?;
        Some((guest, code))
    };
    timeout(EXIT_LIMIT, ask).await.ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::Restart;
    use crate::state::{InitState, StateDir};

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn outcome(code: i32) -> Outcome {
        Outcome { ending: Ending::Exited { code, message: None }, started_at: None, finished_at: NOW }
    }

    fn init(now: InitStage) -> InitState {
        InitState { name: "init".into(), now, restarts: 0, last: None }
    }

    /// A VM that has lost its shim, after it was planned by this change to a plan.
    fn orphan(change: impl FnOnce(&mut ShimSpec)) -> (tempfile::TempDir, VmRun) {
        let dir =
            tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap();
        let attempt = StateDir::open(dir.path()).unwrap().pod("0b1c".parse().unwrap()).attempt(Restart(0));
        let mut spec = ShimSpec::example(attempt.vm());
        change(&mut spec);
        attempt.plan(&spec).unwrap();
        (dir, attempt)
    }

    #[test]
    fn what_the_shim_knew_comes_first_even_without_its_plan() {
        let (_dir, attempt) = orphan(|_| {});
        let end = || known_end(&attempt.view().unwrap(), NOW);
        assert_eq!(end(), None);
        attempt.record_init(&[init(InitStage::Over(outcome(3)))]).unwrap();
        attempt.result(&outcome(7)).unwrap();
        assert_eq!(end(), Some(outcome(7)));
        std::fs::write(attempt.path().join("spec.json"), "{").unwrap();
        assert_eq!(end(), Some(outcome(7)));
    }

    #[test]
    fn an_init_container_that_is_not_tried_again_ends_it_all() {
        for (again, stage, failed) in [
            (false, InitStage::Over(outcome(3)), Some(3)),
            (false, InitStage::Over(outcome(0)), None),
            (false, InitStage::Running(NOW), None),
            (true, InitStage::Over(outcome(3)), None),
        ] {
            let (_dir, attempt) = orphan(|spec| spec.init_again = again);
            attempt.record_init(&[init(stage.clone())]).unwrap();
            let expected = failed.map(|code| Ending::InitFailed { container: "init".into(), code });
            let end = known_end(&attempt.view().unwrap(), NOW).map(|end| end.ending);
            assert_eq!(end, expected, "{again} {stage:?}");
        }
    }

    #[test]
    fn a_guest_is_believed_that_it_has_failed_and_not_that_all_is_well() {
        let place =
            tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap();
        let (_dir, attempt) = orphan(|spec| spec.status_dir = Some(place.path().to_owned()));
        for (said, code) in [("0\nwell", None), ("1\nnot well", Some(1)), ("0", None), ("255", Some(255))] {
            std::fs::write(place.path().join("status"), said).unwrap();
            let end = known_end(&attempt.view().unwrap(), NOW).map(|end| end.ending.exit_code());
            assert_eq!(end, code, "{said:?}");
        }
        // Its shim has seen it end.
        attempt.result(&outcome(0)).unwrap();
        assert_eq!(known_end(&attempt.view().unwrap(), NOW), Some(outcome(0)));
    }

    #[tokio::test]
    async fn a_guest_that_had_to_be_stopped_is_not_believed() {
        let place =
            tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap();
        std::fs::write(place.path().join("status"), "7\nit is over").unwrap();
        let (_dir, attempt) = orphan(|spec| spec.status_dir = Some(place.path().to_owned()));
        let end = || known_end(&attempt.view().unwrap(), NOW).map(|end| end.ending.exit_code());
        assert_eq!(end(), Some(7));
        let tart = attempt.take_tart_lock().unwrap();
        let leaves = async {
            tokio::task::yield_now().await;
            std::fs::write(place.path().join("status"), "8").unwrap();
            drop(tart);
        };
        let program = Tart::new("/tart".as_ref());
        let (asked, ()) = tokio::join!(ask_guest(&attempt, &program), leaves);
        asked.unwrap();
        assert_eq!(end(), Some(8), "what it says at last");
        std::fs::remove_file(attempt.path().join("result.json")).unwrap();
        assert_eq!(end(), None, "it was asked, and did not go");
    }
}
