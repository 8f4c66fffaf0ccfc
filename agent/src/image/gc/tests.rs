use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::testing::at;

const LAST: ImageVerdict = ImageVerdict::Keep(ImageVerdictReason::Last);

fn digest(number: u64) -> ImageDigest {
    ImageDigest::parse(&format!("r.test/macos@sha256:{number:064x}")).unwrap()
}

fn image(number: u64, last_used: i64) -> Image {
    Image {
        digest: digest(number),
        pulled_at: at(0),
        last_used_at: at(last_used),
        has_base: true,
        need: Need::None,
    }
}

fn observation(images: Vec<Image>, available: u64, stage: PassStage) -> ImageGcObservation {
    ImageGcObservation {
        images,
        space: Some(Availability { available, total: 100 }),
        watermarks: Watermarks::new(85, 80).unwrap(),
        min_age: Duration::from_mins(2),
        stage,
        now: at(10_000),
    }
}

fn verdicts(observation: &ImageGcObservation) -> Vec<(u64, ImageVerdict)> {
    let number = |digest: &ImageDigest| u64::from_str_radix(&digest.hex()[48..], 16).unwrap();
    choose(observation).into_iter().map(|(digest, verdict)| (number(&digest), verdict)).collect()
}

#[test]
fn the_least_recently_used_go_first_and_one_stays() {
    let images = vec![image(1, 30), image(2, 10), image(3, 20)];
    let expected = [(2, ImageVerdict::Delete), (3, ImageVerdict::Delete), (1, LAST)];
    assert_eq!(verdicts(&observation(images, 15, PassStage::Routine)), expected);
}

#[test]
fn collection_begins_at_the_high_watermark_and_ends_at_the_low_one() {
    let goes = |available, stage| {
        let images = vec![image(1, 10), image(2, 20)];
        verdicts(&observation(images, available, stage))[0].1 == ImageVerdict::Delete
    };
    assert!(!goes(16, PassStage::Routine) && goes(15, PassStage::Routine) && goes(0, PassStage::Routine));
    assert!(goes(19, PassStage::Continued) && !goes(20, PassStage::Continued));
    assert!(goes(100, PassStage::Requested), "a requester has no room, whatever the volume says");
    let blind = |stage| {
        let observation =
            ImageGcObservation { space: None, ..observation(vec![image(1, 10), image(2, 20)], 0, stage) };
        verdicts(&observation)[0].1 == ImageVerdict::Delete
    };
    assert!(!blind(PassStage::Routine) && !blind(PassStage::Continued) && blind(PassStage::Requested));
}

#[test]
fn what_is_needed_stays_and_counts_as_the_one_that_stays() {
    for (need, reason) in [
        (Need::Vm, ImageVerdictReason::InUse),
        (Need::Start, ImageVerdictReason::Starting),
        (Need::Unknown, ImageVerdictReason::Unknown),
    ] {
        let images = vec![Image { need, ..image(1, 10) }, image(2, 20)];
        let expected = [(1, ImageVerdict::Keep(reason)), (2, ImageVerdict::Delete)];
        assert_eq!(verdicts(&observation(images, 0, PassStage::Requested)), expected);
    }
    let young = Image { pulled_at: at(9_881), ..image(1, 10) };
    let expected = [(1, ImageVerdict::Keep(ImageVerdictReason::Young))];
    assert_eq!(verdicts(&observation(vec![young], 0, PassStage::Requested)), expected);
}

#[test]
fn the_one_that_stays_is_one_to_clone_from() {
    let bare = |number, used| Image { has_base: false, ..image(number, used) };
    let images = vec![image(1, 10), bare(2, 20)];
    let expected = [(1, LAST), (2, ImageVerdict::Delete)];
    assert_eq!(verdicts(&observation(images, 0, PassStage::Requested)), expected);
    let images = vec![bare(1, 10), bare(2, 20)];
    let expected = [(1, ImageVerdict::Delete), (2, LAST)];
    assert_eq!(verdicts(&observation(images, 0, PassStage::Requested)), expected);
    assert_eq!(verdicts(&observation(Vec::new(), 0, PassStage::Requested)), []);
}

#[test]
fn watermarks_must_leave_something_to_do() {
    assert!(Watermarks::new(80, 80).is_err() && Watermarks::new(101, 80).is_err());
    let never = Watermarks::new(100, 80).unwrap();
    assert!(!never.is_high_reached(Availability { available: 0, total: 100 }));
}

fn any_need() -> impl Strategy<Value = Need> {
    prop_oneof![4 => Just(Need::None), 1 => Just(Need::Vm), 1 => Just(Need::Start), 1 => Just(Need::Unknown)]
}

prop_compose! {
    fn any_image()(
        number in 0u64..1000, pulled in 0i64..10_100, used in 0i64..10_100, has_base: bool, need in any_need(),
    ) -> Image {
        Image { digest: digest(number), pulled_at: at(pulled), last_used_at: at(used), has_base, need }
    }
}

fn any_stage() -> impl Strategy<Value = PassStage> {
    prop_oneof![Just(PassStage::Routine), Just(PassStage::Requested), Just(PassStage::Continued)]
}

prop_compose! {
    fn any_observation()(
        images in proptest::collection::vec(any_image(), 0..12),
        space in proptest::option::of((0u64..=200, 1u64..=200)),
        high in 1u8..=100,
        part in 0u8..100,
        stage in any_stage(),
    ) -> ImageGcObservation {
        let images: BTreeMap<_, _> = images.into_iter().map(|image| (image.digest.clone(), image)).collect();
        ImageGcObservation {
            images: images.into_values().collect(),
            space: space.map(|(available, total)| Availability { available: available.min(total), total }),
            watermarks: Watermarks::new(high, part % high).unwrap(),
            min_age: Duration::from_mins(2),
            stage,
            now: at(10_000),
        }
    }
}

proptest! {
    #[test]
    fn nothing_that_a_guard_protects_is_chosen(observation in any_observation()) {
        let chosen = choose(&observation);
        prop_assert_eq!(chosen.len(), observation.images.len());
        let of = |digest: &ImageDigest| observation.images.iter().find(|image| image.digest == *digest).unwrap();
        for (digest, _) in chosen.iter().filter(|(_, verdict)| *verdict == ImageVerdict::Delete) {
            prop_assert_eq!(of(digest).need, Need::None);
            prop_assert!(of(digest).pulled_at + observation.min_age <= observation.now);
        }
        let stays = |with_base: bool| chosen.iter().any(|(digest, verdict)| {
            *verdict != ImageVerdict::Delete && (of(digest).has_base || !with_base)
        });
        prop_assert!(chosen.is_empty() || stays(false));
        prop_assert!(stays(true) || !observation.images.iter().any(|image| image.has_base));
    }

    #[test]
    fn the_order_is_that_of_last_use(observation in any_observation()) {
        let of = |digest: &ImageDigest| observation.images.iter().find(|image| image.digest == *digest).unwrap();
        prop_assert!(choose(&observation).windows(2).all(|two| of(&two[0].0).last_used_at <= of(&two[1].0).last_used_at));
    }

    /// Deleting one by one, with a volume that gives back something, nothing, or less than expected each time, ends: with enough
    /// room, or with nothing left that may go.
    #[test]
    fn collection_ends(mut observation in any_observation(), gains in proptest::collection::vec(0u64..50, 12)) {
        observation.stage = PassStage::Requested;
        let mut gains = gains.into_iter();
        while let Some((digest, _)) = choose(&observation).into_iter().find(|(_, verdict)| *verdict == ImageVerdict::Delete) {
            observation.images.retain(|image| image.digest != digest);
            observation.stage = PassStage::Continued;
            let gain = gains.next().expect("no more deletions than images");
            observation.space = observation.space.map(|space| Availability { available: (space.available + gain).min(space.total), ..space });
        }
        let free = observation.space.is_none_or(|space| observation.watermarks.is_low_reached(space));
        let candidates = observation.images.iter().filter(|image| image.need == Need::None && image.pulled_at + observation.min_age <= observation.now);
        prop_assert!(free || observation.stage == PassStage::Requested || candidates.count() <= 1, "{:?}", observation);
    }

    #[test]
    fn a_new_use_never_makes_an_image_go(observation in any_observation(), index in 0usize..12) {
        prop_assume!(index < observation.images.len());
        let digest = observation.images[index].digest.clone();
        let verdict = |observation: &ImageGcObservation| choose(observation).into_iter().find(|(one, _)| *one == digest).unwrap().1;
        let before = verdict(&observation);
        let mut used = observation.clone();
        used.images[index].last_used_at = at(20_000);
        prop_assert!(!(before != ImageVerdict::Delete && verdict(&used) == ImageVerdict::Delete));
    }
}

#[test]
fn a_disk_is_short_with_little_left_or_a_small_part() {
    const GIB: u64 = 1 << 30;
    let table = [
        (0, 100, true),
        (19, 100, true),
        (20, 100, false),
        (41, 250, false),
        (37, 250, true),
        (150, 1000, true),
        (151, 1000, false),
        (300, 1000, false),
    ];
    for (available, total, short) in table {
        let space = Availability { available: available * GIB, total: total * GIB };
        assert_eq!(is_short(space), short, "{available} of {total} GiB");
    }
}
