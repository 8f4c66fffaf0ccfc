//! The limit of an image that is pulled. What was deleted for it may have been small, so that the next deletion may be enough. But all
//! images would go, one by one, for one that never fits. So the next one goes later each time, and the user has time to act.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::backoff::IMAGE_GC_FOR_PULL;
use crate::mutex::lock;
use crate::tart::PULL;

/// An image that has not asked for so long is no longer wanted: longer than a pull, and the delay before the next one.
const WANTED_FOR: Duration = PULL.saturating_add(Duration::from_mins(10));

/// The images for which others were deleted and that are not here yet, by name.
#[derive(Debug, Default)]
pub(in crate::image::gc) struct ImageSpaceLimits(Mutex<HashMap<String, Deletions>>);

/// What was deleted for one image.
#[derive(Debug)]
struct Deletions {
    count: u32,
    last: Instant,
    /// When the image last asked for space.
    wanted_at: Instant,
}

impl ImageSpaceLimits {
    /// Whether others were deleted for an image a short while ago.
    pub(in crate::image::gc) fn is_too_early(&self, image: &str, now: Instant) -> bool {
        let mut all = lock(&self.0);
        all.retain(|_, deletions| now.duration_since(deletions.wanted_at) < WANTED_FOR);
        all.get_mut(image).is_some_and(|deletions| {
            deletions.wanted_at = now;
            now.duration_since(deletions.last) < IMAGE_GC_FOR_PULL.after(deletions.count)
        })
    }

    /// Others were deleted for an image.
    pub(in crate::image::gc) fn record(&self, image: &str, now: Instant) {
        let mut all = lock(&self.0);
        let count = all.get(image).map_or(0, |deletions| deletions.count).saturating_add(1);
        all.insert(image.to_owned(), Deletions { count, last: now, wanted_at: now });
    }

    /// An image is here.
    pub(in crate::image::gc) fn reset(&self, image: &str) {
        lock(&self.0).remove(image);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_mins(1);

    #[test]
    fn the_delay_doubles_until_the_image_is_here() {
        let (limits, start) = (ImageSpaceLimits::default(), Instant::now());
        assert!(!limits.is_too_early("a", start));
        let (mut at, mut delays) = (start, Vec::new());
        for _ in 0..7 {
            limits.record("a", at);
            assert!(!limits.is_too_early("b", at), "b is another image");
            let mut minutes = 0;
            while limits.is_too_early("a", at + MINUTE * minutes) {
                minutes += 1;
            }
            at += MINUTE * minutes;
            delays.push(minutes);
        }
        assert_eq!(delays, [2, 4, 8, 16, 32, 60, 60]);
        limits.reset("a");
        assert!(!limits.is_too_early("a", at), "the image is here");
        limits.record("a", at);
        assert!(!limits.is_too_early("a", at + MINUTE * 2), "the next deletion counts as the first one");
    }

    #[test]
    fn an_image_that_no_longer_asks_is_forgotten() {
        let (limits, start) = (ImageSpaceLimits::default(), Instant::now());
        let almost = WANTED_FOR.saturating_sub(Duration::from_secs(1));
        limits.record("a", start);
        limits.record("a", start);
        assert!(!limits.is_too_early("a", start + almost));
        assert!(!limits.is_too_early("b", start + almost * 2));
        assert_eq!(lock(&limits.0).len(), 1, "a has asked meanwhile");
        assert!(!limits.is_too_early("a", start + WANTED_FOR * 2));
        assert!(lock(&limits.0).is_empty());
    }
}
