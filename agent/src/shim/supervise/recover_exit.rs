//! Recovers the outcome of a container whose shim is gone. Its VM runs on for a moment, and the guest may know the exit code.
//!
//! The guest is not trusted: it has a deadline, and its answers are bounded and parsed.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::timeout;
use tracing::info;

use super::stray_processes::gone;
use crate::fs::file::FileError;
use crate::guest::{CONTROL_SOCKET, Exec, Guest};
use crate::names::VmName;
use crate::shim::container::exec_output::read_exit_code;
use crate::shim::container::termination_message::{Tail, TerminationMessage};
use crate::shim::container::{status_file, sync_shares};
use crate::state::{
    ContainerSpec, Ending, InitStage, InitState, LastCommand, Outcome, ShimSpec, VmRun, VmRunView,
};
use crate::tart::Tart;

/// How long the guest may take to give an exit code.
const EXIT_CODE_LIMIT: Duration = Duration::from_secs(10);
/// A number and a newline.
const MAX_OUTPUT: usize = 16;
/// How long a guest that has left an exit code may take to shut down.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(10);

/// Asks the guest of a VM without a shim how its container ended, and records the answer.
pub(crate) async fn ask_guest(run: &VmRun, tart: &Tart) -> Result<(), FileError> {
    let view = run.view()?;
    if let Some(spec) = &view.spec {
        if spec.only_boots() {
            wait_for_shutdown(run, &view).await?;
        } else if let Some(command) = run.last_command()? {
            ask_for_exit_code(run, tart, spec, &view, &command).await?;
        }
    }
    run.mark_guest_asked()
}

/// The outcome of a container whose shim is gone, if the shim or the guest has left one.
pub(crate) fn known_outcome(view: &VmRunView, now: Timestamp) -> Option<Outcome> {
    let of_init = || init_failure(view).or_else(|| initialized(view));
    view.result.clone().or_else(of_init).or_else(|| failure_of_guest(view, now))
}

/// The outcome that a guest without a command has left, if it is a failure. After a stop it does not count. Nor does a success: the host
/// may have lost power, or tart crashed, while the guest still worked. Only a shim that has seen its VM shut down can tell, and work
/// that is done twice hurts less than work that only seems done.
fn failure_of_guest(view: &VmRunView, now: Timestamp) -> Option<Outcome> {
    let ending = view.spec.as_ref().filter(|_| !view.guest_asked).and_then(status_file::read_ending)?;
    (ending.exit_code() != 0).then(|| Outcome { ending, started_at: view.running_since(), finished_at: now })
}

/// The outcome of a Pod whose init container has failed and is not restarted.
fn init_failure(view: &VmRunView) -> Option<Outcome> {
    let is_final = view.spec.as_ref().is_some_and(|spec| !spec.restart_init);
    let failed = view.init.iter().filter(|_| is_final).find_map(|state| match &state.now {
        InitStage::Over(outcome) if outcome.ending.exit_code() != 0 => Some((state, outcome)),
        _ => None,
    });
    failed.map(|(state, outcome)| Outcome {
        ending: Ending::InitFailed { container: state.name.clone(), code: outcome.ending.exit_code() },
        started_at: None,
        finished_at: outcome.finished_at,
    })
}

/// The outcome of a VM that is only for init containers, all of which have succeeded.
fn initialized(view: &VmRunView) -> Option<Outcome> {
    let spec = view.spec.as_ref().filter(|spec| spec.main.is_none())?;
    let end = |container: &ContainerSpec| {
        let state = view.init.iter().find(|state| state.name == container.name && state.has_succeeded());
        state.and_then(
            |state| if let InitStage::Over(end) = &state.now { Some(end.finished_at) } else { None },
        )
    };
    let ends: Vec<Timestamp> = spec.init.iter().map(end).collect::<Option<_>>()?;
    Some(Outcome { ending: Ending::Initialized, started_at: None, finished_at: ends.into_iter().max()? })
}

/// Waits for the shutdown of a guest without a command that has left a failure.
async fn wait_for_shutdown(run: &VmRun, view: &VmRunView) -> Result<(), FileError> {
    if view.result.is_some() || failure_of_guest(view, Timestamp::now()).is_none() {
        return Ok(());
    }
    // Only the file after the shutdown counts.
    match gone(run, SHUTDOWN_LIMIT).await?.then(|| failure_of_guest(view, Timestamp::now())).flatten() {
        Some(end) => run.record_result(&end),
        None => Ok(()),
    }
}

/// Asks for the exit code of the command that was last started, and for its termination message.
async fn ask_for_exit_code(
    run: &VmRun,
    tart: &Tart,
    spec: &ShimSpec,
    view: &VmRunView,
    command: &LastCommand,
) -> Result<(), FileError> {
    let is_the_commands = |one: &&ContainerSpec| one.name == command.container;
    let Some(container) = spec.init.iter().chain(&spec.main).find(is_the_commands) else { return Ok(()) };
    let is_main = spec.is_main(&container.name);
    let known = match &view.result {
        None => None,
        // The shim knew the exit code, and not yet the termination message.
        Some(Outcome { ending: Ending::Exited { code, message: None }, .. }) if is_main => Some(*code),
        Some(_) => return Ok(()),
    };
    let Some((mut guest, code)) = exit_code_of(tart, &run.vm(), command, known).await else { return Ok(()) };
    let finished_at = view.result.as_ref().map_or_else(Timestamp::now, |result| result.finished_at);
    let state = view.init.iter().find(|state| state.name == container.name);
    let log = state.map_or_else(|| container.log.clone(), |state| container.log_after(state.restarts));
    let message =
        TerminationMessage(&container.termination).read(&mut guest, code, &Tail::of_log(&log)).await;
    info!(vm = %run.vm(), container = container.name, code, "the guest has given the exit code");
    let ending = Ending::Exited { code, message };
    let outcome = Outcome { ending, started_at: Some(command.started_at), finished_at };
    if is_main {
        run.record_result(&outcome)?;
    }
    // The next VM has the same volumes.
    if (is_main || spec.main.is_none()) && spec.shares.iter().any(|share| !share.read_only) {
        sync_shares(&mut guest).await;
    }
    if is_main {
        return Ok(());
    }
    let mut states = view.init.clone();
    // The command may be that of the start before, whose outcome is known.
    let is_known = |state: &InitState| {
        let last = state.last.as_ref().and_then(|last| last.started_at);
        matches!(state.now, InitStage::Over(_)) || last == Some(command.started_at)
    };
    let unfinished = states.iter_mut().find(|state| state.name == container.name && !is_known(state));
    match unfinished {
        Some(state) => {
            state.now = InitStage::Over(outcome);
            run.record_init(&states)
        }
        None => Ok(()),
    }
}

/// The guest, with the `known` exit code or the one that it gives in time.
async fn exit_code_of(
    tart: &Tart,
    vm: &VmName,
    command: &LastCommand,
    known: Option<i32>,
) -> Option<(Guest, i32)> {
    let ask = async {
        let mut guest = Guest::connect(&tart.vm_dir(vm).join(CONTROL_SOCKET)).await.ok()?;
        if let Some(code) = known {
            return Some((guest, code));
        }
        let exec = Exec { argv: command.exit_code_line.clone(), ..Exec::default() };
        let code = read_exit_code(&guest.run(exec, EXIT_CODE_LIMIT, MAX_OUTPUT).await.output)?;
        Some((guest, code))
    };
    timeout(EXIT_CODE_LIMIT, ask).await.ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::dir;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn outcome(code: i32) -> Outcome {
        Outcome { ending: Ending::Exited { code, message: None }, started_at: None, finished_at: NOW }
    }

    fn init(now: InitStage) -> InitState {
        InitState { now, ..InitState::new("init") }
    }

    /// A run without a shim, with a change to its spec.
    fn without_shim(change: impl FnOnce(&mut ShimSpec)) -> (tempfile::TempDir, VmRun) {
        let dir = dir();
        let run = VmRun::example(dir.path());
        let mut spec = ShimSpec::example(run.vm());
        change(&mut spec);
        run.plan(&spec).unwrap();
        (dir, run)
    }

    #[test]
    fn the_result_of_the_shim_comes_first_even_without_a_spec() {
        let (_dir, run) = without_shim(|_| {});
        let end = || known_outcome(&run.view().unwrap(), NOW);
        assert_eq!(end(), None);
        run.record_init(&[init(InitStage::Over(outcome(3)))]).unwrap();
        run.record_result(&outcome(7)).unwrap();
        assert_eq!(end(), Some(outcome(7)));
        std::fs::write(run.path().join("spec.json"), "{").unwrap();
        assert_eq!(end(), Some(outcome(7)));
    }

    #[test]
    fn a_failed_init_container_that_is_not_restarted_is_the_outcome() {
        for (restart, stage, failed) in [
            (false, InitStage::Over(outcome(3)), Some(3)),
            (false, InitStage::Over(outcome(0)), None),
            (false, InitStage::Running(NOW), None),
            (true, InitStage::Over(outcome(3)), None),
        ] {
            let (_dir, run) = without_shim(|spec| spec.restart_init = restart);
            run.record_init(&[init(stage.clone())]).unwrap();
            let expected = failed.map(|code| Ending::InitFailed { container: "init".into(), code });
            let end = known_outcome(&run.view().unwrap(), NOW).map(|end| end.ending);
            assert_eq!(end, expected, "{restart} {stage:?}");
        }
    }

    #[test]
    fn a_vm_for_init_containers_is_done_when_all_have_succeeded() {
        let over =
            |name: &str, code| InitState { now: InitStage::Over(outcome(code)), ..InitState::new(name) };
        for (states, is_done) in [
            (vec![], false),
            (vec![over("one", 0)], false),
            (vec![over("one", 0), over("two", 1)], false),
            (vec![over("one", 0), over("two", 0)], true),
        ] {
            let (_dir, run) = without_shim(|spec| {
                *spec = ShimSpec {
                    restart_init: true,
                    ..ShimSpec::example_of_init(spec.vm.clone(), &["one", "two"])
                };
            });
            run.record_init(&states).unwrap();
            let end = known_outcome(&run.view().unwrap(), NOW).map(|end| end.ending);
            assert_eq!(end, is_done.then_some(Ending::Initialized), "{states:?}");
        }
    }

    #[test]
    fn a_failure_that_the_guest_has_left_counts_and_a_success_does_not() {
        let status = dir();
        let (_dir, run) = without_shim(|spec| spec.status_dir = Some(status.path().to_owned()));
        for (said, code) in [("0\nwell", None), ("1\nnot well", Some(1)), ("0", None), ("255", Some(255))] {
            std::fs::write(status.path().join("status"), said).unwrap();
            let end = known_outcome(&run.view().unwrap(), NOW).map(|end| end.ending.exit_code());
            assert_eq!(end, code, "{said:?}");
        }
        // The shim has seen the end.
        run.record_result(&outcome(0)).unwrap();
        assert_eq!(known_outcome(&run.view().unwrap(), NOW), Some(outcome(0)));
    }

    #[tokio::test]
    async fn a_failure_that_the_guest_has_left_does_not_count_after_a_stop() {
        let status = dir();
        std::fs::write(status.path().join("status"), "7\nit is over").unwrap();
        let (_dir, run) = without_shim(|spec| spec.status_dir = Some(status.path().to_owned()));
        let end = || known_outcome(&run.view().unwrap(), NOW).map(|end| end.ending.exit_code());
        assert_eq!(end(), Some(7));
        let tart = run.take_tart_lock().unwrap();
        let leaves = async {
            tokio::task::yield_now().await;
            std::fs::write(status.path().join("status"), "8").unwrap();
            drop(tart);
        };
        let program = Tart::new("/tart".as_ref());
        let (asked, ()) = tokio::join!(ask_guest(&run, &program), leaves);
        asked.unwrap();
        assert_eq!(end(), Some(8), "the file after the shutdown");
        std::fs::remove_file(run.path().join("result.json")).unwrap();
        assert_eq!(end(), None, "the agent has asked the guest, and it did not shut down");
    }
}
