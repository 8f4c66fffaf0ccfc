//! Calls of `tart` that have outlived the agent or shim that made them. Their deadlines hold all the same.
//!
//! A `tart` that hangs may hold the lock that every other `tart` of this host waits for. Its caller kills it at its deadline, unless the
//! caller was killed before. A call before its deadline is left alone: it may be most of a long pull.

use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use nix::unistd::Pid;
use tokio::process::Command;
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tracing::warn;

use super::call_record::{self, Marks};
use crate::clock;
use crate::error_chain::chain;
use crate::os::process_table::{self, RunningProcess};

/// The environment variable with the second of a call's deadline.
pub(super) const DEADLINE: &str = "TART_KUBELET_DEADLINE";
/// The environment variable with the PID of the caller.
pub(super) const CALLER: &str = "TART_KUBELET_CALLER";
/// The environment variable with tart's home. A call that hangs in another home does no harm in this one.
pub(super) const HOME: &str = "TART_KUBELET_TART_HOME";
/// A living caller kills its own calls before that.
const MARGIN: i64 = 60;
/// The clock may be set meanwhile.
const LONGEST_SLEEP: Duration = Duration::from_mins(10);

/// Marks a call with its deadline and its caller, for the next agent. Returns the same as a record: macOS may hide the environment of
/// tart, which has entitlements. A call without a home has none.
pub(super) fn mark(command: &mut Command, deadline: Duration) -> Option<Marks> {
    let seconds = i64::try_from(deadline.as_secs()).unwrap_or(i64::MAX);
    let now = Timestamp::now().as_second();
    let (deadline, caller) = (now.saturating_add(seconds), std::process::id());
    command.env(DEADLINE, deadline.to_string()).env(CALLER, caller.to_string());
    let home = command.as_std().get_envs().find(|(name, _)| *name == HOME)?.1?;
    Some(Marks { home: home.into(), started: now, deadline, caller })
}

/// Kills each call of earlier agents in this home after its deadline. Returns when there are no more.
pub(crate) async fn kill_stale_calls(home: PathBuf) {
    loop {
        let running: Vec<RunningProcess> = match spawn_blocking(process_table::others).await {
            Ok(Ok(running)) => call_record::complete(running, &home)
                .into_iter()
                .filter(|call| call.variable(HOME) == home.to_str())
                .collect(),
            Ok(Err(error)) => {
                return warn!(error = chain(&error), "cannot look for calls of tart past their deadline");
            }
            Err(error) => return warn!(%error, "cannot look for calls of tart past their deadline"),
        };
        let now = clock::now().as_second();
        let (stale, next) = stale(&running, now, started);
        for call in stale {
            warn!(pid = %call.pid, "a call of tart has outlived its agent and its deadline; killing it");
            call.kill();
        }
        let Some(next) = next else { return };
        sleep(Duration::from_secs(u64::try_from(next - now).unwrap_or(0)).min(LONGEST_SLEEP)).await;
    }
}

/// When a call was started, by the clock that never jumps. A clock that is set, or a Mac that sleeps, after the agent has first seen the
/// call ends it no earlier.
fn started(call: &RunningProcess) -> i64 {
    let recorded = Timestamp::from_second(call.started).unwrap_or(Timestamp::MAX);
    clock::of_record(recorded).as_second()
}

/// The calls past their deadline, and when the next one will be. Each may take as long as from its start to its deadline, by the clock of
/// `now`, by which it was `started`. Calls whose callers live are left out: these know better.
fn stale(
    running: &[RunningProcess],
    now: i64,
    started: impl Fn(&RunningProcess) -> i64,
) -> (Vec<&RunningProcess>, Option<i64>) {
    let has_lost_caller = |call: &RunningProcess| {
        let caller = call.variable(CALLER).and_then(|pid| pid.parse().ok()).map(Pid::from_raw);
        caller.is_none() || caller != call.parent
    };
    let end = |call: &RunningProcess| {
        let end = call.variable(DEADLINE)?.parse::<i64>().ok().filter(|_| has_lost_caller(call));
        let limit = end?.saturating_sub(call.started).max(0);
        Some(started(call).saturating_add(limit).saturating_add(MARGIN))
    };
    let stale = running.iter().filter(|call| end(call).is_some_and(|end| end <= now)).collect();
    let next = running.iter().filter_map(end).filter(|end| *end > now).min();
    (stale, next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_calls_past_their_deadline_are_stale() {
        let call =
            |pid, end: &str| RunningProcess::example(pid, 1, &["tart"], &[&format!("{DEADLINE}={end}")]);
        let running = [
            call(2, "100"),
            call(3, "900"),
            call(4, "950"),
            call(5, "soon"),
            RunningProcess::example(6, 1, &["tart"], &[]),
        ];
        let found = |now| {
            let (stale, next) = stale(&running, now, |call| call.started);
            (stale.iter().map(|call| call.pid.as_raw()).collect::<Vec<_>>(), next)
        };
        let child = |parent, caller| {
            let marks = [format!("{DEADLINE}=100"), format!("{CALLER}={caller}")];
            let mut call = RunningProcess::example(7, 1, &["tart"], &[&marks[0], &marks[1]]);
            call.parent = Some(Pid::from_raw(parent));
            call
        };
        assert_eq!(stale(&[child(70, 70)], 2000, |_| 0), (vec![], None), "its caller lives");
        assert_eq!(stale(&[child(70, 71)], 2000, |_| 0).0.len(), 1, "its caller is gone");
        assert_eq!(found(159), (vec![], Some(160)));
        assert_eq!(found(160), (vec![2], Some(960)));
        assert_eq!(found(2000), (vec![2, 3, 4], None));
        // When the agent first looked, at 1000 by its clock, the call with the deadline 900 was 50 s old.
        let mut seen = call(8, "900");
        seen.started = 300;
        let seen = [seen];
        assert_eq!(stale(&seen, 1000, |_| 950), (vec![], Some(1610)));
        assert_eq!(stale(&seen, 1609, |_| 950), (vec![], Some(1610)), "whatever the wall clock says");
        assert_eq!(stale(&seen, 1610, |_| 950).0.len(), 1);
    }
}
