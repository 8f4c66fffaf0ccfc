//! Whether a job has come to rest: a new process that is still the same some seconds later. A pure state machine: the caller passes the time
//! that has gone by.

use std::time::Duration;

use crate::job::Job;
use crate::launchctl::Registration;

/// How long a process must live to count. A crash loop shows a PID, too, but another one each time.
const STABLE: Duration = Duration::from_secs(5);
/// How long launchd may take to start a job that it has just loaded.
const SPAWN: Duration = Duration::from_secs(2);
/// How long a job may take to come to rest, beside the time that the old process has to end: one throttled start and a stable time.
const PATIENCE: Duration = Duration::from_secs(20);

/// The longest that a job may take to come to rest.
pub(super) fn deadline(job: &Job) -> Duration {
    PATIENCE + Duration::from_secs(job.exit_time_out.into()) + STABLE
}

/// The next step of the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Look again soon.
    Wait,
    /// The job runs.
    Settled(u32),
    /// launchd has loaded the job and never started it: `kickstart` it.
    Start,
    /// The job does not come to rest.
    GiveUp,
}

/// What has been seen of a job since it was told to start.
#[derive(Debug)]
pub(super) struct Settle<'a> {
    job: &'a Job,
    plist: &'a str,
    /// The process that must be gone.
    old: Option<u32>,
    /// The process that is there, and since when.
    candidate: Option<(u32, Duration)>,
    /// Whether [`Next::Start`] has been said.
    started: bool,
}

impl<'a> Settle<'a> {
    pub(super) fn new(job: &'a Job, plist: &'a str, old: Option<u32>) -> Self {
        Self { job, plist, old, candidate: None, started: false }
    }

    /// Takes a look at the job into account.
    pub(super) fn next(&mut self, elapsed: Duration, seen: &Registration) -> Next {
        let service = seen.service().filter(|service| service.is_of(self.job, self.plist));
        let running =
            service.filter(|service| service.state.as_deref().is_none_or(|state| state == "running"));
        let pid = running.and_then(|service| service.pid).filter(|&pid| Some(pid) != self.old);
        self.candidate = match (pid, self.candidate) {
            (Some(pid), Some((known, since))) if pid == known => Some((known, since)),
            (Some(pid), _) => Some((pid, elapsed)),
            (None, _) => None,
        };
        if let Some((pid, since)) = self.candidate
            && elapsed.saturating_sub(since) >= STABLE
        {
            return Next::Settled(pid);
        }
        let was_never_started =
            service.is_some_and(|service| service.pid.is_none() && service.runs == Some(0));
        if was_never_started && !self.started && elapsed >= SPAWN {
            self.started = true;
            return Next::Start;
        }
        // A process that has come late gets its stable time.
        let last = deadline(self.job);
        let is_over = elapsed + STABLE >= last && (self.candidate.is_none() || elapsed >= last);
        if is_over { Next::GiveUp } else { Next::Wait }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent_job::{AGENT_PLIST, ConsoleUser, agent_job};
    use crate::launchctl::Service;
    use proptest::prelude::*;

    fn job() -> Job {
        agent_job(&ConsoleUser::named("m1"), [])
    }

    fn running(pid: u32) -> Registration {
        let state = Some("running".to_owned());
        Registration::Loaded(Box::new(Service { state, pid: Some(pid), runs: Some(1), ..Service::default() }))
    }

    fn ended(runs: u64) -> Registration {
        let state = Some("not running".to_owned());
        Registration::Loaded(Box::new(Service { state, runs: Some(runs), ..Service::default() }))
    }

    /// The answers to one look a second, up to the first that is no [`Next::Wait`].
    fn first(old: Option<u32>, seen: impl Fn(u64) -> Registration) -> (u64, Next) {
        let job = job();
        let mut settle = Settle::new(&job, AGENT_PLIST, old);
        (0..100)
            .map(|second| (second, settle.next(Duration::from_secs(second), &seen(second))))
            .find(|(_, next)| *next != Next::Wait)
            .unwrap()
    }

    #[test]
    fn a_new_process_counts_when_it_has_lived_for_some_seconds() {
        assert_eq!(first(Some(1), |_| running(2)), (5, Next::Settled(2)));
        assert_eq!(first(None, |_| running(1)), (5, Next::Settled(1)));
        let late = |second| if second < 12 { running(1) } else { running(2) };
        assert_eq!(first(Some(1), late), (17, Next::Settled(2)));
        let very_late = |second| if second < 39 { running(1) } else { running(2) };
        assert_eq!(first(Some(1), very_late), (44, Next::Settled(2)));
    }

    #[test]
    fn the_old_process_and_a_crash_loop_do_not_count() {
        assert_eq!(first(Some(1), |_| running(1)), (40, Next::GiveUp));
        let crash_loop = |second: u64| running(u32::try_from(10 + second / 4).unwrap());
        assert_eq!(first(Some(1), crash_loop), (45, Next::GiveUp));
        assert_eq!(first(Some(1), |_| ended(3)), (40, Next::GiveUp));
        assert_eq!(first(Some(1), |_| Registration::NotLoaded), (40, Next::GiveUp));
    }

    #[test]
    fn a_process_that_runs_another_program_does_not_count() {
        let other = |_| match running(2) {
            Registration::Loaded(service) => {
                Registration::Loaded(Box::new(Service { program: Some("/other".to_owned()), ..*service }))
            }
            Registration::NotLoaded => Registration::NotLoaded,
        };
        assert_eq!(first(Some(1), other), (40, Next::GiveUp));
    }

    #[test]
    fn a_job_that_was_never_started_is_started_once() {
        let job = job();
        let mut settle = Settle::new(&job, AGENT_PLIST, None);
        let mut next = |second| settle.next(Duration::from_secs(second), &ended(0));
        assert_eq!([next(0), next(1), next(2), next(3)], [Next::Wait, Next::Wait, Next::Start, Next::Wait]);
        assert_eq!(next(40), Next::GiveUp);
    }

    proptest! {
        #[test]
        fn only_a_new_pid_that_was_there_all_the_stable_time_is_accepted(
            looks in prop::collection::vec(prop::option::weighted(0.9, 1_u32..4), 1..60),
        ) {
            let job = job();
            let mut settle = Settle::new(&job, AGENT_PLIST, Some(1));
            for (second, look) in looks.iter().enumerate() {
                let seen = look.map_or_else(|| ended(1), running);
                match settle.next(Duration::from_secs(second as u64), &seen) {
                    Next::Settled(pid) => {
                        prop_assert!(pid != 1 && second >= 5);
                        prop_assert!(looks[second - 5..=second].iter().all(|look| *look == Some(pid)));
                        break;
                    }
                    Next::GiveUp => { prop_assert!(second >= 40); break; }
                    Next::Wait | Next::Start => (),
                }
            }
        }
    }
}
