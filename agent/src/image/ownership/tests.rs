//! Pulls by hand and by chance, ours and theirs.

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

/// A pull by our own tart.
fn pull(record: &mut ImageRecord, image: &str, before: impl IntoIterator<Item = String>) {
    record.begin(image, before, at(0));
    record.fetch(image);
}

fn ours(record: &ImageRecord) -> Vec<(char, Vec<&str>)> {
    let names = |image: &KnownImage| -> Vec<char> { image.digest.hex().chars().take(1).collect() };
    record.images.iter().map(|i| (names(i)[0], i.names.iter().map(String::as_str).collect())).collect()
}

#[test]
fn what_a_pull_has_brought_is_ours() {
    let mut record = ImageRecord::default();
    pull(&mut record, "r.test/macos", [hex('f')]);
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
    pull(&mut record, "r.test/macos:1", []);
    record.settle("r.test/macos:1", Some(&present('a')), true, at(4));
    assert_eq!(ours(&record), [('a', vec!["r.test/macos:1"])]);
}

#[test]
fn a_pull_that_was_cut_short_counts_from_its_beginning() {
    let mut record = ImageRecord::default();
    pull(&mut record, "r.test/macos:1", []);
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
    for (brought, names) in [(vec![hex('a')], vec!["r.test/macos:1"]), (vec![hex('f')], vec![])] {
        let mut record = ImageRecord::default();
        pull(&mut record, "r.test/macos:1", [hex('f')]);
        record.abandon("r.test/macos:1", brought);
        record.abandon("r.test/macos:never-begun", []);
        assert!(!record.may_come("r.test/macos:1", None, SignedDuration::from_secs(10), at(1)));
        // What it has brought is ours; what comes after it is not, even for the next agent that waits for it.
        record.begin("r.test/macos:1", [hex('a')], at(1));
        record.settle("r.test/macos:1", Some(&present('a')), true, at(2));
        record.used(&digest('a'), at(2));
        assert_eq!(ours(&record), [('a', names)]);
    }
}

#[test]
fn what_comes_after_our_tart_has_failed_is_theirs() {
    for (brought, names) in [(None, vec![]), (Some(hex('a')), vec!["r.test/macos:1"])] {
        let mut record = ImageRecord::default();
        // One of two pulls is heard, and fails; the other one finds the image in the cache.
        pull(&mut record, "r.test/macos:1", [hex('f')]);
        record.begin("r.test/macos:1", [hex('f')], at(1));
        let is_news = record.fall_silent("r.test/macos:1", brought.clone().into_iter().chain([hex('f')]));
        assert_eq!(is_news, brought.is_none());
        assert!(!record.fall_silent("r.test/macos:1", brought.clone()), "it is news once");
        assert!(record.may_come("r.test/macos:1", None, SignedDuration::from_secs(10), at(2)));
        record.settle("r.test/macos:1", Some(&present('a')), true, at(2));
        record.used(&digest('a'), at(2));
        assert_eq!(ours(&record), [('a', names)]);
    }
    let mut record = ImageRecord::default();
    assert!(!record.fall_silent("r.test/macos:1", []), "nobody has begun it");
    // The other one fetches the rest.
    pull(&mut record, "r.test/macos:1", []);
    record.fall_silent("r.test/macos:1", []);
    pull(&mut record, "r.test/macos:1", []);
    record.settle("r.test/macos:1", Some(&present('a')), true, at(2));
    assert_eq!(ours(&record), [('a', vec!["r.test/macos:1"])]);
}

#[test]
fn what_our_tart_has_only_waited_for_is_theirs() {
    let mut record = ImageRecord::default();
    record.begin("r.test/macos:1", [], at(0));
    record.settle("r.test/macos:1", Some(&present('a')), true, at(1));
    assert_eq!(record, ImageRecord::default());
    assert!(!record.fetch("r.test/macos:1"), "nobody has begun it");
    record.begin("r.test/macos:1", [], at(0));
    assert!(record.fetch("r.test/macos:1") && !record.fetch("r.test/macos:1"), "it is news once");
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
        pull(&mut record, "r.test/macos:1", before);
        record.settle("r.test/macos:1", Some(&present(digit)), true, at(1));
    }
    assert_eq!(ours(&record), [('a', vec![]), ('b', vec!["r.test/macos:1"])]);
}

#[test]
fn what_somebody_has_pulled_in_our_place_is_theirs() {
    let mut record = ImageRecord::default();
    pull(&mut record, "r.test/macos:1", []);
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
    pull(&mut record, "r.test/macos:1", []);
    record.begin("r.test/macos:1", [], at(0));
    record.settle("r.test/macos:1", None, false, at(1));
    record.settle("r.test/macos:1", Some(&present('a')), true, at(2));
    assert_eq!(ours(&record), [('a', vec!["r.test/macos:1"])]);
}

#[test]
fn what_lies_in_the_future_is_now() {
    let mut record = ImageRecord::default();
    for (name, digit, second) in [("r.test/macos:1", 'a', 5), ("r.test/macos:2", 'b', 50)] {
        pull(&mut record, name, []);
        record.settle(name, Some(&present(digit)), true, at(second));
    }
    record.used(&digest('a'), at(60));
    assert!(record.set_clock_right(at(20)));
    let times = |record: &ImageRecord| -> Vec<_> {
        record.images.iter().map(|image| (image.pulled_at, image.last_used_at)).collect()
    };
    assert_eq!(times(&record), [(at(5), at(20)), (at(20), at(20))]);
    assert!(!record.set_clock_right(at(21)), "it is right by now");
    assert_eq!(times(&record), [(at(5), at(20)), (at(20), at(20))]);
}

#[test]
fn it_is_read_as_it_was_written() {
    let mut record = ImageRecord::default();
    pull(&mut record, "r.test/macos:1", [hex('b')]);
    record.settle("r.test/macos:1", Some(&present('a')), false, at(1));
    let text = serde_json::to_string(&record).unwrap();
    assert_eq!(serde_json::from_str::<ImageRecord>(&text).unwrap(), record);
}

proptest! {
    /// Whatever happens in whatever order, an image that was there whenever a pull of ours began, or that none of ours was heard to
    /// fetch, never gets a name.
    #[test]
    fn an_image_of_others_stays_theirs(
        steps in proptest::collection::vec(
            (0u8..6, 0u8..4, prop::char::range('a', 'd'), any::<bool>(), any::<bool>()), 0..60
        )
    ) {
        let mut record = ImageRecord::default();
        for (step, tag, digit, flag, is_over) in steps {
            // The pull of this one always waits for somebody else's, whatever it then finds.
            let waits = tag == 0;
            let name = format!("r.test/macos:{tag}");
            // What the others fetch is not there before; `a` is, unless it comes while somebody waits for it.
            let before = (!waits).then(|| hex('a'));
            let found = flag.then(|| present(if waits { 'a' } else { digit }));
            match step {
                0 => record.begin(&name, before, at(0)),
                1 => record.settle(&name, found.as_ref(), is_over, at(1)),
                2 => record.used(&digest(digit), at(2)),
                3 if !waits => drop(record.fetch(&name)),
                4 => drop(record.abandon(&name, flag.then(|| hex(digit)))),
                _ => record.forget(&digest(digit)),
            }
            let theirs = record.images.iter().find(|image| image.digest == digest('a'));
            prop_assert!(theirs.is_none_or(|image| image.names.is_empty()), "{:?}", record);
            let mut seen = BTreeSet::new();
            prop_assert!(record.images.iter().flat_map(|image| &image.names).all(|name| seen.insert(name)));
        }
    }
}

#[test]
fn a_private_image_is_for_those_whom_its_registry_has_let_have_it() {
    let (mut record, secret) = (ImageRecord::default(), SecretUid("s".into()));
    let inode = |digit: char| Some(u64::from(digit));
    assert_eq!(record.access(&digest('a'), inode('a')), ImageAccess::Everyone, "somebody has put it there");
    pull(&mut record, "r.test/macos:1", [hex('f')]);
    assert_eq!(record.access(&digest('a'), inode('a')), ImageAccess::nobody(), "it may just have come");
    assert_eq!(record.access(&digest('f'), inode('f')), ImageAccess::Everyone, "it was there before");
    record.settle("r.test/macos:1", Some(&present('a')), true, at(1));
    assert_eq!(
        record.access(&digest('a'), inode('a')),
        ImageAccess::nobody(),
        "nobody has said who pulled it"
    );
    assert!(record.grant(&digest('a'), Some(&secret)) && !record.grant(&digest('b'), Some(&secret)));
    for here in [inode('a'), None] {
        assert_eq!(record.access(&digest('a'), here), ImageAccess::With(vec![secret.clone()]));
    }
    assert_eq!(record.access(&digest('a'), inode('b')), ImageAccess::Everyone, "another one is there now");
    // By another name it is the same image, and whoever knew it before still does.
    pull(&mut record, "r.test/macos:2", [hex('a')]);
    record.settle("r.test/macos:2", Some(&present('a')), true, at(2));
    assert!(record.access(&digest('a'), inode('a')).is_for([&secret]));
    // Its names lead elsewhere now. Whoever knows its digest still has to show a secret, also when one leads back.
    for (name, digit) in [("r.test/macos:1", 'b'), ("r.test/macos:2", 'b'), ("r.test/macos:2", 'a')] {
        pull(&mut record, name, [hex('a')]);
        record.settle(name, Some(&present(digit)), true, at(3));
        assert_eq!(
            record.access(&digest('a'), inode('a')),
            ImageAccess::With(vec![secret.clone()]),
            "{name}"
        );
    }
    // It was deleted, and our own tart has just brought it back.
    pull(&mut record, "r.test/macos:1", []);
    assert_eq!(record.access(&digest('a'), inode('c')), ImageAccess::nobody());
}

#[test]
fn an_image_that_we_bring_after_others_is_no_longer_for_everyone() {
    let mut record = ImageRecord::default();
    record.used(&digest('a'), at(0));
    assert_eq!(record.access(&digest('a'), None), ImageAccess::Everyone);
    pull(&mut record, "r.test/macos:1", []);
    record.settle("r.test/macos:1", Some(&present('a')), true, at(1));
    assert_eq!(record.access(&digest('a'), Some(u64::from('a'))), ImageAccess::nobody());
}
