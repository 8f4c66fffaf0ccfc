//! What has arrived of images whose pulls were cut short, kept until they are pulled again or nobody seems to want them.
//!
//! To keep it is to hold the lock that a pull takes, too. So what is kept is offered all the time: a tart that waits for it, whoever has
//! started it, goes on with it, and holds nobody up who wants another image of the registry.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::future::join_all;
use tokio::time::sleep;
use tracing::{info, warn};

use super::lock;
use crate::names::full_name;
use crate::tart::{KeptPartial, Partial, Tart};

/// Twice as long as anybody waits before a pull is tried again.
const WANTED_FOR: Duration = Duration::from_mins(10);
const OFFER_INTERVAL: Duration = Duration::from_secs(1);
/// The commands that an agent starts with, and those that follow a pull which has failed, have come by until then; each would take what
/// it finds unlocked for garbage.
const FIRST_OFFER: Duration = Duration::from_secs(2);

/// All that is kept.
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

    /// Keeps what has arrived of an image, or goes on with it; false when nothing of it is there.
    pub(super) fn keep(&self, image: &str) -> bool {
        let (mut all, name) = (lock(&self.kept), full_name(image));
        if let Some(kept) = all.get_mut(&name).filter(|kept| kept.partial.is_there()) {
            kept.since = Instant::now();
            return true;
        }
        match self.tart.keep_partial(image) {
            Ok(Partial::Kept(partial)) => {
                info!(image, "what has arrived of the image is kept for the next try");
                all.insert(name, Kept { partial: Arc::new(partial), since: Instant::now() });
                true
            }
            Ok(Partial::UnderWay) => true,
            Ok(Partial::None) => false,
            Err(error) => {
                warn!(image, %error, "what has arrived of the image cannot be kept");
                true
            }
        }
    }

    /// Whether anything of an image is kept.
    pub(super) fn holds(&self, image: &str) -> bool {
        lock(&self.kept).contains_key(&full_name(image))
    }

    /// Whether somebody else is pulling an image at this moment.
    pub(super) fn is_under_way(&self, image: &str) -> bool {
        !self.holds(image) && matches!(self.tart.keep_partial(image), Ok(Partial::UnderWay))
    }

    /// Offers what is kept, and lets go of what nobody has come back for, for as long as it is polled.
    pub(super) async fn tend(self: Arc<Self>) {
        loop {
            sleep(OFFER_INTERVAL).await;
            lock(&self.kept).retain(|_, kept| kept.since.elapsed() < WANTED_FOR);
            self.offer(FIRST_OFFER).await;
        }
    }

    /// Offers what has been kept for so long.
    async fn offer(&self, least: Duration) {
        let ripe: Vec<_> = lock(&self.kept)
            .iter()
            .filter(|(_, kept)| kept.since.elapsed() >= least)
            .map(|(name, kept)| (name.clone(), kept.partial.clone()))
            .collect();
        join_all(ripe.into_iter().map(async |(name, partial)| {
            if !partial.offer().await {
                let mut all = lock(&self.kept);
                if all.get(&name).is_some_and(|kept| Arc::ptr_eq(&kept.partial, &partial)) {
                    all.remove(&name);
                }
            }
        }))
        .await;
    }

    /// Lets go of everything: room on the disk is more urgent. The next tart command removes it. Says whether there was anything.
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
    use std::fs;

    #[test]
    fn what_is_given_up_is_nobodys() {
        let home =
            tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap();
        let partials = PartialPulls::new(Tart::in_home("tart".as_ref(), home.path()));
        assert!(!partials.release_all(), "there was nothing");
        // The directory that tart makes of the name.
        fs::create_dir_all(home.path().join("tmp/96f9e1e039589c6300014201b0578d5a")).unwrap();
        let image = "registry.test:5000/macos:1";
        assert!(partials.keep(image) && partials.holds(image));
        assert!(partials.release_all() && !partials.holds(image));
        assert!(
            matches!(partials.tart.keep_partial(image), Ok(Partial::Kept(_))),
            "it is not locked any more"
        );
    }
}
