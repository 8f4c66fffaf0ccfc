//! Times from a user's numbers: no number is too large.

use std::time::Duration;

use jiff::Timestamp;

/// The longest grace period that the agent counts with.
const LONGEST: Duration = Duration::from_hours(10 * 365 * 24);

/// A grace period; the API server fills it in, so an absent one means its default.
pub(crate) fn seconds(field: Option<i64>) -> Duration {
    Duration::from_secs(field.unwrap_or(30).try_into().unwrap_or(0)).min(LONGEST)
}

/// `time` plus `delay`, at most the latest time that can be represented.
pub(super) fn later(time: Timestamp, by: Duration) -> Timestamp {
    time.saturating_add(by).unwrap_or(Timestamp::MAX)
}

/// How long it is from one time to another; zero if that comes first.
pub(crate) fn between(start: Timestamp, end: Timestamp) -> Duration {
    Duration::try_from(end.duration_since(start)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_is_too_large() {
        let table =
            [(None, 30), (Some(0), 0), (Some(-1), 0), (Some(7), 7), (Some(i64::MAX), LONGEST.as_secs())];
        for (field, expected) in table {
            assert_eq!(seconds(field).as_secs(), expected, "{field:?}");
        }
        let start = Timestamp::UNIX_EPOCH;
        assert_eq!(later(start, Duration::from_secs(5)).as_second(), 5);
        for far in [Duration::from_secs(1_000_000_000_000), Duration::MAX] {
            assert_eq!(later(start, far), Timestamp::MAX);
            assert_eq!(later(Timestamp::MAX, far), Timestamp::MAX);
        }
    }
}
