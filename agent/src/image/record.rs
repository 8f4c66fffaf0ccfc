//! Which images the agent itself has brought to this host, and when each was last of use. Nothing else is ever collected.
//!
//! A pull is written down before it begins, with what was there before it: so its result is known to be ours even when the agent
//! that began it is gone by then.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::tart::{ImageDigest, full_name};
use crate::vm::BaseName;

/// All that is known of this host's images.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ImageRecord {
    /// Pulls that are under way or were cut short, by the image's name.
    pulls: BTreeMap<String, PullRecord>,
    /// The images of which something was kept for the next pull, by name. Whoever makes one of them whole, it may be somebody else.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    partials: BTreeSet<String>,
    images: Vec<KnownImage>,
}

/// A pull as it was begun.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct PullRecord {
    /// The digests of its repository that were in the cache before: others have put them there, or the record says more.
    before: BTreeSet<String>,
    /// When it was last begun; absent once nobody is at it.
    #[serde(default)]
    begun_at: Option<Timestamp>,
}

/// An image that the agent has made a base VM of, or that it has pulled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownImage {
    /// Which one it is.
    pub digest: ImageDigest,
    /// The names that the agent has pulled it by. Without any it is somebody else's, and only its base VM is ours.
    pub names: BTreeSet<String>,
    /// The directory that it came into: another one is not what we have pulled, whatever its name.
    pub inode: Option<u64>,
    /// When it came.
    pub pulled_at: Timestamp,
    /// When a Pod last needed it.
    pub last_used_at: Timestamp,
}

/// An image that is in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Present {
    /// Which one it is.
    pub digest: ImageDigest,
    /// The directory that it is in.
    pub inode: u64,
}

impl KnownImage {
    /// Whether what is in the cache, in this directory, is what the agent has pulled.
    pub fn is_ours(&self, inode: Option<u64>) -> bool {
        !self.names.is_empty() && self.inode.is_some() && self.inode == inode
    }

    /// Its base VM, whether or not it was made.
    pub fn base(&self) -> BaseName {
        BaseName::of(&self.digest)
    }
}

impl ImageRecord {
    /// The images, in no order.
    pub fn images(&self) -> &[KnownImage] {
        &self.images
    }

    /// The names whose pulls have no end yet.
    pub fn pulls(&self) -> impl Iterator<Item = &str> {
        self.pulls.keys().map(String::as_str)
    }

    /// A pull is about to begin. One that was cut short counts from its own beginning.
    pub fn begin(&mut self, image: &str, before: impl IntoIterator<Item = String>, now: Timestamp) {
        let name = full_name(image);
        self.partials.remove(&name);
        let before = || PullRecord { before: before.into_iter().collect(), begun_at: None };
        self.pulls.entry(name).or_insert_with(before).begun_at = Some(now);
    }

    /// Nobody is at a pull any more: what it may have brought is there by now.
    pub fn abandon(&mut self, image: &str) {
        if let Some(pull) = self.pulls.get_mut(&full_name(image)) {
            pull.begun_at = None;
        }
    }

    /// Something of an image is kept for the next pull.
    pub fn keep_partial(&mut self, image: &str) {
        self.partials.insert(full_name(image));
    }

    /// Forgets what was kept of images, but for these; whether there was any.
    pub fn retain_partials(&mut self, is_kept: impl Fn(&str) -> bool) -> bool {
        let before = self.partials.len();
        self.partials.retain(|name| is_kept(name));
        self.partials.len() < before
    }

    /// Whether a pull that somebody else has begun may still bring an image: what was found is not new, and its time is not over.
    /// Who waits in line for a registry leaves no trace.
    pub fn may_come(
        &self,
        image: &str,
        found: Option<&Present>,
        limit: SignedDuration,
        now: Timestamp,
    ) -> bool {
        let Some(pull) = self.pulls.get(&full_name(image)) else { return false };
        let is_new = found.is_some_and(|found| !pull.before.contains(found.digest.hex()));
        !is_new && pull.begun_at.is_some_and(|begun_at| now.duration_since(begun_at) < limit)
    }

    /// What became of a pull: the image that its name stands for now, if any.
    ///
    /// `is_over` is false while another pull of the same name goes on, or may.
    pub fn settle(&mut self, image: &str, found: Option<&Present>, is_over: bool, now: Timestamp) {
        let name = full_name(image);
        let Some(pull) = self.pulls.get(&name) else { return };
        if let Some(found) = found {
            let is_new = !pull.before.contains(found.digest.hex());
            self.note(&name, found, is_new, now);
        }
        if is_over {
            self.pulls.remove(&name);
        }
    }

    fn note(&mut self, name: &str, found: &Present, is_new: bool, now: Timestamp) {
        // A name that has moved on is no longer the other image's.
        for image in self.images.iter_mut().filter(|image| image.digest != found.digest) {
            image.names.remove(name);
        }
        let inode = Some(found.inode);
        match self.images.iter_mut().find(|image| image.digest == found.digest) {
            Some(known) if is_new || known.is_ours(inode) => {
                known.names.insert(name.to_owned());
                known.inode = inode;
            }
            // Somebody has deleted ours, and then pulled it.
            Some(known) => known.names.clear(),
            None if is_new => self.images.push(KnownImage {
                digest: found.digest.clone(),
                names: BTreeSet::from([name.to_owned()]),
                inode,
                pulled_at: now,
                last_used_at: now,
            }),
            None => {}
        }
    }

    /// A Pod needs an image now.
    pub fn used(&mut self, digest: &ImageDigest, now: Timestamp) {
        match self.images.iter_mut().find(|image| image.digest == *digest) {
            Some(known) => known.last_used_at = known.last_used_at.max(now),
            None => self.images.push(KnownImage {
                digest: digest.clone(),
                names: BTreeSet::new(),
                inode: None,
                pulled_at: now,
                last_used_at: now,
            }),
        }
    }

    /// An image is gone, and its base VM with it.
    pub fn forget(&mut self, digest: &ImageDigest) {
        self.images.retain(|image| image.digest != *digest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn digest(digit: char) -> ImageDigest {
        ImageDigest::parse(&format!("r.test/macos@sha256:{}", digit.to_string().repeat(64))).unwrap()
    }

    fn hex(digit: char) -> String {
        digest(digit).hex().to_owned()
    }

    fn present(digit: char) -> Present {
        Present { digest: digest(digit), inode: u64::from(digit) }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn ours(record: &ImageRecord) -> Vec<(char, Vec<&str>)> {
        let names = |image: &KnownImage| -> Vec<char> { image.digest.hex().chars().take(1).collect() };
        record.images.iter().map(|i| (names(i)[0], i.names.iter().map(String::as_str).collect())).collect()
    }

    #[test]
    fn what_a_pull_has_brought_is_ours() {
        let mut record = ImageRecord::default();
        record.begin("r.test/macos", [hex('f')], at(0));
        assert_eq!(record.pulls().collect::<Vec<_>>(), ["r.test/macos:latest"]);
        record.settle("r.test/macos", Some(&present('a')), true, at(1));
        assert_eq!(ours(&record), [('a', vec!["r.test/macos:latest"])]);
        assert_eq!(record.pulls().count(), 0);
    }

    #[test]
    fn what_was_there_before_is_not() {
        let mut record = ImageRecord::default();
        record.begin("r.test/macos:1", [hex('a')], at(0));
        record.settle("r.test/macos:1", Some(&present('a')), true, at(1));
        assert_eq!(ours(&record), []);
        // Its base VM is.
        record.used(&digest('a'), at(2));
        assert_eq!(ours(&record), [('a', vec![])]);
        record.begin("r.test/macos:1", [hex('a')], at(0));
        record.settle("r.test/macos:1", Some(&present('a')), true, at(3));
        assert_eq!(ours(&record), [('a', vec![])]);
        // They have deleted it, and we have brought it back.
        record.begin("r.test/macos:1", [], at(0));
        record.settle("r.test/macos:1", Some(&present('a')), true, at(4));
        assert_eq!(ours(&record), [('a', vec!["r.test/macos:1"])]);
    }

    #[test]
    fn a_pull_that_was_cut_short_counts_from_its_beginning() {
        let mut record = ImageRecord::default();
        record.begin("r.test/macos:1", [], at(0));
        // The agent dies, tart goes on, and the next agent pulls again.
        record.begin("r.test/macos:1", [hex('a')], at(0));
        record.settle("r.test/macos:1", Some(&present('a')), true, at(1));
        assert_eq!(ours(&record), [('a', vec!["r.test/macos:1"])]);
    }

    #[test]
    fn a_pull_that_failed_leaves_nothing() {
        let mut record = ImageRecord::default();
        record.begin("r.test/macos:1", [], at(0));
        record.settle("r.test/macos:1", None, true, at(1));
        assert_eq!(record, ImageRecord::default());
    }

    #[test]
    fn a_pull_that_waits_in_line_may_come_until_its_time_is_over() {
        let mut record = ImageRecord::default();
        let limit = SignedDuration::from_secs(10);
        let may_come = |record: &ImageRecord, found: Option<char>, second| {
            record.may_come("r.test/macos:1", found.map(present).as_ref(), limit, at(second))
        };
        assert!(!may_come(&record, None, 0), "nobody has begun it");
        record.begin("r.test/macos:1", [hex('b')], at(0));
        assert!(may_come(&record, None, 9) && may_come(&record, Some('b'), 9));
        assert!(!may_come(&record, Some('a'), 9), "it has come");
        assert!(!may_come(&record, None, 10));
        record.begin("r.test/macos:1", [], at(5));
        assert!(may_come(&record, None, 10), "it was begun again");
        let old = r#"{"pulls": {"r.test/macos:1": {"before": []}}, "images": []}"#;
        assert!(!may_come(&serde_json::from_str(old).unwrap(), None, 0), "an older agent has not said when");
    }

    #[test]
    fn a_pull_that_nobody_is_at_brings_nothing_more() {
        let mut record = ImageRecord::default();
        record.begin("r.test/macos:1", [], at(0));
        record.abandon("r.test/macos:1");
        record.abandon("r.test/macos:never-begun");
        assert!(!record.may_come("r.test/macos:1", None, SignedDuration::from_secs(10), at(1)));
        // But what it has brought is ours.
        record.settle("r.test/macos:1", Some(&present('a')), true, at(1));
        assert_eq!(ours(&record), [('a', vec!["r.test/macos:1"])]);
    }

    #[test]
    fn what_is_kept_of_an_image_makes_nobody_its_owner() {
        let mut record = ImageRecord::default();
        record.begin("r.test/macos", [], at(0));
        record.settle("r.test/macos", None, true, at(1));
        record.keep_partial("r.test/macos");
        let text = serde_json::to_string(&record).unwrap();
        assert_eq!(serde_json::from_str::<ImageRecord>(&text).unwrap(), record);
        assert!(!record.retain_partials(|name| name == "r.test/macos:latest"), "it is there");
        // Somebody else has gone on with it.
        record.settle("r.test/macos", Some(&present('a')), true, at(2));
        assert_eq!(ours(&record), []);
        assert!(record.retain_partials(|_| false));
        record.keep_partial("r.test/macos");
        record.begin("r.test/macos", [hex('a')], at(3));
        record.settle("r.test/macos", Some(&present('a')), true, at(4));
        assert!(ours(&record).is_empty() && record == ImageRecord::default());
    }

    #[test]
    fn a_name_stands_for_one_image() {
        let mut record = ImageRecord::default();
        for (digit, before) in [('a', vec![]), ('b', vec![hex('a')])] {
            record.begin("r.test/macos:1", before, at(0));
            record.settle("r.test/macos:1", Some(&present(digit)), true, at(1));
        }
        assert_eq!(ours(&record), [('a', vec![]), ('b', vec!["r.test/macos:1"])]);
    }

    #[test]
    fn what_somebody_has_pulled_in_our_place_is_theirs() {
        let mut record = ImageRecord::default();
        record.begin("r.test/macos:1", [], at(0));
        record.settle("r.test/macos:1", Some(&present('a')), true, at(1));
        assert!(record.images[0].is_ours(Some(u64::from('a'))) && !record.images[0].is_ours(Some(1)));
        assert!(!record.images[0].is_ours(None));
        record.begin("r.test/macos:2", [hex('a')], at(0));
        record.settle("r.test/macos:2", Some(&Present { inode: 1, ..present('a') }), true, at(1));
        assert_eq!(ours(&record), [('a', vec![])]);
    }

    #[test]
    fn of_two_pulls_the_last_one_ends_it() {
        let mut record = ImageRecord::default();
        record.begin("r.test/macos:1", [], at(0));
        record.begin("r.test/macos:1", [], at(0));
        record.settle("r.test/macos:1", None, false, at(1));
        record.settle("r.test/macos:1", Some(&present('a')), true, at(2));
        assert_eq!(ours(&record), [('a', vec!["r.test/macos:1"])]);
    }

    #[test]
    fn it_is_read_as_it_was_written() {
        let mut record = ImageRecord::default();
        record.begin("r.test/macos:1", [hex('b')], at(0));
        record.settle("r.test/macos:1", Some(&present('a')), false, at(1));
        let text = serde_json::to_string(&record).unwrap();
        assert_eq!(serde_json::from_str::<ImageRecord>(&text).unwrap(), record);
    }

    proptest! {
        /// Whatever happens in whatever order, an image that was always there when a pull began never gets a name.
        #[test]
        fn an_image_of_others_stays_theirs(
            steps in proptest::collection::vec((0u8..4, 0u8..3, prop::char::range('a', 'd'), any::<bool>()), 0..40)
        ) {
            let mut record = ImageRecord::default();
            for (step, name, digit, flag) in steps {
                let name = format!("r.test/macos:{name}");
                match step {
                    0 => record.begin(&name, [hex('a')], at(0)),
                    1 => record.settle(&name, flag.then(|| present(digit)).as_ref(), flag, at(1)),
                    2 => record.used(&digest(digit), at(2)),
                    _ => record.forget(&digest(digit)),
                }
                let theirs = record.images.iter().find(|image| image.digest == digest('a'));
                prop_assert!(theirs.is_none_or(|image| image.names.is_empty()), "{:?}", record);
                let mut seen = BTreeSet::new();
                prop_assert!(record.images.iter().flat_map(|image| &image.names).all(|name| seen.insert(name)));
            }
        }
    }
}
