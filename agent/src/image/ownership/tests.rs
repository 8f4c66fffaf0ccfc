//! Pulls of the agent and of other programs, by hand and by proptest.

use super::*;
use crate::testing::at;
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

/// A pull by a tart of the agent.
fn pull(record: &mut ImageRecord, image: &str, before: impl IntoIterator<Item = String>) {
    record.begin(image, before, at(0));
    record.mark_fetching(image);
}

fn named(record: &ImageRecord) -> Vec<(char, Vec<&str>)> {
    let names = |image: &KnownImage| -> Vec<char> { image.digest.hex().chars().take(1).collect() };
    record.images.iter().map(|i| (names(i)[0], i.names.iter().map(String::as_str).collect())).collect()
}

#[test]
fn the_record_of_every_release_is_read() {
    let mut record = ImageRecord::default();
    pull(&mut record, "r.test/macos:1", [hex('f')]);
    record.settle("r.test/macos:1", Some(&present('a')), true, at(1));
    record.grant(&digest('a'), Some(u64::from('a')), Some(&SecretUid("secret".to_owned())), at(2));
    record.mark_checked(&digest('a'), Some(u64::from('a')));
    record.used(&digest('b'), at(3));
    pull(&mut record, "r.test/macos:2", [hex('a')]);
    record.keep_partial("r.test/macos:3");
    record.mark_lost();
    crate::testing::is_read_and_written("images.json", &record);
}

#[test]
fn an_image_that_a_pull_has_brought_is_own() {
    let mut record = ImageRecord::default();
    pull(&mut record, "r.test/macos", [hex('f')]);
    assert_eq!(record.pulls().collect::<Vec<_>>(), ["r.test/macos:latest"]);
    record.settle("r.test/macos", Some(&present('a')), true, at(1));
    assert_eq!(named(&record), [('a', vec!["r.test/macos:latest"])]);
    assert_eq!(record.pulls().count(), 0);
}

#[test]
fn an_image_that_was_cached_before_the_pull_is_foreign() {
    let mut record = ImageRecord::default();
    record.begin("r.test/macos:1", [hex('a')], at(0));
    record.settle("r.test/macos:1", Some(&present('a')), true, at(1));
    assert_eq!(named(&record), []);
    // Its base VM is the agent's own.
    record.used(&digest('a'), at(2));
    assert_eq!(named(&record), [('a', vec![])]);
    record.begin("r.test/macos:1", [hex('a')], at(0));
    record.settle("r.test/macos:1", Some(&present('a')), true, at(3));
    assert_eq!(named(&record), [('a', vec![])]);
    // Another program has deleted it, and the agent has pulled it.
    pull(&mut record, "r.test/macos:1", []);
    record.settle("r.test/macos:1", Some(&present('a')), true, at(4));
    assert_eq!(named(&record), [('a', vec!["r.test/macos:1"])]);
}

#[test]
fn a_pull_that_was_cut_short_counts_from_its_first_start() {
    let mut record = ImageRecord::default();
    pull(&mut record, "r.test/macos:1", []);
    // The agent dies, tart goes on, and the next agent pulls again.
    record.begin("r.test/macos:1", [hex('a')], at(0));
    record.settle("r.test/macos:1", Some(&present('a')), true, at(1));
    assert_eq!(named(&record), [('a', vec!["r.test/macos:1"])]);
}

#[test]
fn a_pull_that_failed_leaves_nothing() {
    let mut record = ImageRecord::default();
    record.begin("r.test/macos:1", [], at(0));
    record.settle("r.test/macos:1", None, true, at(1));
    assert_eq!(record, ImageRecord::default());
}

#[test]
fn a_pull_may_bring_an_image_until_its_deadline() {
    let mut record = ImageRecord::default();
    let limit = SignedDuration::from_secs(10);
    let may_come = |record: &ImageRecord, found: Option<char>, second| {
        record.may_come("r.test/macos:1", found.map(present).as_ref(), limit, at(second))
    };
    assert!(!may_come(&record, None, 0), "no pull was started");
    record.begin("r.test/macos:1", [hex('b')], at(0));
    assert!(may_come(&record, None, 9) && may_come(&record, Some('b'), 9));
    assert!(!may_come(&record, Some('a'), 9), "it has come");
    assert!(!may_come(&record, None, 10));
    record.begin("r.test/macos:1", [], at(5));
    assert!(may_come(&record, None, 10), "it was started again");
    let old = r#"{"pulls": {"r.test/macos:1": {"before": []}}, "images": []}"#;
    assert!(!may_come(&serde_json::from_str(old).unwrap(), None, 0), "an older agent has not said when");
}

#[test]
fn an_image_that_comes_after_an_abandoned_pull_is_foreign() {
    for (brought, names) in [(vec![hex('a')], vec!["r.test/macos:1"]), (vec![hex('f')], vec![])] {
        let mut record = ImageRecord::default();
        pull(&mut record, "r.test/macos:1", [hex('f')]);
        record.abandon("r.test/macos:1", brought);
        record.abandon("r.test/macos:never-begun", []);
        assert!(!record.may_come("r.test/macos:1", None, SignedDuration::from_secs(10), at(1)));
        // What the pull has brought is own. What comes later is not, even if the next agent waits for it.
        record.begin("r.test/macos:1", [hex('a')], at(1));
        record.settle("r.test/macos:1", Some(&present('a')), true, at(2));
        record.used(&digest('a'), at(2));
        assert_eq!(named(&record), [('a', names)]);
    }
}

#[test]
fn an_image_that_comes_after_a_failed_pull_is_foreign() {
    for (brought, names) in [(None, vec![]), (Some(hex('a')), vec!["r.test/macos:1"])] {
        let mut record = ImageRecord::default();
        // One of two pulls fetches, and fails. The other one finds the image in the cache.
        pull(&mut record, "r.test/macos:1", [hex('f')]);
        record.begin("r.test/macos:1", [hex('f')], at(1));
        let is_changed =
            record.stop_fetching("r.test/macos:1", brought.clone().into_iter().chain([hex('f')]));
        assert_eq!(is_changed, brought.is_none());
        assert!(!record.stop_fetching("r.test/macos:1", brought.clone()), "the record changes once");
        assert!(record.may_come("r.test/macos:1", None, SignedDuration::from_secs(10), at(2)));
        record.settle("r.test/macos:1", Some(&present('a')), true, at(2));
        record.used(&digest('a'), at(2));
        assert_eq!(named(&record), [('a', names)]);
    }
    let mut record = ImageRecord::default();
    assert!(!record.stop_fetching("r.test/macos:1", []), "no pull was started");
    // The other one fetches the rest.
    pull(&mut record, "r.test/macos:1", []);
    record.stop_fetching("r.test/macos:1", []);
    pull(&mut record, "r.test/macos:1", []);
    record.settle("r.test/macos:1", Some(&present('a')), true, at(2));
    assert_eq!(named(&record), [('a', vec!["r.test/macos:1"])]);
}

#[test]
fn an_image_that_the_agents_tart_has_only_waited_for_is_foreign() {
    let mut record = ImageRecord::default();
    record.begin("r.test/macos:1", [], at(0));
    record.settle("r.test/macos:1", Some(&present('a')), true, at(1));
    assert_eq!(record, ImageRecord::default());
    assert!(!record.mark_fetching("r.test/macos:1"), "no pull was started");
    record.begin("r.test/macos:1", [], at(0));
    assert!(
        record.mark_fetching("r.test/macos:1") && !record.mark_fetching("r.test/macos:1"),
        "the record changes once"
    );
}

#[test]
fn a_kept_partial_download_makes_an_image_not_own() {
    let mut record = ImageRecord::default();
    record.begin("r.test/macos", [], at(0));
    record.settle("r.test/macos", None, true, at(1));
    record.keep_partial("r.test/macos");
    let text = serde_json::to_string(&record).unwrap();
    assert_eq!(serde_json::from_str::<ImageRecord>(&text).unwrap(), record);
    assert!(!record.retain_partials(|name| name == "r.test/macos:latest"), "it is there");
    // Another program has completed it.
    record.settle("r.test/macos", Some(&present('a')), true, at(2));
    assert_eq!(named(&record), []);
    assert!(record.retain_partials(|_| false));
    record.keep_partial("r.test/macos");
    record.begin("r.test/macos", [hex('a')], at(3));
    record.settle("r.test/macos", Some(&present('a')), true, at(4));
    assert!(named(&record).is_empty() && record == ImageRecord::default());
}

#[test]
fn a_name_stands_for_one_image() {
    let mut record = ImageRecord::default();
    for (digit, before) in [('a', vec![]), ('b', vec![hex('a')])] {
        pull(&mut record, "r.test/macos:1", before);
        record.settle("r.test/macos:1", Some(&present(digit)), true, at(1));
    }
    assert_eq!(named(&record), [('a', vec![]), ('b', vec!["r.test/macos:1"])]);
}

#[test]
fn an_image_that_another_program_has_deleted_and_pulled_is_foreign() {
    let mut record = ImageRecord::default();
    pull(&mut record, "r.test/macos:1", []);
    record.settle("r.test/macos:1", Some(&present('a')), true, at(1));
    assert!(record.images[0].is_own(Some(u64::from('a'))) && !record.images[0].is_own(Some(1)));
    assert!(!record.images[0].is_own(None));
    record.begin("r.test/macos:2", [hex('a')], at(0));
    record.settle("r.test/macos:2", Some(&Present { inode: 1, ..present('a') }), true, at(1));
    assert_eq!(named(&record), [('a', vec![])]);
}

#[test]
fn of_two_pulls_of_a_name_the_last_one_ends_it() {
    let mut record = ImageRecord::default();
    pull(&mut record, "r.test/macos:1", []);
    record.begin("r.test/macos:1", [], at(0));
    record.settle("r.test/macos:1", None, false, at(1));
    record.settle("r.test/macos:1", Some(&present('a')), true, at(2));
    assert_eq!(named(&record), [('a', vec!["r.test/macos:1"])]);
}

#[test]
fn times_in_the_future_are_set_to_now() {
    let mut record = ImageRecord::default();
    for (name, digit, second) in [("r.test/macos:1", 'a', 5), ("r.test/macos:2", 'b', 50)] {
        pull(&mut record, name, []);
        record.settle(name, Some(&present(digit)), true, at(second));
    }
    record.used(&digest('a'), at(60));
    assert!(record.correct_future_times(at(20)));
    let times = |record: &ImageRecord| -> Vec<_> {
        record.images.iter().map(|image| (image.pulled_at, image.last_used_at)).collect()
    };
    assert_eq!(times(&record), [(at(5), at(20)), (at(20), at(20))]);
    assert!(!record.correct_future_times(at(21)), "none is in the future any more");
    assert_eq!(times(&record), [(at(5), at(20)), (at(20), at(20))]);
}

#[test]
fn a_record_is_read_as_it_was_written() {
    let mut record = ImageRecord::default();
    pull(&mut record, "r.test/macos:1", [hex('b')]);
    record.settle("r.test/macos:1", Some(&present('a')), false, at(1));
    let text = serde_json::to_string(&record).unwrap();
    assert_eq!(serde_json::from_str::<ImageRecord>(&text).unwrap(), record);
}

proptest! {
    /// In any order of events, an image that was cached whenever a pull of the agent started, or that no tart of the agent fetched, never
    /// gets a name.
    #[test]
    fn a_foreign_image_stays_foreign(
        steps in proptest::collection::vec(
            (0u8..6, 0u8..4, prop::char::range('a', 'd'), any::<bool>(), any::<bool>()), 0..60
        )
    ) {
        let mut record = ImageRecord::default();
        for (step, tag, digit, flag, is_over) in steps {
            // The pull of this tag always waits for that of another program.
            let waits = tag == 0;
            let name = format!("r.test/macos:{tag}");
            // `a` is cached before every pull but that one.
            let before = (!waits).then(|| hex('a'));
            let found = flag.then(|| present(if waits { 'a' } else { digit }));
            match step {
                0 => record.begin(&name, before, at(0)),
                1 => record.settle(&name, found.as_ref(), is_over, at(1)),
                2 => record.used(&digest(digit), at(2)),
                3 if !waits => drop(record.mark_fetching(&name)),
                4 => drop(record.abandon(&name, flag.then(|| hex(digit)))),
                _ => record.forget(&digest(digit)),
            }
            let foreign = record.images.iter().find(|image| image.digest == digest('a'));
            prop_assert!(foreign.is_none_or(|image| image.names.is_empty()), "{:?}", record);
            let mut seen = BTreeSet::new();
            prop_assert!(record.images.iter().flat_map(|image| &image.names).all(|name| seen.insert(name)));
        }
    }
}

#[test]
fn a_private_image_is_for_the_secrets_that_its_registry_has_accepted() {
    let (mut record, secret) = (ImageRecord::default(), SecretUid("s".into()));
    let inode = |digit: char| Some(u64::from(digit));
    assert_eq!(record.access(&digest('a'), inode('a')), ImageAccess::Everyone, "it is foreign");
    pull(&mut record, "r.test/macos:1", [hex('f')]);
    assert_eq!(record.access(&digest('a'), inode('a')), ImageAccess::no_pod(), "it may just have come");
    assert_eq!(record.access(&digest('f'), inode('f')), ImageAccess::Everyone, "it was cached before");
    record.settle("r.test/macos:1", Some(&present('a')), true, at(1));
    assert_eq!(record.access(&digest('a'), inode('a')), ImageAccess::no_pod(), "no secret was granted");
    let inode = |digit: char| Some(u64::from(digit));
    assert!(record.grant(&digest('a'), inode('a'), Some(&secret), at(1)));
    assert!(!record.grant(&digest('b'), inode('b'), Some(&secret), at(1)));
    for here in [inode('a'), None] {
        assert_eq!(record.access(&digest('a'), here), ImageAccess::With(vec![secret.clone()]));
    }
    assert_eq!(
        record.access(&digest('a'), inode('b')),
        ImageAccess::Everyone,
        "the directory is foreign now"
    );
    // By another name it is the same image, with the same secrets.
    pull(&mut record, "r.test/macos:2", [hex('a')]);
    record.settle("r.test/macos:2", Some(&present('a')), true, at(2));
    assert!(record.access(&digest('a'), inode('a')).is_for([&secret]));
    // Its names lead to another image now. A Pod that knows its digest still needs a secret, also when a name leads back.
    for (name, digit) in [("r.test/macos:1", 'b'), ("r.test/macos:2", 'b'), ("r.test/macos:2", 'a')] {
        pull(&mut record, name, [hex('a')]);
        record.settle(name, Some(&present(digit)), true, at(3));
        assert_eq!(
            record.access(&digest('a'), inode('a')),
            ImageAccess::With(vec![secret.clone()]),
            "{name}"
        );
    }
    // It was deleted, and a tart of the agent has just brought it back.
    pull(&mut record, "r.test/macos:1", []);
    assert_eq!(record.access(&digest('a'), inode('c')), ImageAccess::no_pod());
}

#[test]
fn a_foreign_image_that_the_agent_pulls_again_is_no_longer_for_everyone() {
    let mut record = ImageRecord::default();
    record.used(&digest('a'), at(0));
    assert_eq!(record.access(&digest('a'), None), ImageAccess::Everyone);
    pull(&mut record, "r.test/macos:1", []);
    record.settle("r.test/macos:1", Some(&present('a')), true, at(1));
    assert_eq!(record.access(&digest('a'), Some(u64::from('a'))), ImageAccess::no_pod());
}

#[test]
fn after_a_lost_record_only_the_registry_gives_access() {
    let (secret, other) = (SecretUid("1".into()), SecretUid("2".into()));
    let mut record = ImageRecord::default();
    assert_eq!(record.access(&digest('a'), Some(1)), ImageAccess::Everyone, "another program has pulled it");
    assert!(record.mark_lost() && !record.mark_lost());
    let access = |record: &ImageRecord, inode| record.access(&digest('a'), inode);
    assert_eq!(access(&record, Some(1)), ImageAccess::no_pod(), "it may have been a private one");
    record.used(&digest('a'), at(0));
    assert_eq!(access(&record, Some(1)), ImageAccess::no_pod());
    assert!(record.grant(&digest('a'), Some(1), Some(&secret), at(1)));
    assert!(access(&record, Some(1)).is_for([&secret]) && !access(&record, Some(1)).is_for([&other]));
    assert!(!record.images[0].is_own(Some(1)), "the agent does not delete it");
    assert_eq!(access(&record, Some(2)), ImageAccess::no_pod(), "another program has pulled it again");
    let read: ImageRecord = serde_json::from_str(&serde_json::to_string(&record).unwrap()).unwrap();
    assert_eq!(read, record, "the next agent knows");
    assert!(record.grant(&digest('a'), Some(1), None, at(2)));
    assert_eq!(access(&record, Some(1)), ImageAccess::Everyone);
}

#[test]
fn content_is_checked_once_for_each_directory() {
    let mut record = ImageRecord::default();
    assert!(!record.mark_checked(&digest('a'), Some(1)), "it is not known");
    record.used(&digest('a'), at(0));
    assert!(!record.is_checked(&digest('a'), Some(1)) && !record.is_checked(&digest('a'), None));
    assert!(record.mark_checked(&digest('a'), Some(1)) && !record.mark_checked(&digest('a'), Some(1)));
    let record: ImageRecord = serde_json::from_str(&serde_json::to_string(&record).unwrap()).unwrap();
    assert!(record.is_checked(&digest('a'), Some(1)), "the next agent knows");
    assert!(!record.is_checked(&digest('a'), Some(2)), "it was pulled again");
    assert!(!record.is_checked(&digest('b'), Some(1)) && !record.is_checked(&digest('a'), None));
}
