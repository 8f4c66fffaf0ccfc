//! For which images others have gone already. What was not enough may be so after the next one, if the first was small; but all images
//! would go, one by one, for one that never fits. So the next one goes later each time, and people have time to see to it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::tart::PULL;

/// Who has not come back after this long no longer wants its image: longer than a pull takes, and the wait before the next one.
const WANTED_FOR: Duration = PULL.saturating_add(Duration::from_mins(10));
/// How long nothing more goes for an image after the first favour; twice as long after each further one.
const FIRST_PAUSE: Duration = Duration::from_mins(2);
const LONGEST_PAUSE: Duration = Duration::from_hours(1);

/// The images for which others have gone, by name, and that are not here yet.
#[derive(Debug, Default)]
pub(super) struct RetryDelays(Mutex<HashMap<String, Favour>>);

#[derive(Debug)]
struct Favour {
    /// How often others have gone for it.
    times: u32,
    last: Instant,
    wanted_at: Instant,
}

impl RetryDelays {
    /// Whether others have gone for an image a short while ago.
    pub(super) fn are_too_early(&self, image: &str, now: Instant) -> bool {
        let mut all = self.lock();
        all.retain(|_, favour| now.duration_since(favour.wanted_at) < WANTED_FOR);
        all.get_mut(image).is_some_and(|favour| {
            favour.wanted_at = now;
            now.duration_since(favour.last) < pause_after(favour.times)
        })
    }

    /// Others have gone for an image.
    pub(super) fn done(&self, image: &str, now: Instant) {
        let mut all = self.lock();
        let times = all.get(image).map_or(0, |favour| favour.times).saturating_add(1);
        all.insert(image.to_owned(), Favour { times, last: now, wanted_at: now });
    }

    /// An image is here: it was of use.
    pub(super) fn returned(&self, image: &str) {
        self.lock().remove(image);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Favour>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn pause_after(times: u32) -> Duration {
    let factor = 2u32.saturating_pow(times.saturating_sub(1));
    FIRST_PAUSE.saturating_mul(factor).min(LONGEST_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_mins(1);

    #[test]
    fn a_favour_is_done_later_each_time_until_one_was_of_use() {
        let (favours, start) = (RetryDelays::default(), Instant::now());
        assert!(!favours.are_too_early("a", start));
        let (mut at, mut pauses) = (start, Vec::new());
        for _ in 0..7 {
            favours.done("a", at);
            assert!(!favours.are_too_early("b", at), "that is another one");
            let mut minutes = 0;
            while favours.are_too_early("a", at + MINUTE * minutes) {
                minutes += 1;
            }
            at += MINUTE * minutes;
            pauses.push(minutes);
        }
        assert_eq!(pauses, [2, 4, 8, 16, 32, 60, 60]);
        favours.returned("a");
        assert!(!favours.are_too_early("a", at), "it has fitted");
        favours.done("a", at);
        assert!(!favours.are_too_early("a", at + FIRST_PAUSE), "the next time is a first one again");
    }

    #[test]
    fn what_nobody_wants_any_more_is_forgotten() {
        let (favours, start) = (RetryDelays::default(), Instant::now());
        let almost = WANTED_FOR.saturating_sub(Duration::from_secs(1));
        favours.done("a", start);
        favours.done("a", start);
        assert!(!favours.are_too_early("a", start + almost));
        assert!(!favours.are_too_early("b", start + almost * 2));
        assert_eq!(favours.lock().len(), 1, "somebody has wanted it meanwhile");
        assert!(!favours.are_too_early("a", start + WANTED_FOR * 2));
        assert!(favours.lock().is_empty());
    }
}
