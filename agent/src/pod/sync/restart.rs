//! Whether and when the agent starts a container again after it has ended.

use std::time::Duration;

use jiff::Timestamp;

use super::time::{between, later};
use crate::backoff::CONTAINER_RESTART;
use crate::state::{Outcome, RestartPolicy, StopCause, StopRequest};

/// A container that ran for this long starts with a fresh back-off, as in the kubelet.
const WELL_AFTER: Duration = Duration::from_mins(10);

/// What follows the end of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RestartDecision {
    Succeeded,
    Failed,
    Restart {
        /// Not before this time.
        at: Timestamp,
        /// Failures in a row, for the next back-off.
        crashes: u32,
        delay: Duration,
    },
}

/// What follows the end of a container after `crashes` failures in a row. A container that was stopped for a failed probe counts as failed
/// for `OnFailure`. With `Never` its own exit code counts; a VM that was shut down has none. The back-off counts from `ended_at`, the
/// outcome's time by the agent's clock.
pub(crate) fn verdict(
    policy: RestartPolicy,
    crashes: u32,
    stop: Option<StopRequest>,
    outcome: &Outcome,
    ended_at: Timestamp,
) -> RestartDecision {
    let failed_probe = stop.and_then(|stop| stop.cause).is_some_and(StopCause::is_failure);
    let has_own_code = outcome.ending.has_own_code();
    let ended_well = outcome.ending.exit_code() == 0;
    match policy {
        RestartPolicy::Never if ended_well && (has_own_code || !failed_probe) => RestartDecision::Succeeded,
        RestartPolicy::Never => RestartDecision::Failed,
        RestartPolicy::OnFailure if ended_well && !failed_probe => RestartDecision::Succeeded,
        RestartPolicy::Always | RestartPolicy::OnFailure => {
            let ran = outcome.started_at.map(|start| between(start, outcome.finished_at));
            let crashes = if ran >= Some(WELL_AFTER) { 0 } else { crashes };
            let delay = CONTAINER_RESTART.after(crashes);
            let at = later(ended_at, delay);
            RestartDecision::Restart { at, crashes: crashes.saturating_add(1), delay }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::Ending;

    fn verdict(
        policy: RestartPolicy,
        crashes: u32,
        stop: Option<StopRequest>,
        outcome: &Outcome,
    ) -> RestartDecision {
        super::verdict(policy, crashes, stop, outcome, outcome.finished_at)
    }

    fn outcome(code: i32, seconds: i64) -> Outcome {
        Outcome {
            ending: Ending::Exited { code, message: None },
            started_at: Some(Timestamp::from_second(1000).unwrap()),
            finished_at: Timestamp::from_second(1000 + seconds).unwrap(),
        }
    }

    #[test]
    fn policies_mean_what_they_mean_in_kubernetes() {
        let again = |policy, code| {
            matches!(verdict(policy, 0, None, &outcome(code, 1)), RestartDecision::Restart { .. })
        };
        assert!(again(RestartPolicy::Always, 0) && again(RestartPolicy::Always, 1));
        assert!(!again(RestartPolicy::OnFailure, 0) && again(RestartPolicy::OnFailure, 1));
        assert_eq!(verdict(RestartPolicy::Never, 0, None, &outcome(0, 1)), RestartDecision::Succeeded);
        assert_eq!(verdict(RestartPolicy::Never, 0, None, &outcome(3, 1)), RestartDecision::Failed);
        assert_eq!(verdict(RestartPolicy::OnFailure, 0, None, &outcome(0, 1)), RestartDecision::Succeeded);
    }

    #[test]
    fn a_container_that_failed_a_probe_starts_again_or_is_what_its_exit_code_says() {
        let stopped = |policy, cause, outcome: &Outcome| {
            let stop = StopRequest { deadline: Timestamp::UNIX_EPOCH, grace: Duration::from_secs(30), cause };
            verdict(policy, 0, Some(stop), outcome)
        };
        let after = |policy, cause| stopped(policy, cause, &outcome(0, 1));
        let failed = Some(StopCause::FailedLiveness);
        assert!(matches!(after(RestartPolicy::Always, failed), RestartDecision::Restart { .. }));
        assert!(matches!(after(RestartPolicy::OnFailure, failed), RestartDecision::Restart { .. }));
        assert_eq!(after(RestartPolicy::Never, failed), RestartDecision::Succeeded);
        assert_eq!(after(RestartPolicy::OnFailure, None), RestartDecision::Succeeded);
        assert_eq!(stopped(RestartPolicy::Never, failed, &outcome(3, 1)), RestartDecision::Failed);
        // A VM that was shut down for a failed probe is no success either.
        let shut_down = Outcome { ending: Ending::Stopped { killed: false }, ..outcome(0, 1) };
        assert_eq!(stopped(RestartPolicy::Never, failed, &shut_down), RestartDecision::Failed);
        assert_eq!(stopped(RestartPolicy::Never, None, &shut_down), RestartDecision::Succeeded);
    }

    #[test]
    fn the_back_off_doubles_to_five_minutes_and_ends_after_a_long_run() {
        let delay = |crashes, ran| match verdict(RestartPolicy::Always, crashes, None, &outcome(1, ran)) {
            RestartDecision::Restart { delay, .. } => delay.as_secs(),
            other => panic!("{other:?}"),
        };
        let delays: Vec<u64> = (0..7).map(|crashes| delay(crashes, 1)).collect();
        assert_eq!(delays, [0, 10, 20, 40, 80, 160, 300]);
        assert_eq!(delay(u32::MAX, 1), 300);
        assert_eq!(delay(6, 600), 0);
    }
}
