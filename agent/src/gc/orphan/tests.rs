//! Worlds by hand and by chance.

use super::*;
use crate::names::Restart;
use proptest::prelude::*;

const MIN_AGE: Duration = Duration::from_mins(10);
const OLD: Duration = Duration::from_hours(1);

/// A UID that differs from others in its end only.
fn id(end: &str) -> String {
    format!("0b1c2d3e-0000-4000-8000-{end:0>12}")
}

fn uid(end: &str) -> PodUid {
    id(end).parse().unwrap()
}

/// The name of a VM of the Pod whose UID ends so.
fn vm(end: &str, restart: u32) -> String {
    VmName::new(uid(end), Restart(restart)).to_string()
}

fn orphan(name: &str) -> Vm {
    Vm { name: name.into(), holder: Ok(Holder::Nobody), lock: Ok(VmLock::Free), age: Ok(OLD) }
}

fn leftover(text: &str) -> Remains {
    Remains { uid: uid(text), holder: Ok(Holder::Nobody), age: Ok(OLD) }
}

fn world(vms: Vec<Vm>) -> OrphanObservation {
    OrphanObservation {
        vms: Ok(vms),
        remains: Ok(Vec::new()),
        pods: Ok(HashMap::new()),
        at_work: HashSet::new(),
        bases: Ok(HashSet::new()),
        cached: Ok(['0', 'a', 'f'].map(base).into()),
        min_age: MIN_AGE,
    }
}

fn base(digit: char) -> BaseName {
    format!("tk-base-{}", digit.to_string().repeat(32)).parse().unwrap()
}

fn bind(world: &mut OrphanObservation, text: &str) {
    let name = PodName { namespace: "default".into(), name: "same".into() };
    world.pods.as_mut().unwrap().insert(uid(text), name);
}

/// The names of what is to be deleted.
fn doomed(world: &OrphanObservation) -> Vec<String> {
    let verdicts = judge(world).into_iter();
    let deleted = verdicts.filter(|verdict| matches!(verdict.judgement, Judgement::Delete { .. }));
    deleted.map(|verdict| verdict.subject.to_string()).collect()
}

/// What keeps the first VM of a world, in one word.
fn kept(world: &OrphanObservation) -> &'static str {
    match &judge(world)[0].judgement {
        Judgement::Keep(guard) => guard.label(),
        Judgement::Delete { .. } => "",
    }
}

#[test]
fn every_guard_protects() {
    assert_eq!(kept(&world(vec![orphan(&vm("a", 0))])), "", "an orphan");
    let with = |change: fn(&mut Vm)| {
        let mut vm = orphan(&vm("a", 0));
        change(&mut vm);
        kept(&world(vec![vm]))
    };
    assert_eq!(with(|vm| vm.name = "builder".into()), "foreign");
    assert_eq!(with(|vm| vm.name = "tk-builder".into()), "foreign");
    assert_eq!(with(|vm| vm.name = "tk-builder-1".into()), "foreign");
    assert_eq!(with(|one| one.name = format!("{}0", vm("a", 0))), "foreign");
    assert_eq!(with(|vm| vm.holder = Ok(Holder::Shim)), "shim");
    assert_eq!(with(|vm| vm.holder = Ok(Holder::Tart)), "tart");
    assert_eq!(with(|vm| vm.holder = Err("no".into())), "unknown");
    assert_eq!(with(|vm| vm.lock = Ok(VmLock::Busy)), "tart");
    assert_eq!(with(|vm| vm.lock = Err("no".into())), "unknown");
    assert_eq!(with(|vm| vm.age = Ok(MIN_AGE.saturating_sub(Duration::from_nanos(1)))), "age");
    assert_eq!(with(|vm| vm.age = Err("no".into())), "unknown");

    let mut one = world(vec![orphan(&vm("a", 0))]);
    one.at_work.insert(uid("a"));
    assert_eq!(kept(&one), "worker");
    bind(&mut one, "a");
    assert_eq!(kept(&one), "pod");
    one.pods = Err("the API server is away".into());
    assert_eq!(kept(&one), "unknown");
}

#[test]
fn a_base_that_nobody_knows_is_an_orphan() {
    let name = base('0').to_string();
    let seen = world(vec![orphan(&name)]);
    assert_eq!(doomed(&seen), std::slice::from_ref(&name));
    assert_eq!(judge(&seen)[0].why(), "no image that the agent knows of has it, untouched for 60 min");
    let with = |change: fn(&mut OrphanObservation)| {
        let mut seen = seen.clone();
        change(&mut seen);
        kept(&seen)
    };
    let first = |seen: &mut OrphanObservation| seen.vms.as_mut().unwrap().remove(0);
    assert_eq!(with(|seen| seen.bases = Ok(HashSet::from([base('0')]))), "base");
    assert_eq!(with(|seen| seen.bases = Ok(HashSet::from([base('1')]))), "");
    assert_eq!(with(|seen| seen.bases = Err("no".into())), "unknown");
    assert_eq!(with(|seen| seen.cached = Ok(HashSet::from([base('1')]))), "base", "it may be the only copy");
    assert_eq!(with(|seen| seen.cached = Err("no".into())), "unknown");
    assert_eq!(with(|seen| seen.pods = Err("no".into())), "unknown");
    for (lock, guard) in [
        (Ok(VmLock::Runs), "tart"),
        (Ok(VmLock::Busy), "tart"),
        (Err("no".to_owned()), "unknown"),
        (Ok(VmLock::Free), ""),
    ] {
        let mut seen = seen.clone();
        let vm = Vm { lock, ..first(&mut seen) };
        assert_eq!(kept(&OrphanObservation { vms: Ok(vec![vm]), ..seen }), guard);
    }
    for (age, guard) in [(Ok(Duration::ZERO), "age"), (Err("no".to_owned()), "unknown")] {
        let mut seen = seen.clone();
        let vm = Vm { age, ..first(&mut seen) };
        assert_eq!(kept(&OrphanObservation { vms: Ok(vec![vm]), ..seen }), guard);
    }
    // Names that are nearly those of bases.
    for name in [format!("{name}0"), name[..name.len() - 1].to_owned(), name.replace('0', "G")] {
        assert_eq!(kept(&world(vec![orphan(&name)])), "foreign", "{name}");
    }
}

#[test]
fn bases_that_nobody_can_judge_keep_nothing_else() {
    let mut seen = world(vec![orphan(&base('0').to_string()), orphan(&vm("a", 0))]);
    (seen.bases, seen.cached) = (Err("no".into()), Err("no".into()));
    assert_eq!(doomed(&seen), [vm("a", 0)]);
    assert_eq!(seen.unknown(), Vec::<String>::new(), "and no pass fails for them");
}

#[test]
fn a_running_orphan_is_stopped_first_whoever_started_it() {
    for holder in [Holder::Nobody, Holder::Tart] {
        let vm = Vm { lock: Ok(VmLock::Runs), holder: Ok(holder), ..orphan(&vm("a", 0)) };
        let judgement = judge(&world(vec![vm]))[0].judgement.clone();
        assert_eq!(judgement, Judgement::Delete { runs: true, age: OLD });
    }
}

#[test]
fn names_that_begin_alike_are_told_apart() {
    let [short, long] = [format!("tk-{}-0", &id("a")[1..]), format!("tk-{}0-0", id("a"))];
    let ours = [vm("a", 0), vm("a", 1), vm("a", 10), vm("ab", 0)];
    let theirs = [short, long, format!("{}-0", vm("a", 0))];
    let mut seen = world(ours.iter().chain(&theirs).map(|name| orphan(name)).collect());
    bind(&mut seen, "a");
    assert_eq!(doomed(&seen), [vm("ab", 0)]);
}

#[test]
fn a_pod_that_was_made_again_under_its_name_does_not_keep_the_old_vm() {
    let mut seen = world(vec![orphan(&vm("01d", 0)), orphan(&vm("2e3", 0))]);
    bind(&mut seen, "2e3");
    assert_eq!(doomed(&seen), [vm("01d", 0)]);
}

#[test]
fn state_goes_after_the_vm() {
    let mut seen = world(vec![orphan(&vm("a", 3))]);
    seen.remains = Ok(vec![leftover("a"), leftover("b")]);
    assert_eq!(doomed(&seen), [vm("a", 3), id("b")]);
    seen.vms = Ok(Vec::new());
    assert_eq!(doomed(&seen), [id("a"), id("b")]);
    seen.vms = Err("tart is broken".into());
    assert_eq!(doomed(&seen), Vec::<String>::new());
}

#[test]
fn reasons_are_sentences() {
    let mut seen = world(vec![orphan(&vm("a", 0))]);
    bind(&mut seen, "a");
    assert_eq!(judge(&seen)[0].judgement.to_string(), "Pod default/same is on this Node");
    let young = Judgement::Keep(Guard::Young(Duration::from_mins(3)));
    assert_eq!(young.to_string(), "touched 3 min ago");
}

/// The ends of UIDs.
fn uids() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["a", "ab", "0", "1", "ba5e"]).prop_map(str::to_owned)
}

/// Names of VMs that are nearly ours.
fn theirs() -> Vec<String> {
    let alike = [
        format!("{}1", vm("a", 0)),
        format!("{}.old", vm("a", 0)),
        format!("x{}", vm("a", 0)),
        format!("{}-0", vm("a", 0)),
        vm("a", 0).to_uppercase().replace("TK-", "tk-"),
        format!("tk-{}", id("a")),
    ];
    let others = ["builder", "tk-", "tk-a", "tk-a-0", "tk-builder-1", "tk-sequoia-15", "sequoia"];
    alike.into_iter().chain(others.map(str::to_owned)).collect()
}

fn names() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => (uids(), 0_u32..3).prop_map(|(end, restart)| vm(&end, restart)),
        2 => prop::sample::select(theirs()),
        2 => prop::sample::select(vec!['0', 'a', 'f']).prop_map(|digit| base(digit).to_string()),
    ]
}

fn perhaps<T: std::fmt::Debug + Clone>(
    value: impl Strategy<Value = T>,
) -> impl Strategy<Value = Result<T, Unknown>> {
    prop_oneof![8 => value.prop_map(Ok), 1 => Just(Err("unknown".to_owned()))]
}

fn holders() -> impl Strategy<Value = Result<Holder, Unknown>> {
    perhaps(prop_oneof![4 => Just(Holder::Nobody), 1 => Just(Holder::Shim), 1 => Just(Holder::Tart)])
}

fn ages() -> impl Strategy<Value = Result<Duration, Unknown>> {
    perhaps((0_u64..2400).prop_map(Duration::from_secs))
}

prop_compose! {
    fn vms()(name in names(), holder in holders(), age in ages(), lock in perhaps(
        prop_oneof![4 => Just(VmLock::Free), 1 => Just(VmLock::Runs), 1 => Just(VmLock::Busy)]
    )) -> Vm {
        Vm { name, holder, lock, age }
    }
}

prop_compose! {
    fn remains()(text in uids(), holder in holders(), age in ages()) -> Remains {
        Remains { uid: uid(&text), holder, age }
    }
}

prop_compose! {
    /// Worlds of which all lists are known.
    fn known_worlds()(
        vms in prop::collection::vec(vms(), 0..8),
        remains in prop::collection::vec(remains(), 0..5),
        bound in prop::collection::vec(uids(), 0..4),
        at_work in prop::collection::vec(uids(), 0..2),
        bases in prop::sample::subsequence(vec!['0', 'a', 'f'], 0..3),
        cached in prop::sample::subsequence(vec!['0', 'a', 'f'], 1..=3),
    ) -> OrphanObservation {
        let name = |text: &String| PodName { namespace: "n".into(), name: text.clone() };
        OrphanObservation {
            vms: Ok(vms),
            remains: Ok(remains),
            pods: Ok(bound.iter().map(|text| (uid(text), name(text))).collect()),
            at_work: at_work.iter().map(|text| uid(text)).collect(),
            bases: Ok(bases.into_iter().map(base).collect()),
            cached: Ok(cached.into_iter().map(base).collect()),
            min_age: MIN_AGE,
        }
    }
}

/// Which lists fail: VMs, remains, Pods, bases, what is cached.
fn failures(likely: f64) -> impl Strategy<Value = [bool; 5]> {
    prop::array::uniform5(prop::bool::weighted(likely))
}

/// The same world, seen without some of its lists.
fn seen_without(
    world: &OrphanObservation,
    [vms, remains, pods, bases, cached]: [bool; 5],
) -> OrphanObservation {
    fn or<T>(list: Result<T, Unknown>, fails: bool) -> Result<T, Unknown> {
        if fails { Err("unknown".to_owned()) } else { list }
    }
    let OrphanObservation { at_work, min_age, .. } = world.clone();
    OrphanObservation {
        vms: or(world.vms.clone(), vms),
        remains: or(world.remains.clone(), remains),
        pods: or(world.pods.clone(), pods),
        bases: or(world.bases.clone(), bases),
        cached: or(world.cached.clone(), cached),
        at_work,
        min_age,
    }
}

fn worlds() -> impl Strategy<Value = OrphanObservation> {
    (known_worlds(), failures(0.1)).prop_map(|(world, fails)| seen_without(&world, fails))
}

/// Whether anything speaks for a VM, each guard looked at by itself.
fn is_protected(world: &OrphanObservation, vm: &Vm) -> bool {
    let is_young = vm.age.as_ref().map_or(true, |age| *age < world.min_age);
    if let Ok(base) = vm.name.parse::<BaseName>() {
        let is_needed = world.bases.as_ref().map_or(true, |bases| bases.contains(&base));
        let is_only_copy = world.cached.as_ref().map_or(true, |cached| !cached.contains(&base));
        return is_needed || is_only_copy || world.pods.is_err() || vm.lock != Ok(VmLock::Free) || is_young;
    }
    let Ok(name) = vm.name.parse::<VmName>() else { return true };
    let guards = [
        world.pods.as_ref().map_or(true, |pods| pods.contains_key(name.uid())),
        world.at_work.contains(name.uid()),
        !matches!(vm.holder, Ok(Holder::Nobody | Holder::Tart)),
        vm.holder == Ok(Holder::Tart) && vm.lock != Ok(VmLock::Runs),
        !matches!(vm.lock, Ok(VmLock::Free | VmLock::Runs)),
        is_young,
    ];
    guards.contains(&true)
}

/// The same for what a Pod has left.
fn is_needed(world: &OrphanObservation, remains: &Remains) -> bool {
    let is_of_pod = |vm: &Vm| vm.name.parse::<VmName>().is_ok_and(|name| *name.uid() == remains.uid);
    let guards = [
        world.pods.as_ref().map_or(true, |pods| pods.contains_key(&remains.uid)),
        world.at_work.contains(&remains.uid),
        remains.holder != Ok(Holder::Nobody),
        world.vms.as_ref().map_or(true, |vms| vms.iter().any(is_of_pod)),
        remains.age.as_ref().map_or(true, |age| *age < world.min_age),
    ];
    guards.contains(&true)
}

/// Does what was decided by what was seen of a world.
fn collect(world: &mut OrphanObservation, seen: &OrphanObservation) {
    let doomed = judge(seen).into_iter().filter(|one| matches!(one.judgement, Judgement::Delete { .. }));
    for verdict in doomed.collect::<Vec<_>>() {
        match verdict.subject {
            Subject::Vm(name) => world.vms.as_mut().unwrap().retain(|vm| vm.name != name.to_string()),
            Subject::Base(name) => world.vms.as_mut().unwrap().retain(|vm| vm.name != name.to_string()),
            Subject::Remains(uid) => world.remains.as_mut().unwrap().retain(|one| one.uid != uid),
            Subject::Other(name) => panic!("{name} is not ours"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn nothing_goes_that_any_guard_protects_and_every_orphan_does(world in worlds()) {
        let verdicts = judge(&world);
        let vms: Vec<&Vm> = world.vms.iter().flatten().collect();
        let remains: Vec<&Remains> = world.remains.iter().flatten().collect();
        prop_assert_eq!(verdicts.len(), vms.len() + remains.len(), "everything is judged");
        for (vm, verdict) in vms.iter().zip(&verdicts) {
            prop_assert_eq!(verdict.subject.to_string(), vm.name.clone());
            let goes = matches!(verdict.judgement, Judgement::Delete { .. });
            prop_assert_eq!(goes, !is_protected(&world, vm), "{:?} of {:?}", verdict, vm);
        }
        for (one, verdict) in remains.iter().zip(&verdicts[vms.len()..]) {
            let goes = matches!(verdict.judgement, Judgement::Delete { .. });
            prop_assert_eq!(goes, !is_needed(&world, one), "{:?} of {:?}", verdict, one);
        }
    }

    #[test]
    fn nothing_of_others_goes(mut seen in worlds(), name in prop::sample::select(theirs())) {
        seen.vms = seen.vms.map(|vms| vms.into_iter().chain([orphan(&name)]).collect());
        prop_assert!(!doomed(&seen).contains(&name));
    }

    #[test]
    fn a_list_that_fails_deletes_nothing(mut world in worlds(), which in 0..2) {
        if which == 0 { world.pods = Err("no".into()) } else { world.vms = Err("no".into()) }
        prop_assert_eq!(doomed(&world), Vec::<String>::new());
        prop_assert!(!world.unknown().is_empty());
    }

    /// Whatever lists fail in one pass: with all of them back, the VMs are gone after one more, and their state after another one.
    #[test]
    fn two_passes_after_one_that_failed_no_orphan_is_left(world in known_worlds(), fails in failures(0.5)) {
        let mut after = world.clone();
        collect(&mut after, &seen_without(&world, fails));
        for _ in 0..2 {
            let seen = after.clone();
            collect(&mut after, &seen);
        }
        for vm in after.vms.iter().flatten() {
            prop_assert!(is_protected(&after, vm), "{:?}", vm);
        }
        for one in after.remains.iter().flatten() {
            prop_assert!(is_needed(&after, one), "{:?}", one);
        }
        // And nothing else is gone.
        for vm in world.vms.iter().flatten().filter(|vm| is_protected(&world, vm)) {
            let same_name = |other: &&Vm| other.name == vm.name && !is_protected(&world, other);
            let has_twin = world.vms.iter().flatten().any(|other| same_name(&other));
            prop_assert!(has_twin || after.vms.iter().flatten().any(|other| other == vm), "{:?}", vm);
        }
    }

    #[test]
    fn what_is_found_out_later_never_dooms_what_was_protected_by_more(world in worlds()) {
        // Whatever more is known to be bound or at work, no more is deleted.
        let before: HashSet<String> = doomed(&world).into_iter().collect();
        let mut more = world;
        if let Ok(pods) = &mut more.pods {
            pods.insert(uid("a"), PodName { namespace: "n".into(), name: "a".into() });
        }
        more.at_work.insert(uid("ab"));
        prop_assert!(doomed(&more).iter().all(|name| before.contains(name)));
    }
}
