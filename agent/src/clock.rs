//! Time for decisions: a clock that never jumps, and the times of records as it counts them.
//!
//! The wall clock may be set at any moment, and a Mac that wakes up finds it hours ahead. So the agent and the shim measure with the
//! monotonic clock, and compare the time of a record with the wall clock once: when they first read it. A time in the future counts as
//! now. What users see, and what a certificate says, stays in wall time.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

/// The process knows this many times of records; a time that it has forgotten is compared with the wall clock once more.
const MOST: usize = 1000;

/// The beginning of this process's clock: the wall clock's time at its first use.
static BEGINNING: LazyLock<Moment> = LazyLock::new(Moment::now);
static RECORDS: LazyLock<Mutex<RecordTimes>> = LazyLock::new(Mutex::default);

/// The time by the clock that never jumps.
pub(crate) fn now() -> Timestamp {
    BEGINNING.wall.saturating_add(BEGINNING.steady.elapsed()).unwrap_or(Timestamp::MAX)
}

/// The time of a record by the clock that never jumps.
pub(crate) fn of_record(recorded: Timestamp) -> Timestamp {
    RECORDS.lock().unwrap_or_else(PoisonError::into_inner).of(recorded, Timestamp::now(), now())
}

/// The time by a clock that is never late: it moves with whichever clock moves more. On a Mac that slept, tokens have aged.
pub(crate) fn latest() -> Timestamp {
    static LATEST: LazyLock<Mutex<(Timestamp, Moment)>> =
        LazyLock::new(|| Mutex::new((Timestamp::now(), Moment::now())));
    let mut latest = LATEST.lock().unwrap_or_else(PoisonError::into_inner);
    let (time, last) = *latest;
    *latest = (time.saturating_add(last.longest_since()).unwrap_or(Timestamp::MAX), Moment::now());
    latest.0
}

/// The times of records as the clock counts them.
#[derive(Debug, Default)]
struct RecordTimes(HashMap<Timestamp, Timestamp>);

impl RecordTimes {
    /// The time of a record, which is as old as the wall clock says when it is first asked for.
    fn of(&mut self, recorded: Timestamp, wall: Timestamp, now: Timestamp) -> Timestamp {
        if let Some(known) = self.0.get(&recorded) {
            return *known;
        }
        if self.0.len() == MOST {
            self.0.clear();
        }
        let age = Duration::try_from(wall.duration_since(recorded)).unwrap_or_default();
        let time = now.saturating_sub(age).unwrap_or(Timestamp::MIN);
        self.0.insert(recorded, time);
        time
    }
}

/// One moment by both clocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    wall: Timestamp,
    steady: Instant,
}

impl Moment {
    pub(crate) fn now() -> Self {
        Self { wall: Timestamp::now(), steady: Instant::now() }
    }

    /// The time since, by the clock that counts more of it.
    fn longest_since(self) -> Duration {
        let wall = Timestamp::now().duration_since(self.wall);
        Duration::try_from(wall).unwrap_or_default().max(self.steady.elapsed())
    }

    /// A time that follows the wall clock, and never goes back from this one.
    pub(crate) fn forwards(self) -> Self {
        let steady = self.wall.saturating_add(self.steady.elapsed()).unwrap_or(Timestamp::MAX);
        Self { wall: Timestamp::now().max(steady), steady: Instant::now() }
    }

    /// The same moment, at this time of the wall clock or later.
    #[must_use]
    pub(crate) fn not_before(self, wall: Timestamp) -> Self {
        Self { wall: self.wall.max(wall), ..self }
    }

    pub(crate) fn wall(self) -> Timestamp {
        self.wall
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at;
    use proptest::prelude::*;

    #[test]
    fn a_record_is_compared_with_the_wall_clock_once() {
        let mut records = RecordTimes::default();
        assert_eq!(records.of(at(100), at(130), at(1000)), at(970), "30 s old");
        // The wall clock is set back by an hour, or ahead.
        assert_eq!(records.of(at(100), at(-3470), at(1010)), at(970));
        assert_eq!(records.of(at(100), at(9999), at(1020)), at(970));
        assert_eq!(records.of(at(5000), at(140), at(1020)), at(1020), "a time in the future counts as now");
        assert_eq!(records.of(at(5000), at(6000), at(1090)), at(1020));
    }

    #[test]
    fn a_moment_goes_forwards() {
        let seconds = Duration::from_secs;
        let before = Moment { wall: Timestamp::now() + seconds(3600), steady: Instant::now() - seconds(10) };
        let next = before.forwards();
        let passed = next.wall.duration_since(before.wall).as_secs();
        assert!((10..3600).contains(&passed), "the wall clock is an hour behind: {passed}");
        assert!(before.longest_since() >= seconds(10));
        let slept = Moment { wall: Timestamp::now() - seconds(3600), steady: Instant::now() };
        assert!(
            slept.longest_since() >= seconds(3600) && slept.forwards().wall >= slept.wall + seconds(3600)
        );
    }

    proptest! {
        #[test]
        fn the_time_of_a_record_never_changes_and_is_never_in_the_future(
            looks in proptest::collection::vec((0i64..10, -10_000i64..10_000), 1..50),
        ) {
            let mut records = RecordTimes::default();
            let mut first = HashMap::new();
            for (number, (record, wall)) in looks.into_iter().enumerate() {
                let now = at(50_000 + i64::try_from(number).unwrap());
                let time = records.of(at(record * 1000), at(wall), now);
                prop_assert!(time <= now);
                prop_assert_eq!(*first.entry(record).or_insert(time), time);
            }
        }
    }
}
