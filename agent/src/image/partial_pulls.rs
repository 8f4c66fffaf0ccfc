//! The partial downloads of pulls that were cut short. The agent keeps each until it is pulled again, or for ten minutes.
//!
//! The agent keeps one by holding the lock that a pull takes, too. So it offers each one every second: a tart that waits for it gets it,
//! and does not hold up pulls of other images of the registry.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::future::join_all;
use tokio::time::sleep;
use tracing::{info, warn};

use crate::mutex::lock;
use crate::names::full_name;
use crate::tart::{KeptPartial, Partial, Tart};

/// Twice as long as the longest back-off of a pull.
const WANTED_FOR: Duration = Duration::from_mins(10);
const OFFER_INTERVAL: Duration = Duration::from_secs(1);
/// By then, the tart commands of a starting agent or of a failed pull have ended; each would delete what it finds unlocked.
const FIRST_OFFER: Duration = Duration::from_secs(2);

/// The partial downloads that the agent keeps.
#[derive(Debug)]
pub(super) struct PartialPulls {
    tart: Tart,
    /// By the images' full names.
    kept: Mutex<HashMap<String, Kept>>,
}

#[derive(Debug)]
struct Kept {
    partial: Arc<KeptPartial>,
    since: Instant,
}

impl PartialPulls {
    pub(super) fn new(tart: Tart) -> Self {
        Self { tart, kept: Mutex::default() }
    }

    /// Keeps the partial download of an image, or keeps it for longer; false when there is none.
    pub(super) fn keep(&self, image: &str) -> bool {
        let (mut all, name) = (lock(&self.kept), full_name(image));
        if let Some(kept) = all.get_mut(&name).filter(|kept| kept.partial.exists()) {
            kept.since = Instant::now();
            return true;
        }
        match self.tart.keep_partial(image) {
            Ok(Partial::Kept(partial)) => {
                info!(image, "the partial download is kept for the next pull");
                all.insert(name, Kept { partial: Arc::new(partial), since: Instant::now() });
                true
            }
            Ok(Partial::UnderWay) => true,
            Ok(Partial::None) => false,
            Err(error) => {
                warn!(image, %error, "the partial download cannot be kept");
                true
            }
        }
    }

    pub(super) fn has(&self, image: &str) -> bool {
        lock(&self.kept).contains_key(&full_name(image))
    }

    /// Whether a tart is pulling an image.
    pub(super) fn is_under_way(&self, image: &str) -> bool {
        !self.has(image) && matches!(self.tart.keep_partial(image), Ok(Partial::UnderWay))
    }

    /// Offers the downloads, and releases those that were not pulled again, until it is dropped.
    pub(super) async fn run(self: Arc<Self>) {
        loop {
            sleep(OFFER_INTERVAL).await;
            lock(&self.kept).retain(|_, kept| kept.since.elapsed() < WANTED_FOR);
            self.offer(FIRST_OFFER).await;
        }
    }

    /// Offers the downloads that the agent has kept for so long.
    async fn offer(&self, least: Duration) {
        let offered: Vec<_> = lock(&self.kept)
            .iter()
            .filter(|(_, kept)| kept.since.elapsed() >= least)
            .map(|(name, kept)| (name.clone(), kept.partial.clone()))
            .collect();
        join_all(offered.into_iter().map(async |(name, partial)| {
            if !partial.offer().await {
                let mut all = lock(&self.kept);
                if all.get(&name).is_some_and(|kept| Arc::ptr_eq(&kept.partial, &partial)) {
                    all.remove(&name);
                }
            }
        }))
        .await;
    }

    /// Unlocks all downloads, so that the next tart command deletes them. Says whether there were any.
    pub(super) fn release_all(&self) -> bool {
        let mut all = lock(&self.kept);
        let was_any = !all.is_empty();
        all.clear();
        was_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use std::fs;

    #[test]
    fn released_downloads_are_unlocked() {
        let home = testing::dir();
        let partials = PartialPulls::new(Tart::in_home("tart".as_ref(), home.path()));
        assert!(!partials.release_all(), "there is none");
        // The directory that tart makes for the image below.
        fs::create_dir_all(home.path().join("tmp/96f9e1e039589c6300014201b0578d5a")).unwrap();
        let image = "registry.test:5000/macos:1";
        assert!(partials.keep(image) && partials.has(image));
        assert!(partials.release_all() && !partials.has(image));
        assert!(
            matches!(partials.tart.keep_partial(image), Ok(Partial::Kept(_))),
            "it is not locked any more"
        );
    }
}
