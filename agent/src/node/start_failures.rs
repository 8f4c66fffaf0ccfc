//! Faults of the host that the latest starts of VMs have shown.
//!
//! Some faults show only when a VM starts: no user is logged in at the Mac's screen, its keychain is locked, macOS counts VMs that are
//! gone, or the DHCP server has no address left. A later start that succeeds proves that the fault is gone. No Pod is scheduled on a
//! Node that is not ready, so the Node also becomes ready after a delay, for a Pod to try: five minutes the first time, twice as long
//! each further time, an hour at most.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;

use super::health::{HealthProblem, NotReadyReason};
use crate::backoff::START_FAILURE;
use crate::clock;
use crate::state::HostFault;

/// The number of macOS guests that macOS runs at once.
const SYSTEM_LIMIT: u32 = 2;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Start {
    /// The guest was up at this time.
    Up(Timestamp),
    /// A fault of the host kept the VM from starting; `message` is tart's.
    Failed { fault: HostFault, message: String, at: Timestamp },
}

impl Start {
    /// The same with its time by the clock that never jumps.
    fn by_own_clock(&self) -> Self {
        let mut start = self.clone();
        let (Self::Up(at) | Self::Failed { at, .. }) = &mut start;
        *at = clock::of_record(*at);
        start
    }
}

/// The fault that the starts so far have shown.
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
    /// Adds a start, whose time is of the clock that never jumps. Only its time counts, not the order of calls: a restarted agent reads old results again.
    #[must_use]
    pub(super) fn after(mut self, start: &Start) -> Self {
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
                    None => START_FAILURE.next(None),
                    // A VM that started at about the same time shows nothing new.
                    Some(before) if *at < before.until() => before.pause,
                    Some(before) => START_FAILURE.next(Some(before.pause)),
                };
                self.failure = Some(Failure { problem, at: *at, pause });
            }
        }
        self
    }

    /// Why no VM can start, and when the Node becomes ready again.
    pub(super) fn problem(&self, now: Timestamp) -> Option<(&HealthProblem, Timestamp)> {
        let failure = self.failure.as_ref().filter(|failure| now < failure.until())?;
        Some((&failure.problem, failure.until()))
    }
}

fn problem(fault: HostFault, message: &str) -> Option<HealthProblem> {
    let (reason, message) = match fault {
        HostFault::Session => (NotReadyReason::NoGuiSession, message.to_owned()),
        // Two VMs of this agent run: the host is full, which is no fault.
        HostFault::VmLimit { ours } if ours >= SYSTEM_LIMIT => return None,
        HostFault::VmLimit { ours } => (
            NotReadyReason::VmSlotsLeaked,
            format!(
                "{message}; {ours} VMs of this agent run, so others do, or macOS counts some that are gone"
            ),
        ),
        HostFault::NoAddress => (
            NotReadyReason::NoAddressForVms,
            format!(
                "{message}; the host's DHCP server may have lent all it has: shorten its lease time, or remove its leases"
            ),
        ),
    };
    Some(HealthProblem { reason, message })
}

#[derive(Debug, Clone)]
pub(crate) struct StartReports(Arc<watch::Sender<StartFailures>>);

impl StartReports {
    pub(crate) fn new() -> (Self, watch::Receiver<StartFailures>) {
        let (sender, receiver) = watch::channel(StartFailures::default());
        (Self(Arc::new(sender)), receiver)
    }

    pub(crate) fn report(&self, start: &Start) {
        let start = start.by_own_clock();
        self.0.send_if_modified(|starts| {
            let after = starts.clone().after(&start);
            std::mem::replace(starts, after.clone()) != after
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at;
    use proptest::prelude::*;

    fn failed(fault: HostFault, second: i64) -> Start {
        Start::Failed { fault, message: "no".into(), at: at(second) }
    }

    fn reason(starts: &StartFailures, second: i64) -> &'static str {
        starts.problem(at(second)).map_or("", |(problem, _)| problem.reason.as_str())
    }

    fn reported(starts: &[Start]) -> StartFailures {
        starts.iter().fold(StartFailures::default(), StartFailures::after)
    }

    #[test]
    fn each_fault_of_the_host_has_a_reason() {
        let table = [
            (HostFault::Session, "NoGuiSession"),
            (HostFault::VmLimit { ours: 0 }, "VmSlotsLeaked"),
            (HostFault::VmLimit { ours: 1 }, "VmSlotsLeaked"),
            (HostFault::VmLimit { ours: 2 }, ""),
            (HostFault::NoAddress, "NoAddressForVms"),
        ];
        for (fault, expected) in table {
            assert_eq!(reason(&reported(&[failed(fault, 10)]), 11), expected, "{fault:?}");
        }
    }

    #[test]
    fn a_later_start_refutes_a_fault_and_an_earlier_one_does_not() {
        let fault = failed(HostFault::Session, 10);
        assert_eq!(reason(&reported(&[fault.clone(), Start::Up(at(11))]), 12), "");
        assert_eq!(reason(&reported(&[Start::Up(at(11)), fault.clone()]), 12), "");
        assert_eq!(reason(&reported(&[fault, Start::Up(at(9))]), 12), "NoGuiSession");
    }

    #[test]
    fn a_fault_lasts_longer_each_time() {
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
        let together = reported(&[failed(HostFault::Session, 0), failed(HostFault::Session, 5)]);
        assert_eq!(together.problem(at(6)).unwrap().1, at(305), "the second shows nothing new");
    }

    proptest! {
        #[test]
        fn every_fault_ends_within_an_hour(
            times in proptest::collection::vec((0i64..100_000, any::<bool>()), 1..30)
        ) {
            let start = |(second, up): &(i64, bool)| {
                if *up { Start::Up(at(*second)) } else { failed(HostFault::Session, *second) }
            };
            let starts = reported(&times.iter().map(start).collect::<Vec<_>>());
            let last = times.iter().map(|(second, _)| *second).max().unwrap();
            prop_assert!(starts.problem(at(last + 3600)).is_none());
            let last_up = times.iter().filter(|(_, up)| *up).map(|(second, _)| *second).max();
            let last_failure = times.iter().filter(|(_, up)| !*up).map(|(second, _)| *second).max();
            if last_up > last_failure {
                prop_assert!(starts.problem(at(last)).is_none(), "the last start succeeded");
            }
        }
    }
}
