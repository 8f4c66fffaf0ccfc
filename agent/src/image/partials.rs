//! What has arrived of images whose pulls were cut short, kept until they are pulled again or nobody seems to want them.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fs::File;
use std::future::pending;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tokio::time::sleep;
use tracing::{info, warn};

use super::lock;
use crate::tart::{Partial, Tart, full_name};

/// Twice as long as anybody waits before a pull is tried again.
const WANTED_FOR: Duration = Duration::from_mins(10);
/// Long enough for whoever waits for a lock to have it.
const INSTANT: Duration = Duration::from_millis(1);
const OFFER_INTERVAL: Duration = Duration::from_millis(200);
/// The commands that an agent starts with have come by until then; each would take what it finds unlocked for garbage.
const FIRST_OFFER: Duration = Duration::from_secs(2);

/// All that is kept.
#[derive(Debug)]
pub(super) struct Partials {
    tart: Tart,
    /// By the images' full names.
    kept: Mutex<HashMap<String, Kept>>,
}

#[derive(Debug)]
struct Kept {
    /// Locked.
    dir: File,
    since: Instant,
}

impl Partials {
    pub(super) fn new(tart: Tart) -> Self {
        Self { tart, kept: Mutex::default() }
    }

    /// Keeps what has arrived of an image, if anything has.
    pub(super) fn keep(&self, image: &str) {
        match self.tart.keep_partial(image) {
            Ok(Partial::Kept(dir)) => {
                info!(image, "what has arrived of the image is kept for the next try");
                lock(&self.kept).insert(full_name(image), Kept { dir, since: Instant::now() });
            }
            Ok(Partial::None | Partial::UnderWay) => {}
            Err(error) => warn!(image, %error, "what has arrived of the image cannot be kept"),
        }
    }

    /// Whether somebody else is pulling an image at this moment.
    pub(super) fn is_under_way(&self, image: &str) -> bool {
        let is_kept = lock(&self.kept).contains_key(&full_name(image));
        !is_kept && matches!(self.tart.keep_partial(image), Ok(Partial::UnderWay))
    }

    /// Hands over what has arrived of an image to the tart that pulls it now, which waits for it once it knows the manifest. Until then
    /// others may come by, so it is let go for no longer than an instant at a time. Never ends: it goes on for as long as the pull.
    pub(super) async fn hand_over(&self, image: &str) -> Infallible {
        let kept = lock(&self.kept).remove(&full_name(image));
        if let Some(Kept { dir, .. }) = kept {
            sleep(FIRST_OFFER).await;
            while dir.unlock().is_ok() {
                sleep(INSTANT).await;
                if dir.try_lock().is_err() {
                    break;
                }
                sleep(OFFER_INTERVAL).await;
            }
        }
        pending().await
    }

    /// Lets go of everything: room on the disk is more urgent. The next tart command removes it.
    pub(super) fn release_all(&self) {
        lock(&self.kept).clear();
    }

    /// Lets go of what nobody has come back for.
    pub(super) fn tidy(&self) {
        lock(&self.kept).retain(|_, kept| kept.since.elapsed() < WANTED_FOR);
    }
}
