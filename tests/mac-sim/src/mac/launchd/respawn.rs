//! Whether launchd starts a job again that has ended, and when.

use std::time::Duration;

use super::definition::KeepAlive;

/// How a job's process has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exit {
    /// By itself, with this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
    /// The kernel killed it because of its signature.
    CodeSigning,
}

impl Exit {
    fn is_success(self) -> bool {
        self == Self::Code(0)
    }

    /// Signals that launchd counts as a crash: not those by which a job is ended from outside.
    fn is_crash(self) -> bool {
        const FROM_OUTSIDE: [i32; 4] = [1, 2, 9, 15];
        match self {
            Self::Code(_) => false,
            Self::Signal(signal) => !FROM_OUTSIDE.contains(&signal),
            Self::CodeSigning => true,
        }
    }
}

/// How long after its end the job is started again; `None` if launchd leaves it alone.
pub(super) fn delay(
    keep_alive: KeepAlive,
    exit: Exit,
    ran: Duration,
    throttle: Duration,
) -> Option<Duration> {
    let is_wanted = match keep_alive {
        KeepAlive::No => false,
        KeepAlive::Always => true,
        KeepAlive::After { successful_exit, crashed } => {
            successful_exit.is_some_and(|wanted| wanted == exit.is_success())
                || crashed.is_some_and(|wanted| wanted == exit.is_crash())
        }
    };
    is_wanted.then(|| throttle.saturating_sub(ran))
}

#[cfg(test)]
mod tests {
    use super::*;

    const THROTTLE: Duration = Duration::from_secs(10);

    #[test]
    fn a_job_that_ran_long_enough_is_started_at_once() {
        for (ran, expected) in [(0, 10), (2, 8), (10, 0), (11, 0)] {
            let delay = delay(KeepAlive::Always, Exit::Code(0), Duration::from_secs(ran), THROTTLE);
            assert_eq!(delay, Some(Duration::from_secs(expected)), "it ran {ran} s");
        }
    }

    #[test]
    fn keep_alive_says_after_which_ends() {
        let after = |successful_exit, crashed| KeepAlive::After { successful_exit, crashed };
        for (keep_alive, exit, is_started) in [
            (KeepAlive::No, Exit::Code(1), false),
            (KeepAlive::Always, Exit::Code(0), true),
            (after(Some(false), None), Exit::Code(0), false),
            (after(Some(false), None), Exit::Code(78), true),
            (after(Some(false), None), Exit::Signal(15), true),
            (after(Some(true), None), Exit::Code(0), true),
            (after(Some(true), None), Exit::Code(1), false),
            (after(None, Some(true)), Exit::Signal(11), true),
            (after(None, Some(true)), Exit::Signal(15), false),
            (after(None, Some(true)), Exit::CodeSigning, true),
            (after(None, Some(false)), Exit::Code(0), true),
        ] {
            let started = delay(keep_alive, exit, Duration::ZERO, THROTTLE).is_some();
            assert_eq!(started, is_started, "{keep_alive:?} after {exit:?}");
        }
    }
}
