//! What becomes of pulls that an earlier agent had begun. Its tart may still be at one; when it is not, whoever brings the image from then
//! on is somebody else.

use tokio::task::spawn_blocking;
use tracing::warn;

use super::ownership::ImageRecord;
use super::{Beginner, ImageStore, lock};
use crate::error_chain::chain;
use crate::state::StateDir;
use crate::tart::{OwnPulls, Tart};

impl ImageStore {
    /// Finds out what became of the pulls that an earlier agent had begun.
    pub(crate) async fn recover(&self) {
        let pulls = self.pulling();
        if pulls.iter().all(|image| self.is_flying(image)) {
            return;
        }
        let tart = self.tart.clone();
        // Only a look that has ended before the record is locked tells the dead from those that have begun since.
        if let Ok(Some(own)) = spawn_blocking(move || look(&tart)).await {
            let mut record = lock(&self.record);
            let is_dead = |image: &str| !own.has(image) && !self.is_flying(image);
            abandon(&mut record, is_dead, &self.tart, &self.state);
        }
        for image in pulls {
            // An earlier agent's tart may still be at it.
            if !self.is_flying(&image)
                && !self.partials.is_under_way(&image)
                && let Err(error) = self.settle_as(&image, Beginner::Another).await
            {
                warn!(image, error = chain(&error), "cannot tell what became of a pull; looking again later");
            }
        }
    }
}

/// Gives up the pulls of a record that no tart of ours is at any more.
pub(super) fn abandon_dead(record: &mut ImageRecord, tart: &Tart, state: &StateDir) {
    if record.pulls().next().is_some()
        && let Some(own) = look(tart)
    {
        abandon(record, |image| !own.has(image), tart, state);
    }
}

fn look(tart: &Tart) -> Option<OwnPulls> {
    let own = tart.own_pulls();
    own.inspect_err(|error| warn!(error = chain(error), "cannot tell which pulls are still under way")).ok()
}

fn abandon(record: &mut ImageRecord, is_dead: impl Fn(&str) -> bool, tart: &Tart, state: &StateDir) {
    let dead: Vec<String> = record.pulls().filter(|image| is_dead(image)).map(str::to_owned).collect();
    let mut is_news = false;
    for image in dead {
        // What cannot be seen may have been brought by ours.
        match tart.cached_siblings(&image) {
            Ok(present) => is_news |= record.abandon(&image, present),
            Err(error) => warn!(image, %error, "cannot see what a pull has brought"),
        }
    }
    if is_news && let Err(error) = state.write_images(record) {
        warn!(error = chain(&error), "cannot write down which pulls are over");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;
    use std::fs;

    #[test]
    fn a_pull_that_no_tart_is_at_brings_nothing_more() {
        let dir =
            tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap();
        let state = StateDir::open(&dir.path().join("state")).unwrap();
        let tart = Tart::in_home("tart".as_ref(), &dir.path().join("tart"));
        let begun = || {
            let mut record = ImageRecord::default();
            for image in ["r.test/macos:1", "r.test/other:1"] {
                record.begin(image, [], Timestamp::UNIX_EPOCH);
                record.fetch(image);
            }
            record
        };
        let mut record = begun();
        let written = || state.images().unwrap();
        abandon(&mut record, |_| false, &tart, &state);
        assert_eq!((&record, written()), (&begun(), ImageRecord::default()), "all of them are under way");
        // One has been brought before its tart was gone.
        let image =
            dir.path().join("tart/cache/OCIs/r.test/other").join(format!("sha256:{}", "a".repeat(64)));
        fs::create_dir_all(&image).unwrap();
        abandon_dead(&mut record, &tart, &state);
        let mut expected = begun();
        expected.abandon("r.test/macos:1", []);
        expected.abandon("r.test/other:1", ["a".repeat(64)]);
        assert_eq!((&record, &written()), (&expected, &expected));
        assert!(record.fetch("r.test/macos:1") && !record.fetch("r.test/other:1"));
    }
}
