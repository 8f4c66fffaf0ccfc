//! What the latest starts of VMs say about the host.
//!
//! Some faults show only when a VM starts: nobody is logged in at the Mac's screen, its keychain is locked, macOS counts VMs that are
//! long gone, or there is no address left to lend. A start that succeeds afterwards proves that the fault is gone. On a Node that is
//! not ready none is scheduled, so the fault is also forgiven after a while, for a Pod to try: five minutes the first time, twice
//! as long each further time, an hour at most. Until the next failure the Node is then ready again.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;

use super::health::HealthProblem;
use crate::state::HostFault;

const FIRST_PAUSE: Duration = Duration::from_mins(5);
const LONGEST_PAUSE: Duration = Duration::from_hours(1);
/// How many macOS guests macOS runs at once.
const SYSTEM_LIMIT: u32 = 2;

/// What has become of one start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Start {
    /// The guest was up at this time.
    Up(Timestamp),
    /// The host was in the way.
    Failed {
        /// How.
        fault: HostFault,
        /// What tart said.
        message: String,
        /// When.
        at: Timestamp,
    },
}

/// What all starts so far say.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct StartFailures {
    last_up: Option<Timestamp>,
    failure: Option<Failure>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Failure {
    problem: HealthProblem,
    at: Timestamp,
    pause: Duration,
}

impl Failure {
    fn until(&self) -> Timestamp {
        self.at + self.pause
    }
}

impl StartFailures {
    /// What they say after one more. The order in which starts are told does not matter, their times do: an agent that was
    /// restarted reads old ends again.
    #[must_use]
    pub(crate) fn after(mut self, start: &Start) -> Self {
        match start {
            Start::Up(at) => {
                self.last_up = self.last_up.max(Some(*at));
                self.failure = self.failure.filter(|failure| failure.at >= *at);
            }
            Start::Failed { fault, message, at } => {
                let Some(problem) = problem(*fault, message) else { return self };
                let refuted = self.last_up.is_some_and(|up| up > *at);
                let known = self.failure.as_ref().is_some_and(|failure| failure.at >= *at);
                if refuted || known {
                    return self;
                }
                let pause = match &self.failure {
                    None => FIRST_PAUSE,
                    // Others that tried at the same time, or again on their own, say nothing new.
                    Some(before) if *at < before.until() => before.pause,
                    Some(before) => (before.pause * 2).min(LONGEST_PAUSE),
                };
                self.failure = Some(Failure { problem, at: *at, pause });
            }
        }
        self
    }

    /// Why no VM can start, and until when that is to be believed.
    pub(crate) fn problem(&self, now: Timestamp) -> Option<(&HealthProblem, Timestamp)> {
        let failure = self.failure.as_ref().filter(|failure| now < failure.until())?;
        Some((&failure.problem, failure.until()))
    }
}

fn problem(fault: HostFault, message: &str) -> Option<HealthProblem> {
    let (reason, message) = match fault {
        HostFault::Session => ("NoGuiSession", message.to_owned()),
        // Two of ours run: the host is full, which is nobody's fault.
        HostFault::VmLimit { ours } if ours >= SYSTEM_LIMIT => return None,
        HostFault::VmLimit { ours } => (
            "VmSlotsLeaked",
            format!(
                "{message}; {ours} VMs of this agent run, so others do, or macOS counts some that are gone"
            ),
        ),
        HostFault::NoAddress => (
            "NoAddressForVms",
            format!(
                "{message}; the host's DHCP server may have lent all it has: shorten its lease time, or remove its leases"
            ),
        ),
    };
    Some(HealthProblem { reason, message })
}

/// Where starts are told.
#[derive(Debug, Clone)]
pub(crate) struct StartReports(Arc<watch::Sender<StartFailures>>);

impl StartReports {
    /// An empty board, and a view of it.
    pub(crate) fn new() -> (Self, watch::Receiver<StartFailures>) {
        let (sender, receiver) = watch::channel(StartFailures::default());
        (Self(Arc::new(sender)), receiver)
    }

    /// Tells what has become of a start.
    pub(crate) fn tell(&self, start: &Start) {
        self.0.send_if_modified(|starts| {
            let after = starts.clone().after(start);
            let changed = *starts != after;
            *starts = after;
            changed
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn failed(fault: HostFault, second: i64) -> Start {
        Start::Failed { fault, message: "no".into(), at: at(second) }
    }

    fn reason(starts: &StartFailures, second: i64) -> &'static str {
        starts.problem(at(second)).map_or("", |(problem, _)| problem.reason)
    }

    fn told(starts: &[Start]) -> StartFailures {
        starts.iter().fold(StartFailures::default(), StartFailures::after)
    }

    #[test]
    fn faults_of_the_host_are_told_apart() {
        let table = [
            (HostFault::Session, "NoGuiSession"),
            (HostFault::VmLimit { ours: 0 }, "VmSlotsLeaked"),
            (HostFault::VmLimit { ours: 1 }, "VmSlotsLeaked"),
            (HostFault::VmLimit { ours: 2 }, ""),
            (HostFault::NoAddress, "NoAddressForVms"),
        ];
        for (fault, expected) in table {
            assert_eq!(reason(&told(&[failed(fault, 10)]), 11), expected, "{fault:?}");
        }
    }

    #[test]
    fn a_later_start_heals_and_an_earlier_one_does_not() {
        let fault = failed(HostFault::Session, 10);
        assert_eq!(reason(&told(&[fault.clone(), Start::Up(at(11))]), 12), "");
        assert_eq!(reason(&told(&[Start::Up(at(11)), fault.clone()]), 12), "");
        assert_eq!(reason(&told(&[fault, Start::Up(at(9))]), 12), "NoGuiSession");
    }

    #[test]
    fn a_fault_is_forgiven_for_longer_each_time() {
        let mut starts = StartFailures::default();
        let mut now = 0;
        let mut pauses = Vec::new();
        for _ in 0..6 {
            starts = starts.after(&failed(HostFault::Session, now));
            let (_, until) = starts.problem(at(now)).unwrap();
            assert_eq!(reason(&starts, until.as_second()), "");
            pauses.push((until.as_second() - now) / 60);
            now = until.as_second() + 1;
        }
        assert_eq!(pauses, [5, 10, 20, 40, 60, 60]);
        let together = told(&[failed(HostFault::Session, 0), failed(HostFault::Session, 5)]);
        assert_eq!(together.problem(at(6)).unwrap().1, at(305), "the second says nothing new");
    }

    proptest! {
        #[test]
        fn every_fault_heals_within_an_hour(
            times in proptest::collection::vec((0i64..100_000, any::<bool>()), 1..30)
        ) {
            let start = |(second, up): &(i64, bool)| {
                if *up { Start::Up(at(*second)) } else { failed(HostFault::Session, *second) }
            };
            let starts = told(&times.iter().map(start).collect::<Vec<_>>());
            let last = times.iter().map(|(second, _)| *second).max().unwrap();
            prop_assert!(starts.problem(at(last + 3600)).is_none());
            let last_up = times.iter().filter(|(_, up)| *up).map(|(second, _)| *second).max();
            let last_failure = times.iter().filter(|(_, up)| !*up).map(|(second, _)| *second).max();
            if last_up > last_failure {
                prop_assert!(starts.problem(at(last)).is_none(), "the last start was a good one");
            }
        }
    }
}
