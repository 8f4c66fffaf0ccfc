//! Which failures are tried again, and when.

use std::time::Duration;

use super::error::Reason;

/// How often and how fast a call is tried again.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RetryPolicy {
    /// How often a call is made at most.
    pub(crate) tries: u32,
    /// How long one try may take.
    pub(crate) timeout: Duration,
    /// The delay after the first failure. Each further one is twice as long.
    pub(crate) first: Duration,
    /// The longest delay. A longer `Retry-After` is not waited for: the caller comes back anyway.
    pub(crate) longest: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            tries: 4,
            timeout: Duration::from_secs(15),
            first: Duration::from_millis(500),
            longest: Duration::from_secs(10),
        }
    }
}

impl RetryPolicy {
    /// How long to wait before the next try; `None` if there is none. `random` is from 0 to 1.
    pub(super) fn delay(&self, reason: &Reason, tries: u32, random: f64) -> Option<Duration> {
        if tries >= self.tries {
            return None;
        }
        let doubled = self.first.saturating_mul(1 << tries.saturating_sub(1).min(16)).min(self.longest);
        // All calls that failed together come back at different times.
        let jittered = doubled.mul_f64(1.0 - random / 2.0);
        match reason {
            Reason::Throttled(Some(wait)) if *wait > self.longest => None,
            Reason::Throttled(Some(wait)) => Some((*wait).max(jittered)),
            Reason::Throttled(None) | Reason::Unavailable(_) | Reason::Timeout | Reason::Unreachable(_) => {
                Some(jittered)
            }
            Reason::TransientState(state) => is_short(state).then_some(jittered),
            Reason::NotFound | Reason::Refused { .. } | Reason::BadAnswer(_) => None,
        }
    }
}

/// Whether a server is in this state for seconds rather than for minutes.
fn is_short(state: &str) -> bool {
    matches!(state, "updating" | "locking" | "unlocking" | "busy")
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use proptest::prelude::*;

    use super::*;

    const POLICY: RetryPolicy = RetryPolicy {
        tries: 4,
        timeout: Duration::from_secs(15),
        first: Duration::from_millis(500),
        longest: Duration::from_secs(10),
    };

    #[test]
    fn failures_that_pass_are_tried_again() {
        let unavailable = Reason::Unavailable(StatusCode::BAD_GATEWAY);
        let refused =
            Reason::Refused { status: StatusCode::FORBIDDEN, kind: String::new(), message: String::new() };
        let transient = |state: &str| Reason::TransientState(state.to_owned());
        for (reason, is_tried) in [
            (unavailable, true),
            (Reason::Throttled(None), true),
            (Reason::Timeout, true),
            (Reason::Unreachable(String::new()), true),
            (transient("updating"), true),
            (transient("reinstalling"), false),
            (Reason::NotFound, false),
            (refused, false),
            (Reason::BadAnswer(String::new()), false),
        ] {
            assert_eq!(POLICY.delay(&reason, 1, 0.5).is_some(), is_tried, "{reason:?}");
            assert_eq!(POLICY.delay(&reason, 4, 0.5), None, "{reason:?}");
        }
    }

    #[test]
    fn scaleways_own_delay_is_kept_unless_it_is_long() {
        let after = |seconds| {
            POLICY
                .delay(&Reason::Throttled(Some(Duration::from_secs(seconds))), 1, 0.0)
                .map(|d| d.as_millis())
        };
        assert_eq!(after(0), Some(500));
        assert_eq!(after(7), Some(7000));
        assert_eq!(after(11), None);
    }

    proptest! {
        #[test]
        fn a_delay_is_never_longer_than_the_longest(tries in 0u32..100, random in 0.0f64..=1.0) {
            let policy = RetryPolicy { tries: 1000, ..POLICY };
            let delay = policy.delay(&Reason::Timeout, tries, random).unwrap();
            prop_assert!(delay <= policy.longest && delay >= policy.first / 2);
        }
    }
}
