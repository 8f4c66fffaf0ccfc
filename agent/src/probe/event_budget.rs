//! How many Events a container's probes may write: a burst, then one every five minutes. The kubelet's Event recorder allows as much for
//! one object.

use std::time::Duration;

use jiff::Timestamp;

const BURST: u32 = 25;
const REFILL: Duration = Duration::from_mins(5);

/// The Events that may still be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EventBudget {
    left: u32,
    refilled_at: Timestamp,
}

impl EventBudget {
    pub(super) fn new(now: Timestamp) -> Self {
        Self { left: BURST, refilled_at: now }
    }

    /// Whether one more may be written now.
    pub(super) fn spend(&mut self, now: Timestamp) -> bool {
        while self.left < BURST && self.refilled_at + REFILL <= now {
            self.left += 1;
            self.refilled_at += REFILL;
        }
        if self.left == BURST {
            self.refilled_at = now;
        }
        let allowed = self.left > 0;
        self.left = self.left.saturating_sub(1);
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_and_then_one_every_five_minutes() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut budget = EventBudget::new(at(0));
        let allowed = (0..1000).filter(|second| budget.spend(at(*second))).count();
        assert_eq!(allowed, 25 + 3, "the burst, and one at 300, 600 and 900");
        assert!(budget.spend(at(100_000)));
        let again = (0..30).filter(|_| budget.spend(at(100_000))).count();
        assert_eq!(again, 24, "after a long silence the burst is back");
    }
}
