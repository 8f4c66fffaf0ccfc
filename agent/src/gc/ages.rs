//! How long nobody has touched something, by a clock that may jump.
//!
//! The time of a file is by the host's clock, which somebody can set. So that clock is asked once, when a time is seen first; from then on
//! the agent counts by itself.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

/// What was seen before.
#[derive(Debug, Default)]
pub(crate) struct Ages {
    seen: HashMap<String, Sight>,
}

#[derive(Debug, Clone, Copy)]
struct Sight {
    touched: SystemTime,
    age: Duration,
    at: Instant,
}

/// The time by both clocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Now {
    /// By the host's clock.
    pub(crate) wall: SystemTime,
    /// By one that never jumps.
    pub(crate) steady: Instant,
}

impl Now {
    /// Asks both clocks.
    pub(crate) fn ask() -> Self {
        Self { wall: SystemTime::now(), steady: Instant::now() }
    }
}

impl Ages {
    /// The age of something that was touched at a time. What is touched in the future is new.
    pub(crate) fn of(&mut self, name: &str, touched: SystemTime, now: Now) -> Duration {
        let known = self.seen.get(name).filter(|sight| sight.touched == touched);
        let sight = known.copied().unwrap_or_else(|| Sight {
            touched,
            age: now.wall.duration_since(touched).unwrap_or_default(),
            at: now.steady,
        });
        self.seen.insert(name.to_owned(), sight);
        sight.age + now.steady.duration_since(sight.at)
    }

    /// Forgets everything but this.
    pub(crate) fn retain(&mut self, is_there: impl Fn(&str) -> bool) {
        self.seen.retain(|name, _| is_there(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MINUTE: Duration = Duration::from_mins(1);

    #[test]
    fn a_clock_that_jumps_makes_nothing_older_or_younger() {
        let (wall, steady) = (SystemTime::now(), Instant::now());
        let mut ages = Ages::default();
        assert_eq!(ages.of("a", wall - MINUTE, Now { wall, steady }), MINUTE);
        let year = Duration::from_hours(24 * 365);
        for jumped in [wall + year, wall - year] {
            let now = Now { wall: jumped, steady: steady + MINUTE };
            assert_eq!(ages.of("a", wall - MINUTE, now), 2 * MINUTE);
        }
        // Touched again: only the wall can tell when, and it may be wrong.
        let touched = wall + year;
        assert_eq!(ages.of("a", touched, Now { wall, steady: steady + MINUTE }), Duration::ZERO);
        assert_eq!(ages.of("a", touched, Now { wall, steady: steady + 3 * MINUTE }), 2 * MINUTE);
        ages.retain(|_| false);
        assert_eq!(ages.of("a", touched, Now { wall, steady: steady + 3 * MINUTE }), Duration::ZERO);
    }

    proptest! {
        #[test]
        fn nothing_gets_old_faster_than_time_goes(jumps in prop::collection::vec((0_u64..1_000_000, 0_u64..600), 1..20)) {
            let (epoch, steady) = (SystemTime::UNIX_EPOCH, Instant::now());
            let touched = epoch + Duration::from_secs(500_000);
            let mut ages = Ages::default();
            let (mut before, mut went) = (None, Duration::ZERO);
            for (wall, passed) in jumps {
                went += Duration::from_secs(passed);
                let now = Now { wall: epoch + Duration::from_secs(wall), steady: steady + went };
                let age = ages.of("a", touched, now);
                if let Some(before) = before {
                    prop_assert_eq!(age, before + Duration::from_secs(passed));
                }
                before = Some(age);
            }
        }
    }
}
