//! Back-off: how long to wait before the next try. All policies of the agent are the constants below.

use std::time::Duration;

/// How delays grow with each failure in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Backoff {
    first: Duration,
    /// In tenths: each delay is this many tenths of the one before.
    factor: u32,
    longest: Duration,
    /// The part of a delay, in percent, that is random.
    jitter: u32,
}

/// A container that ended and is to run again; the kubelet's figures.
pub(crate) const CONTAINER_RESTART: Backoff = Backoff::doubling(secs(10), mins(5));
/// The pull of an image; the kubelet's figures.
pub(crate) const IMAGE_PULL: Backoff = Backoff::doubling(secs(10), mins(5));
/// The deletion of further images for one image that still does not fit on the disk.
pub(crate) const IMAGE_GC_FOR_PULL: Backoff = Backoff::doubling(mins(2), mins(60));
/// A step of a Pod's worker.
pub(crate) const POD_STEP: Backoff = Backoff::doubling(secs(1), mins(1));
/// The write of the Node.
pub(crate) const NODE: Backoff = Backoff::doubling(secs(2), mins(1));
/// The write of a Pod's status.
pub(crate) const POD_STATUS: Backoff = Backoff::doubling(millis(250), secs(15));
/// The update of a volume's files.
pub(crate) const VOLUME_UPDATE: Backoff = Backoff::doubling(secs(1), mins(1));
/// The renewal of a service account token.
pub(crate) const TOKEN_RENEWAL: Backoff = Backoff::doubling(secs(1), mins(1));
/// A token for a Pod that the API server does not know to be on this Node yet.
pub(crate) const TOKEN_OF_NEW_POD: Backoff = Backoff::doubling(millis(100), millis(3200));
/// A certificate signing request.
pub(crate) const CSR: Backoff = Backoff::doubling(millis(500), secs(30));
/// A certificate for the kubelet API that the cluster has refused.
pub(crate) const SERVING_CERTIFICATE: Backoff = Backoff::doubling(mins(1), mins(60));
/// The write of an Event.
pub(crate) const EVENT: Backoff = Backoff { factor: 50, ..Backoff::doubling(secs(1), secs(5)) };
/// A watch. Short at first, because the Node authorizer may learn of a Pod after this Node; random, because all Nodes lose the API
/// server at once.
pub(crate) const WATCH: Backoff = Backoff { jitter: 50, ..Backoff::doubling(millis(100), secs(30)) };
/// A fault of the host that keeps VMs from starting: how long the Node stays unready.
pub(crate) const START_FAILURE: Backoff = Backoff::doubling(mins(5), mins(60));
/// The connection of a gRPC probe; the figures of the kubelet's gRPC library. The probe's timeout ends it.
pub(crate) const GRPC_PROBE: Backoff = Backoff { factor: 16, ..Backoff::doubling(secs(1), Duration::MAX) };

const fn millis(number: u64) -> Duration {
    Duration::from_millis(number)
}

const fn secs(number: u64) -> Duration {
    Duration::from_secs(number)
}

const fn mins(number: u64) -> Duration {
    Duration::from_mins(number)
}

impl Backoff {
    const fn doubling(first: Duration, longest: Duration) -> Self {
        Self { first, factor: 20, longest, jitter: 0 }
    }

    /// The delay after this many failures in a row; none before the first.
    pub(crate) fn after(&self, failures: u32) -> Duration {
        let mut delay = if failures == 0 { Duration::ZERO } else { self.first };
        for _ in 1..failures {
            let next = self.next(Some(delay));
            if next == delay {
                break;
            }
            delay = next;
        }
        delay
    }

    /// The delay that follows another one, without jitter.
    pub(crate) fn next(&self, before: Option<Duration>) -> Duration {
        before.map_or(self.first, |before| {
            (before.saturating_mul(self.factor) / 10).max(before).min(self.longest)
        })
    }

    /// The delays of a loop that tries again and again.
    pub(crate) fn delays(self) -> Delays {
        Delays { policy: self, last: None }
    }
}

/// The delays of one loop.
#[derive(Debug, Clone)]
pub(crate) struct Delays {
    policy: Backoff,
    last: Option<Duration>,
}

impl Delays {
    /// The next delay.
    pub(crate) fn next(&mut self) -> Duration {
        let delay = self.policy.next(self.last);
        self.last = Some(delay);
        if self.policy.jitter == 0 {
            return delay;
        }
        let random = f64::from(self.policy.jitter) / 100.0;
        delay.mul_f64(1.0 - random * fastrand::f64())
    }

    /// Begins again with the first delay, after a success.
    pub(crate) fn reset(&mut self) {
        self.last = None;
    }

    /// Has the next delay be the longest, after a failure that is not expected to pass.
    pub(crate) fn skip_to_longest(&mut self) {
        self.last = Some(self.policy.longest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn seconds(policy: Backoff, failures: std::ops::Range<u32>) -> Vec<f64> {
        failures.map(|failures| policy.after(failures).as_secs_f64()).collect()
    }

    #[test]
    fn delays_grow_to_the_longest() {
        assert_eq!(seconds(CONTAINER_RESTART, 0..8), [0.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0]);
        assert_eq!(seconds(POD_STATUS, 1..9), [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0]);
        assert_eq!(seconds(TOKEN_OF_NEW_POD, 1..7), [0.1, 0.2, 0.4, 0.8, 1.6, 3.2]);
        assert_eq!(seconds(EVENT, 1..3), [1.0, 5.0]);
        assert_eq!(seconds(GRPC_PROBE, 1..5), [1.0, 1.6, 2.56, 4.096]);
    }

    #[test]
    fn a_loop_begins_again_or_skips_to_the_longest() {
        let mut delays = POD_STATUS.delays();
        assert_eq!([delays.next(), delays.next()], [millis(250), millis(500)]);
        delays.reset();
        assert_eq!(delays.next(), millis(250));
        delays.skip_to_longest();
        assert_eq!([delays.next(), delays.next()], [secs(15), secs(15)]);
    }

    proptest! {
        #[test]
        fn a_delay_never_shrinks_and_is_bounded(
            first in 0u64..100_000, more in 0u64..100_000_000, factor in 10u32..100, failures: u32,
        ) {
            let policy = Backoff { factor, ..Backoff::doubling(millis(first), millis(first + more)) };
            let delay = policy.after(failures);
            prop_assert!(delay <= policy.longest);
            prop_assert!(failures == 0 || delay >= policy.first);
            prop_assert!(policy.after(failures.saturating_add(1)) >= delay);
        }

        #[test]
        fn a_loop_has_the_delays_of_its_failures(tries in 1u32..40, factor in 10u32..100) {
            let policy = Backoff { factor, ..WATCH };
            let mut delays = policy.delays();
            for failures in 1..=tries {
                let (delay, longest) = (delays.next(), policy.after(failures));
                prop_assert!(delay >= longest / 2 && delay <= longest, "{:?} of {:?}", delay, longest);
            }
            let mut exact = Backoff { jitter: 0, ..policy }.delays();
            for failures in 1..=tries {
                prop_assert_eq!(exact.next(), policy.after(failures));
            }
        }
    }
}
