//! The pulls that an earlier agent has started. Its tart may still run. If it does not, it is another program that brings the image from
//! then on.

use tokio::task::spawn_blocking;
use tracing::warn;

use super::ownership::ImageRecord;
use super::{ImageStore, PullStarter};
use crate::error_chain::chain;
use crate::mutex::lock;
use crate::state::StateDir;
use crate::tart::{OwnPulls, Tart};

impl ImageStore {
    /// Records the results of pulls that an earlier agent has started.
    pub(crate) async fn recover(&self) {
        let pulls = self.pulling();
        if pulls.iter().all(|image| self.is_pulling(image)) {
            return;
        }
        let tart = self.tart.clone();
        // Read the processes before the record is locked: a pull that starts meanwhile must not seem dead.
        if let Ok(Some(own)) = spawn_blocking(move || own_pulls(&tart)).await {
            let mut record = lock(&self.record);
            let is_dead = |image: &str| !own.has(image) && !self.is_pulling(image);
            abandon(&mut record, is_dead, &self.tart, &self.state);
        }
        for image in pulls {
            // The tart of an earlier agent may still pull it.
            if !self.is_pulling(&image)
                && !self.partials.is_under_way(&image)
                && let Err(error) = self.settle_pull(&image, PullStarter::AnotherProcess).await
            {
                warn!(
                    image,
                    error = chain(&error),
                    "cannot tell what a pull has brought; looking again later"
                );
            }
        }
    }
}

/// Abandons the pulls of a record that no tart of the agent runs any more.
pub(super) fn abandon_dead(record: &mut ImageRecord, tart: &Tart, state: &StateDir) {
    if record.pulls().next().is_some()
        && let Some(own) = own_pulls(tart)
    {
        abandon(record, |image| !own.has(image), tart, state);
    }
}

fn own_pulls(tart: &Tart) -> Option<OwnPulls> {
    let own = tart.own_pulls();
    own.inspect_err(|error| warn!(error = chain(error), "cannot tell which pulls are still under way")).ok()
}

fn abandon(record: &mut ImageRecord, is_dead: impl Fn(&str) -> bool, tart: &Tart, state: &StateDir) {
    let dead: Vec<String> = record.pulls().filter(|image| is_dead(image)).map(str::to_owned).collect();
    let mut is_changed = false;
    for image in dead {
        // If the disk does not answer, the agent's tart may have brought the image.
        match tart.cached_siblings(&image) {
            Ok(present) => is_changed |= record.abandon(&image, present),
            Err(error) => warn!(image, %error, "cannot see what a pull has brought"),
        }
    }
    if is_changed && let Err(error) = state.write_images(record) {
        warn!(error = chain(&error), "cannot write down which pulls have ended");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use jiff::Timestamp;
    use std::fs;

    #[test]
    fn a_pull_whose_tart_is_dead_is_abandoned() {
        let dir = testing::dir();
        let state = StateDir::open(&dir.path().join("state")).unwrap();
        let tart = Tart::in_home("tart".as_ref(), &dir.path().join("tart"));
        let begun = || {
            let mut record = ImageRecord::default();
            for image in ["r.test/macos:1", "r.test/other:1"] {
                record.begin(image, [], Timestamp::UNIX_EPOCH);
                record.mark_fetching(image);
            }
            record
        };
        let mut record = begun();
        let written = || state.images().unwrap();
        abandon(&mut record, |_| false, &tart, &state);
        assert_eq!((&record, written()), (&begun(), ImageRecord::default()), "all of them are under way");
        // One tart has brought its image before it ended.
        let image =
            dir.path().join("tart/cache/OCIs/r.test/other").join(format!("sha256:{}", "a".repeat(64)));
        fs::create_dir_all(&image).unwrap();
        abandon_dead(&mut record, &tart, &state);
        let mut expected = begun();
        expected.abandon("r.test/macos:1", []);
        expected.abandon("r.test/other:1", ["a".repeat(64)]);
        assert_eq!((&record, &written()), (&expected, &expected));
        assert!(record.mark_fetching("r.test/macos:1") && !record.mark_fetching("r.test/other:1"));
    }
}
