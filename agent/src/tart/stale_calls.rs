//! Calls that have outlived the one who made them: their time limits hold all the same.
//!
//! A `tart` that hangs may hold the lock that every other `tart` of this host waits for. Who made the call ends it in time, unless that
//! was an agent which was killed meanwhile. One that is still in time is left alone: it may be most of a long pull.

use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use nix::unistd::Pid;
use tokio::process::Command;
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tracing::warn;

use crate::error_chain::chain;
use crate::os::process_table::{self, RunningProcess};

/// The environment variable with the second at which a call is to be over.
const MARK: &str = "TART_KUBELET_DEADLINE";
/// The environment variable with the ID of the process that has made a call.
const CALLER: &str = "TART_KUBELET_CALLER";
/// The environment variable with the home that a call works in: what hangs in another one is in nobody's way here.
pub(super) const HOME: &str = "TART_KUBELET_TART_HOME";
/// Whoever lives ends its own calls in time.
const MARGIN: i64 = 60;
/// The clock may be set meanwhile.
const LONGEST_SLEEP: Duration = Duration::from_mins(10);

/// Writes on a call when it is to be over, for whoever finds it then.
pub(super) fn mark(command: &mut Command, limit: Duration) {
    let seconds = i64::try_from(limit.as_secs()).unwrap_or(i64::MAX);
    command.env(MARK, Timestamp::now().as_second().saturating_add(seconds).to_string());
    command.env(CALLER, std::process::id().to_string());
}

/// Kills the calls of earlier agents in this home that are overdue, and the others when they are. Returns when there are none.
pub(crate) async fn end_overdue_calls(home: PathBuf) {
    loop {
        let running: Vec<RunningProcess> = match spawn_blocking(process_table::others).await {
            Ok(Ok(running)) => {
                running.into_iter().filter(|call| call.variable(HOME) == home.to_str()).collect()
            }
            Ok(Err(error)) => return warn!(error = chain(&error), "cannot look for calls of tart that hang"),
            Err(error) => return warn!(%error, "cannot look for calls of tart that hang"),
        };
        let now = Timestamp::now().as_second();
        let (overdue, next) = judge(&running, now);
        for call in overdue {
            warn!(pid = %call.pid, "a call of tart has outlived its agent and its time; killing it");
            call.kill();
        }
        let Some(next) = next else { return };
        sleep(Duration::from_secs(u64::try_from(next - now).unwrap_or(0)).min(LONGEST_SLEEP)).await;
    }
}

/// The calls that are overdue, and when the next one will be. Those whose callers live are no concern of ours: they know better what
/// the time is, for the clock here goes on while the Mac sleeps.
fn judge(running: &[RunningProcess], now: i64) -> (Vec<&RunningProcess>, Option<i64>) {
    let is_orphan = |call: &RunningProcess| {
        let caller = call.variable(CALLER).and_then(|pid| pid.parse().ok()).map(Pid::from_raw);
        caller.is_none() || caller != call.parent
    };
    let end = |call: &RunningProcess| {
        let end = call.variable(MARK)?.parse::<i64>().ok().filter(|_| is_orphan(call));
        end.map(|end| end.saturating_add(MARGIN))
    };
    let overdue = running.iter().filter(|call| end(call).is_some_and(|end| end <= now)).collect();
    let next = running.iter().filter_map(end).filter(|end| *end > now).min();
    (overdue, next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_overdue_is_ended() {
        let call = |pid, end: &str| RunningProcess::example(pid, 1, &["tart"], &[&format!("{MARK}={end}")]);
        let running = [
            call(2, "100"),
            call(3, "900"),
            call(4, "950"),
            call(5, "soon"),
            RunningProcess::example(6, 1, &["tart"], &[]),
        ];
        let judged = |now| {
            let (overdue, next) = judge(&running, now);
            (overdue.iter().map(|call| call.pid.as_raw()).collect::<Vec<_>>(), next)
        };
        let child = |parent, caller| {
            let marks = [format!("{MARK}=100"), format!("{CALLER}={caller}")];
            let mut call = RunningProcess::example(7, 1, &["tart"], &[&marks[0], &marks[1]]);
            call.parent = Some(Pid::from_raw(parent));
            call
        };
        assert_eq!(judge(&[child(70, 70)], 2000), (vec![], None), "its caller lives");
        assert_eq!(judge(&[child(70, 71)], 2000).0.len(), 1, "its caller is gone");
        assert_eq!(judged(159), (vec![], Some(160)));
        assert_eq!(judged(160), (vec![2], Some(960)));
        assert_eq!(judged(2000), (vec![2, 3, 4], None));
    }
}
