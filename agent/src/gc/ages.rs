//! How long a file was not touched, although the host's clock may jump.
//!
//! The agent reads the host's clock once for each time of a file. From then on it uses a clock that never jumps.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

#[derive(Debug, Default)]
pub(crate) struct Ages {
    known: HashMap<String, KnownAge>,
}

#[derive(Debug, Clone, Copy)]
struct KnownAge {
    touched: SystemTime,
    age: Duration,
    at: Instant,
}

/// The time by both clocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Now {
    pub(crate) wall: SystemTime,
    /// By the clock that never jumps.
    pub(crate) steady: Instant,
}

impl Now {
    pub(crate) fn read() -> Self {
        Self { wall: SystemTime::now(), steady: Instant::now() }
    }
}

impl Ages {
    /// The age of a file that was touched at a time. A file that was touched in the future is new.
    pub(crate) fn of(&mut self, name: &str, touched: SystemTime, now: Now) -> Duration {
        let known = self.known.get(name).filter(|known| known.touched == touched);
        let known = known.copied().unwrap_or_else(|| KnownAge {
            touched,
            age: now.wall.duration_since(touched).unwrap_or_default(),
            at: now.steady,
        });
        self.known.insert(name.to_owned(), known);
        known.age + now.steady.duration_since(known.at)
    }

    /// Forgets all other files.
    pub(crate) fn retain(&mut self, is_there: impl Fn(&str) -> bool) {
        self.known.retain(|name, _| is_there(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MINUTE: Duration = Duration::from_mins(1);

    #[test]
    fn a_jump_of_the_clock_does_not_change_an_age() {
        let (wall, steady) = (SystemTime::now(), Instant::now());
        let mut ages = Ages::default();
        assert_eq!(ages.of("a", wall - MINUTE, Now { wall, steady }), MINUTE);
        let year = Duration::from_hours(24 * 365);
        for jumped in [wall + year, wall - year] {
            let now = Now { wall: jumped, steady: steady + MINUTE };
            assert_eq!(ages.of("a", wall - MINUTE, now), 2 * MINUTE);
        }
        // Touched again: only the host's clock can tell when, and it may be wrong.
        let touched = wall + year;
        assert_eq!(ages.of("a", touched, Now { wall, steady: steady + MINUTE }), Duration::ZERO);
        assert_eq!(ages.of("a", touched, Now { wall, steady: steady + 3 * MINUTE }), 2 * MINUTE);
        ages.retain(|_| false);
        assert_eq!(ages.of("a", touched, Now { wall, steady: steady + 3 * MINUTE }), Duration::ZERO);
    }

    proptest! {
        #[test]
        fn an_age_grows_as_fast_as_the_steady_clock(jumps in prop::collection::vec((0_u64..1_000_000, 0_u64..600), 1..20)) {
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
