//! Observations by hand and by proptest.

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

fn orphan(name: &str) -> ObservedVm {
    ObservedVm { name: name.into(), holder: Ok(Holder::None), lock: Ok(VmLock::Free), age: Ok(OLD) }
}

fn old_pod_dir(text: &str) -> ObservedPodDir {
    ObservedPodDir { uid: uid(text), holder: Ok(Holder::None), age: Ok(OLD) }
}

fn observation(vms: Vec<ObservedVm>) -> OrphanObservation {
    OrphanObservation {
        vms: Ok(vms),
        pod_dirs: Ok(Vec::new()),
        pods: Ok(HashMap::new()),
        active: HashSet::new(),
        bases: Ok(HashSet::new()),
        cached: Ok(['0', 'a', 'f'].map(base).into()),
        min_age: MIN_AGE,
    }
}

fn base(digit: char) -> BaseName {
    format!("tk-base-{}", digit.to_string().repeat(32)).parse().unwrap()
}

fn bind(observation: &mut OrphanObservation, text: &str) {
    let name = PodName { namespace: "default".into(), name: "same".into() };
    observation.pods.as_mut().unwrap().insert(uid(text), name);
}

/// The names of the subjects that are deleted.
fn deleted(observation: &OrphanObservation) -> Vec<String> {
    let verdicts = judge(observation).into_iter();
    let deleted = verdicts.filter(|judged| judged.verdict.action() == GcAction::Delete);
    deleted.map(|judged| judged.subject.to_string()).collect()
}

/// The label that keeps the first VM; empty when it is deleted.
fn kept(observation: &OrphanObservation) -> &'static str {
    judge(observation)[0].verdict.keep_label().map_or("", KeepLabel::as_str)
}

#[test]
fn every_reason_keeps_a_vm() {
    assert_eq!(kept(&observation(vec![orphan(&vm("a", 0))])), "", "an orphan");
    let with = |change: fn(&mut ObservedVm)| {
        let mut vm = orphan(&vm("a", 0));
        change(&mut vm);
        kept(&observation(vec![vm]))
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

    let mut one = observation(vec![orphan(&vm("a", 0))]);
    one.active.insert(uid("a"));
    assert_eq!(kept(&one), "worker");
    bind(&mut one, "a");
    assert_eq!(kept(&one), "pod");
    one.pods = Err("the API server is away".into());
    assert_eq!(kept(&one), "unknown");
}

#[test]
fn a_base_vm_that_no_image_needs_is_deleted() {
    let name = base('0').to_string();
    let seen = observation(vec![orphan(&name)]);
    assert_eq!(deleted(&seen), std::slice::from_ref(&name));
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
    for (lock, reason) in [
        (Ok(VmLock::Runs), "tart"),
        (Ok(VmLock::Busy), "tart"),
        (Err("no".to_owned()), "unknown"),
        (Ok(VmLock::Free), ""),
    ] {
        let mut seen = seen.clone();
        let vm = ObservedVm { lock, ..first(&mut seen) };
        assert_eq!(kept(&OrphanObservation { vms: Ok(vec![vm]), ..seen }), reason);
    }
    for (age, reason) in [(Ok(Duration::ZERO), "age"), (Err("no".to_owned()), "unknown")] {
        let mut seen = seen.clone();
        let vm = ObservedVm { age, ..first(&mut seen) };
        assert_eq!(kept(&OrphanObservation { vms: Ok(vec![vm]), ..seen }), reason);
    }
    // Names that are nearly those of bases.
    for name in [format!("{name}0"), name[..name.len() - 1].to_owned(), name.replace('0', "G")] {
        assert_eq!(kept(&observation(vec![orphan(&name)])), "foreign", "{name}");
    }
}

#[test]
fn unknown_base_vms_keep_no_other_vm() {
    let mut seen = observation(vec![orphan(&base('0').to_string()), orphan(&vm("a", 0))]);
    (seen.bases, seen.cached) = (Err("no".into()), Err("no".into()));
    assert_eq!(deleted(&seen), [vm("a", 0)]);
    assert_eq!(seen.unknown(), Vec::<String>::new(), "and no pass fails for them");
}

#[test]
fn a_running_orphan_is_stopped_first() {
    for holder in [Holder::None, Holder::Tart] {
        let vm = ObservedVm { lock: Ok(VmLock::Runs), holder: Ok(holder), ..orphan(&vm("a", 0)) };
        let verdict = judge(&observation(vec![vm]))[0].verdict.clone();
        assert_eq!(verdict, OrphanVerdict::Delete { runs: true, age: OLD });
    }
}

#[test]
fn names_that_begin_alike_are_told_apart() {
    let [short, long] = [format!("tk-{}-0", &id("a")[1..]), format!("tk-{}0-0", id("a"))];
    let own = [vm("a", 0), vm("a", 1), vm("a", 10), vm("ab", 0)];
    let foreign = [short, long, format!("{}-0", vm("a", 0))];
    let mut seen = observation(own.iter().chain(&foreign).map(|name| orphan(name)).collect());
    bind(&mut seen, "a");
    assert_eq!(deleted(&seen), [vm("ab", 0)]);
}

#[test]
fn a_new_pod_of_the_same_name_does_not_keep_the_old_vm() {
    let mut seen = observation(vec![orphan(&vm("01d", 0)), orphan(&vm("2e3", 0))]);
    bind(&mut seen, "2e3");
    assert_eq!(deleted(&seen), [vm("01d", 0)]);
}

#[test]
fn a_state_directory_is_deleted_after_its_vm() {
    let mut seen = observation(vec![orphan(&vm("a", 3))]);
    seen.pod_dirs = Ok(vec![old_pod_dir("a"), old_pod_dir("b")]);
    assert_eq!(deleted(&seen), [vm("a", 3), id("b")]);
    seen.vms = Ok(Vec::new());
    assert_eq!(deleted(&seen), [id("a"), id("b")]);
    seen.vms = Err("tart is broken".into());
    assert_eq!(deleted(&seen), Vec::<String>::new());
}

#[test]
fn reasons_are_sentences() {
    let mut seen = observation(vec![orphan(&vm("a", 0))]);
    bind(&mut seen, "a");
    assert_eq!(judge(&seen)[0].verdict.to_string(), "Pod default/same is on this Node");
    let young = OrphanVerdict::Keep(KeepReason::Young(Duration::from_mins(3)));
    assert_eq!(young.to_string(), "touched 3 min ago");
}

/// The ends of UIDs.
fn uids() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["a", "ab", "0", "1", "ba5e"]).prop_map(str::to_owned)
}

/// Names of VMs that are nearly the agent's own.
fn foreign_names() -> Vec<String> {
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
        2 => prop::sample::select(foreign_names()),
        2 => prop::sample::select(vec!['0', 'a', 'f']).prop_map(|digit| base(digit).to_string()),
    ]
}

fn perhaps<T: std::fmt::Debug + Clone>(
    value: impl Strategy<Value = T>,
) -> impl Strategy<Value = Result<T, Unknown>> {
    prop_oneof![8 => value.prop_map(Ok), 1 => Just(Err("unknown".to_owned()))]
}

fn holders() -> impl Strategy<Value = Result<Holder, Unknown>> {
    perhaps(prop_oneof![4 => Just(Holder::None), 1 => Just(Holder::Shim), 1 => Just(Holder::Tart)])
}

fn ages() -> impl Strategy<Value = Result<Duration, Unknown>> {
    perhaps((0_u64..2400).prop_map(Duration::from_secs))
}

prop_compose! {
    fn vms()(name in names(), holder in holders(), age in ages(), lock in perhaps(
        prop_oneof![4 => Just(VmLock::Free), 1 => Just(VmLock::Runs), 1 => Just(VmLock::Busy)]
    )) -> ObservedVm {
        ObservedVm { name, holder, lock, age }
    }
}

prop_compose! {
    fn pod_dirs()(text in uids(), holder in holders(), age in ages()) -> ObservedPodDir {
        ObservedPodDir { uid: uid(&text), holder, age }
    }
}

prop_compose! {
    /// Observations whose lists are all known.
    fn known_observations()(
        vms in prop::collection::vec(vms(), 0..8),
        pod_dirs in prop::collection::vec(pod_dirs(), 0..5),
        bound in prop::collection::vec(uids(), 0..4),
        active in prop::collection::vec(uids(), 0..2),
        bases in prop::sample::subsequence(vec!['0', 'a', 'f'], 0..3),
        cached in prop::sample::subsequence(vec!['0', 'a', 'f'], 1..=3),
    ) -> OrphanObservation {
        let name = |text: &String| PodName { namespace: "n".into(), name: text.clone() };
        OrphanObservation {
            vms: Ok(vms),
            pod_dirs: Ok(pod_dirs),
            pods: Ok(bound.iter().map(|text| (uid(text), name(text))).collect()),
            active: active.iter().map(|text| uid(text)).collect(),
            bases: Ok(bases.into_iter().map(base).collect()),
            cached: Ok(cached.into_iter().map(base).collect()),
            min_age: MIN_AGE,
        }
    }
}

/// Which lists fail: VMs, state directories, Pods, bases, cached images.
fn failures(likely: f64) -> impl Strategy<Value = [bool; 5]> {
    prop::array::uniform5(prop::bool::weighted(likely))
}

/// The same observation without some of its lists.
fn seen_without(
    observation: &OrphanObservation,
    [vms, pod_dirs, pods, bases, cached]: [bool; 5],
) -> OrphanObservation {
    fn or<T>(list: Result<T, Unknown>, fails: bool) -> Result<T, Unknown> {
        if fails { Err("unknown".to_owned()) } else { list }
    }
    let OrphanObservation { active, min_age, .. } = observation.clone();
    OrphanObservation {
        vms: or(observation.vms.clone(), vms),
        pod_dirs: or(observation.pod_dirs.clone(), pod_dirs),
        pods: or(observation.pods.clone(), pods),
        bases: or(observation.bases.clone(), bases),
        cached: or(observation.cached.clone(), cached),
        active,
        min_age,
    }
}

fn observations() -> impl Strategy<Value = OrphanObservation> {
    (known_observations(), failures(0.1)).prop_map(|(observation, fails)| seen_without(&observation, fails))
}

/// Whether any reason keeps a VM, each checked by itself.
fn is_protected(observation: &OrphanObservation, vm: &ObservedVm) -> bool {
    let is_young = vm.age.as_ref().map_or(true, |age| *age < observation.min_age);
    if let Ok(base) = vm.name.parse::<BaseName>() {
        let is_needed = observation.bases.as_ref().map_or(true, |bases| bases.contains(&base));
        let is_only_copy = observation.cached.as_ref().map_or(true, |cached| !cached.contains(&base));
        return is_needed
            || is_only_copy
            || observation.pods.is_err()
            || vm.lock != Ok(VmLock::Free)
            || is_young;
    }
    let Ok(name) = vm.name.parse::<VmName>() else { return true };
    let guards = [
        observation.pods.as_ref().map_or(true, |pods| pods.contains_key(name.uid())),
        observation.active.contains(name.uid()),
        !matches!(vm.holder, Ok(Holder::None | Holder::Tart)),
        vm.holder == Ok(Holder::Tart) && vm.lock != Ok(VmLock::Runs),
        !matches!(vm.lock, Ok(VmLock::Free | VmLock::Runs)),
        is_young,
    ];
    guards.contains(&true)
}

/// The same for a state directory.
fn is_needed(observation: &OrphanObservation, dir: &ObservedPodDir) -> bool {
    let is_of_pod = |vm: &ObservedVm| vm.name.parse::<VmName>().is_ok_and(|name| *name.uid() == dir.uid);
    let guards = [
        observation.pods.as_ref().map_or(true, |pods| pods.contains_key(&dir.uid)),
        observation.active.contains(&dir.uid),
        dir.holder != Ok(Holder::None),
        observation.vms.as_ref().map_or(true, |vms| vms.iter().any(is_of_pod)),
        dir.age.as_ref().map_or(true, |age| *age < observation.min_age),
    ];
    guards.contains(&true)
}

/// Deletes from an observation what the verdicts on another one say.
fn collect(observation: &mut OrphanObservation, seen: &OrphanObservation) {
    let deleted = judge(seen).into_iter().filter(|judged| judged.verdict.action() == GcAction::Delete);
    for judged in deleted.collect::<Vec<_>>() {
        match judged.subject {
            Subject::Vm(name) => observation.vms.as_mut().unwrap().retain(|vm| vm.name != name.to_string()),
            Subject::Base(name) => observation.vms.as_mut().unwrap().retain(|vm| vm.name != name.to_string()),
            Subject::PodDir(uid) => observation.pod_dirs.as_mut().unwrap().retain(|one| one.uid != uid),
            Subject::Other(name) => panic!("{name} is foreign"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_subject_is_deleted_if_and_only_if_no_reason_keeps_it(observation in observations()) {
        let verdicts = judge(&observation);
        let vms: Vec<&ObservedVm> = observation.vms.iter().flatten().collect();
        let pod_dirs: Vec<&ObservedPodDir> = observation.pod_dirs.iter().flatten().collect();
        prop_assert_eq!(verdicts.len(), vms.len() + pod_dirs.len(), "each subject has a verdict");
        for (vm, verdict) in vms.iter().zip(&verdicts) {
            prop_assert_eq!(verdict.subject.to_string(), vm.name.clone());
            let goes = matches!(verdict.verdict, OrphanVerdict::Delete { .. });
            prop_assert_eq!(goes, !is_protected(&observation, vm), "{:?} of {:?}", verdict, vm);
        }
        for (one, verdict) in pod_dirs.iter().zip(&verdicts[vms.len()..]) {
            let goes = matches!(verdict.verdict, OrphanVerdict::Delete { .. });
            prop_assert_eq!(goes, !is_needed(&observation, one), "{:?} of {:?}", verdict, one);
        }
    }

    #[test]
    fn a_foreign_vm_is_never_deleted(mut seen in observations(), name in prop::sample::select(foreign_names())) {
        seen.vms = seen.vms.map(|vms| vms.into_iter().chain([orphan(&name)]).collect());
        prop_assert!(!deleted(&seen).contains(&name));
    }

    #[test]
    fn nothing_is_deleted_while_a_list_is_unknown(mut observation in observations(), which in 0..2) {
        if which == 0 { observation.pods = Err("no".into()) } else { observation.vms = Err("no".into()) }
        prop_assert_eq!(deleted(&observation), Vec::<String>::new());
        prop_assert!(!observation.unknown().is_empty());
    }

    /// After a pass with any unknown lists, one pass with all lists deletes the VMs, and the next one their state directories.
    #[test]
    fn two_passes_after_a_failed_one_leave_no_orphan(observation in known_observations(), fails in failures(0.5)) {
        let mut after = observation.clone();
        collect(&mut after, &seen_without(&observation, fails));
        for _ in 0..2 {
            let seen = after.clone();
            collect(&mut after, &seen);
        }
        for vm in after.vms.iter().flatten() {
            prop_assert!(is_protected(&after, vm), "{:?}", vm);
        }
        for one in after.pod_dirs.iter().flatten() {
            prop_assert!(is_needed(&after, one), "{:?}", one);
        }
        // Nothing else is gone.
        for vm in observation.vms.iter().flatten().filter(|vm| is_protected(&observation, vm)) {
            let same_name = |other: &&ObservedVm| other.name == vm.name && !is_protected(&observation, other);
            let has_twin = observation.vms.iter().flatten().any(|other| same_name(&other));
            prop_assert!(has_twin || after.vms.iter().flatten().any(|other| other == vm), "{:?}", vm);
        }
    }

    #[test]
    fn more_pods_or_workers_never_delete_more(observation in observations()) {
        let before: HashSet<String> = deleted(&observation).into_iter().collect();
        let mut more = observation;
        if let Ok(pods) = &mut more.pods {
            pods.insert(uid("a"), PodName { namespace: "n".into(), name: "a".into() });
        }
        more.active.insert(uid("ab"));
        prop_assert!(deleted(&more).iter().all(|name| before.contains(name)));
    }
}
