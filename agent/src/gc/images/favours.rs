//! For which images others have gone already. What was not enough then would not be enough after the next one either: all images would
//! go, one by one, for one that never fits.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::tart::PULL;

/// Who has not come back after this long no longer wants its image: longer than a pull takes, and the wait before the next one.
const WANTED_FOR: Duration = PULL.saturating_add(Duration::from_mins(10));

/// The images for which others have gone in vain, by name, and when each was last wanted.
#[derive(Debug, Default)]
pub(super) struct Favours(Mutex<HashMap<String, Instant>>);

impl Favours {
    /// Whether others have gone for an image that is still not here.
    pub(super) fn were_in_vain(&self, image: &str, now: Instant) -> bool {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, wanted_at| now.duration_since(*wanted_at) < WANTED_FOR);
        all.get_mut(image).map(|wanted_at| *wanted_at = now).is_some()
    }

    /// Others have gone for an image.
    pub(super) fn done(&self, image: &str, now: Instant) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(image.to_owned(), now);
    }

    /// An image is here: it was of use.
    pub(super) fn returned(&self, image: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(image);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_favour_is_done_once_until_it_was_of_use_or_is_forgotten() {
        let (favours, start) = (Favours::default(), Instant::now());
        assert!(!favours.were_in_vain("a", start));
        favours.done("a", start);
        assert!(favours.were_in_vain("a", start) && !favours.were_in_vain("b", start));
        favours.returned("a");
        assert!(!favours.were_in_vain("a", start), "it has fitted");
        favours.done("a", start);
        let later = start + WANTED_FOR.saturating_sub(Duration::from_secs(1));
        assert!(favours.were_in_vain("a", later));
        assert!(favours.were_in_vain("a", start + WANTED_FOR), "somebody still wants it");
        assert!(!favours.were_in_vain("a", start + 2 * WANTED_FOR));
        assert!(favours.0.lock().unwrap().is_empty(), "nothing is remembered for ever");
    }
}
