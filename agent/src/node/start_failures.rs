//! Whether this Mac is to blame that VMs do not start.
//!
//! Some faults of a Mac show only when a VM starts: no user is logged in at its screen, its keychain is locked, macOS counts VMs that are
//! gone, or the DHCP server has no address left. A broken image shows most of them, too. So a Pod's failure is the Pod's, until a second
//! witness says that the Mac is at fault: a look at the session and the keychain, the file of leases, or another Pod with another
//! image. A VM that runs refutes them all. A look that has found session and keychain refutes the other Pod: a tenant may have two broken
//! images. The file of leases refutes nothing, since it does not tell whether the DHCP server answers.
//!
//! No Pod is scheduled on a Node that is not ready, so the Node also becomes ready after a delay, for a Pod to try: five minutes the
//! first time, twice as long each further time, an hour at most.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;

use super::health::{HealthProblem, NotReadyReason};
use crate::backoff::START_FAILURE;
use crate::clock;
use crate::names::PodUid;
use crate::os::gui_session::{GuiSession, Presence};
use crate::state::HostFault;

/// The number of macOS guests that macOS runs at once.
const SYSTEM_LIMIT: u32 = 2;
/// How many looks in a row must find no session before the Node is blamed without any failure. Within them the agent finds VMs that run.
const LOOKS: u32 = 2;

/// The start of a VM, as far as it says something about the Mac.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Start {
    /// The guest was up at this time.
    Up {
        since: Timestamp,
        /// When the VM was last known to run, by the clock that never jumps.
        last_seen: Option<Timestamp>,
    },
    Failed(StartFailure),
}

/// A VM that did not start, perhaps for a fault of the Mac.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StartFailure {
    pub(crate) fault: HostFault,
    /// tart's.
    pub(crate) message: String,
    pub(crate) pod: PodUid,
    pub(crate) image: String,
    pub(crate) at: Timestamp,
}

impl Start {
    /// The same with its time by the clock that never jumps.
    fn by_own_clock(&self) -> Self {
        let mut start = self.clone();
        let (Self::Up { since: at, .. } | Self::Failed(StartFailure { at, .. })) = &mut start;
        *at = clock::of_record(*at);
        start
    }
}

/// What the starts so far and the witnesses say about the Mac.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct StartFailures {
    last_up: Option<Timestamp>,
    /// When a VM was last known to run.
    last_seen: Option<Timestamp>,
    suspicion: Option<Suspicion>,
    /// What the latest look found.
    gui_session: GuiSession,
    absence: Option<Absence>,
    /// Set while few addresses are left.
    few_addresses: Option<String>,
}

/// The latest failure that nothing has refuted.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Suspicion {
    failure: StartFailure,
    pause: Duration,
    /// Whether another Pod with another image failed in the same way, with no start in between.
    is_shared: bool,
}

/// Looks in a row that found no session, or a locked keychain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Absence {
    since: Timestamp,
    looks: u32,
}

impl Suspicion {
    fn until(&self) -> Timestamp {
        self.failure.at + self.pause
    }
}

impl StartFailure {
    /// Whether two failures are of one kind but of different Pods with different images.
    fn confirms(&self, other: &Self) -> bool {
        let same_kind = std::mem::discriminant(&self.fault) == std::mem::discriminant(&other.fault);
        same_kind && self.pod != other.pod && self.image != other.image
    }
}

impl StartFailures {
    /// Adds a start, whose time is of the clock that never jumps. Only its time counts, not the order of calls: a restarted agent reads old results again.
    #[must_use]
    pub(super) fn after(mut self, start: &Start) -> Self {
        match start {
            Start::Up { since, last_seen } => {
                self.last_up = self.last_up.max(Some(*since));
                self.last_seen = self.last_seen.max(Some(*since)).max(*last_seen);
                let suspicion = self.suspicion.take();
                self.suspicion = suspicion.filter(|suspicion| !self.is_refuted(&suspicion.failure));
            }
            Start::Failed(failure) => self.suspect(failure),
        }
        self
    }

    /// Adds a look at the session and the keychain.
    #[must_use]
    fn after_look(mut self, gui_session: GuiSession, at: Timestamp) -> Self {
        self.absence = absent(&gui_session).map(|_| match self.absence {
            Some(absence) => Absence { looks: absence.looks.saturating_add(1), ..absence },
            None => Absence { since: at, looks: 1 },
        });
        self.gui_session = gui_session;
        self
    }

    fn suspect(&mut self, failure: &StartFailure) {
        // Two VMs of this agent run: the Mac is full, which is no fault.
        let is_full = matches!(failure.fault, HostFault::VmLimit { ours } if ours >= SYSTEM_LIMIT);
        if is_full || self.is_refuted(failure) {
            return;
        }
        let mut suspicion =
            Suspicion { failure: failure.clone(), pause: START_FAILURE.next(None), is_shared: false };
        if let Some(before) = &mut self.suspicion {
            let confirms = failure.confirms(&before.failure);
            if failure.at <= before.failure.at {
                before.is_shared |= confirms;
                return;
            }
            let same_kind =
                std::mem::discriminant(&failure.fault) == std::mem::discriminant(&before.failure.fault);
            suspicion.is_shared = confirms || (same_kind && before.is_shared);
        }
        if let Some(before) = self.suspicion.as_ref().filter(|before| self.witness(before).is_some()) {
            let is_over = failure.at >= before.until();
            // The Mac is to blame already; what only a Pod shows does not replace it.
            if !is_over && self.witness(&suspicion).is_none() {
                return;
            }
            // A VM that started at about the same time shows nothing new.
            suspicion.pause = if is_over { START_FAILURE.next(Some(before.pause)) } else { before.pause };
        }
        self.suspicion = Some(suspicion);
    }

    /// Whether a VM ran later than another one failed. A VM that runs does not prove that macOS allows one more.
    fn is_refuted(&self, failure: &StartFailure) -> bool {
        match failure.fault {
            HostFault::VmLimit { .. } => self.last_up.is_some_and(|up| up > failure.at),
            HostFault::Session | HostFault::NoAddress => self.last_seen.is_some_and(|seen| seen > failure.at),
        }
    }

    /// What else says that the Mac is at fault, in words that follow tart's; `None` if only the Pod failed.
    fn witness(&self, suspicion: &Suspicion) -> Option<(NotReadyReason, String)> {
        let Suspicion { failure: StartFailure { fault, .. }, is_shared, .. } = suspicion;
        let shared = || {
            let words = "two Pods with different images failed so in a row";
            is_shared.then(|| words.to_owned())
        };
        match fault {
            // Only macOS says this, and no image has it say so.
            HostFault::VmLimit { ours } => Some((
                NotReadyReason::VmSlotsLeaked,
                format!(
                    "{ours} VMs of this agent run, so others do, or macOS counts some that are gone; restart the host"
                ),
            )),
            HostFault::Session => {
                absent(&self.gui_session).map(|(reason, words)| (reason, words.to_owned())).or_else(|| {
                    let is_there = self.gui_session.is_there();
                    Some((NotReadyReason::NoGuiSession, shared().filter(|_| !is_there)?))
                })
            }
            HostFault::NoAddress => {
                Some((NotReadyReason::NoAddressForVms, self.few_addresses.clone().or_else(shared)?))
            }
        }
    }

    /// Why no VM can start, and when the Node becomes ready again.
    pub(super) fn problem(&self, now: Timestamp) -> Option<(HealthProblem, Timestamp)> {
        let blamed = self.suspicion.as_ref().and_then(|suspicion| {
            let (reason, words) = self.witness(suspicion)?;
            let message = format!("{}; {words}", suspicion.failure.message);
            Some((HealthProblem { reason, message }, suspicion.until()))
        });
        blamed.filter(|(_, until)| now < *until).or_else(|| self.foreseen(now))
    }

    /// The problem that the looks alone have found, before any VM failed.
    fn foreseen(&self, now: Timestamp) -> Option<(HealthProblem, Timestamp)> {
        let absence = self.absence.filter(|absence| absence.looks >= LOOKS)?;
        let (reason, words) = absent(&self.gui_session)?;
        let until = absence.since + START_FAILURE.next(None);
        let is_refuted = self.last_seen.is_some_and(|seen| seen >= absence.since);
        let problem = HealthProblem { reason, message: words.to_owned() };
        (now < until && !is_refuted).then_some((problem, until))
    }

    /// When the latest VM failed for want of a session or a keychain, unless a VM ran since.
    pub(super) fn suspects_session(&self) -> Option<Timestamp> {
        let failure = &self.suspicion.as_ref()?.failure;
        (failure.fault == HostFault::Session).then_some(failure.at)
    }
}

/// What a look did not find.
fn absent(found: &GuiSession) -> Option<(NotReadyReason, &str)> {
    match found {
        GuiSession { session: Presence::Absent(words), .. } => Some((NotReadyReason::NoGuiSession, words)),
        GuiSession { keychain: Presence::Absent(words), .. } => Some((NotReadyReason::KeychainLocked, words)),
        GuiSession { .. } => None,
    }
}

#[derive(Debug, Clone)]
pub(crate) struct StartReports(Arc<watch::Sender<StartFailures>>);

impl StartReports {
    pub(crate) fn new() -> (Self, watch::Receiver<StartFailures>) {
        let (sender, receiver) = watch::channel(StartFailures::default());
        (Self(Arc::new(sender)), receiver)
    }

    pub(crate) fn report(&self, start: &Start) {
        let start = start.by_own_clock();
        self.change(|starts| starts.after(&start));
    }

    /// Reports what a look at the session and the keychain found.
    pub(super) fn look(&self, found: GuiSession) {
        self.change(|starts| starts.after_look(found, clock::now()));
    }

    /// Reports whether few addresses for VMs are left.
    pub(super) fn few_addresses(&self, shortage: Option<&str>) {
        self.change(|starts| StartFailures { few_addresses: shortage.map(str::to_owned), ..starts });
    }

    /// Wakes the readers only if the Mac looks different: a VM that runs is reported every few seconds.
    fn change(&self, change: impl FnOnce(StartFailures) -> StartFailures) {
        let now = clock::now();
        self.0.send_if_modified(|starts| {
            let before = std::mem::take(starts);
            let (problem, suspected) = (before.problem(now), before.suspects_session());
            *starts = change(before);
            (starts.problem(now), starts.suspects_session()) != (problem, suspected)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at;
    use proptest::prelude::*;

    /// The failure of a Pod, whose image has the Pod's name unless it is told.
    fn failed_with(fault: HostFault, pod: &str, image: &str, second: i64) -> Start {
        let (pod, image) = (pod.parse().unwrap(), image.to_owned());
        Start::Failed(StartFailure { fault, message: "no".into(), pod, image, at: at(second) })
    }

    fn failed(fault: HostFault, second: i64) -> Start {
        failed_with(fault, "a", "image-a", second)
    }

    fn up(second: i64) -> Start {
        Start::Up { since: at(second), last_seen: None }
    }

    fn runs(since: i64, last_seen: i64) -> Start {
        Start::Up { since: at(since), last_seen: Some(at(last_seen)) }
    }

    fn reason(starts: &StartFailures, second: i64) -> &'static str {
        starts.problem(at(second)).map_or("", |(problem, _)| problem.reason.as_str())
    }

    fn reported(starts: &[Start]) -> StartFailures {
        starts.iter().fold(StartFailures::default(), StartFailures::after)
    }

    fn logged_out() -> GuiSession {
        GuiSession { session: Presence::Absent("no user is logged in".into()), keychain: Presence::Unknown }
    }

    fn locked() -> GuiSession {
        GuiSession { session: Presence::Present, keychain: Presence::Absent("it is locked".into()) }
    }

    /// The same with witnesses against the Mac.
    fn witnessed(starts: StartFailures) -> StartFailures {
        let few_addresses = Some("few are left".to_owned());
        StartFailures { few_addresses, gui_session: logged_out(), ..starts }
    }

    #[test]
    fn a_pods_failure_is_the_pods_until_a_witness_blames_the_mac() {
        let table = [
            (HostFault::Session, "", "NoGuiSession"),
            (HostFault::NoAddress, "", "NoAddressForVms"),
            // Only macOS says this.
            (HostFault::VmLimit { ours: 0 }, "VmSlotsLeaked", "VmSlotsLeaked"),
            (HostFault::VmLimit { ours: 1 }, "VmSlotsLeaked", "VmSlotsLeaked"),
            (HostFault::VmLimit { ours: 2 }, "", ""),
        ];
        for (fault, alone, with_witness) in table {
            let starts = reported(&[failed(fault, 10)]);
            assert_eq!(reason(&starts, 11), alone, "{fault:?}");
            assert_eq!(reason(&witnessed(starts), 11), with_witness, "{fault:?}");
        }
    }

    #[test]
    fn each_witness_speaks_for_its_own_fault_only() {
        let (no_session, no_address) = (HostFault::Session, HostFault::NoAddress);
        let few = || StartFailures { few_addresses: Some("few".into()), ..StartFailures::default() };
        let look = |gui_session| StartFailures { gui_session, ..StartFailures::default() };
        let fine = || GuiSession { session: Presence::Present, keychain: Presence::Present };
        for (starts, fault, expected) in [
            (few(), no_address, "NoAddressForVms"),
            (few(), no_session, ""),
            (look(logged_out()), no_session, "NoGuiSession"),
            (look(logged_out()), no_address, ""),
            (look(locked()), no_session, "KeychainLocked"),
            (look(fine()), no_session, ""),
            (look(GuiSession::default()), no_session, ""),
        ] {
            let starts = starts.after(&failed(fault, 10));
            assert_eq!(reason(&starts, 11), expected, "{starts:?}");
        }
    }

    #[test]
    fn two_pods_with_different_images_in_a_row_blame_the_mac() {
        let (session, address) = (HostFault::Session, HostFault::NoAddress);
        let first = || failed_with(session, "a", "image-a", 10);
        let second = || failed_with(session, "b", "image-b", 20);
        for (starts, expected, why) in [
            (vec![first(), second()], "NoGuiSession", "two Pods, two images"),
            (vec![second(), first()], "NoGuiSession", "a restarted agent reads them in any order"),
            (vec![first(), failed_with(session, "b", "image-a", 20)], "", "one image in two Pods"),
            (vec![first(), failed_with(session, "a", "image-b", 20)], "", "one Pod with two images"),
            (vec![first(), failed_with(address, "b", "image-b", 20)], "", "two kinds of failures"),
            (vec![first(), up(15), second()], "", "a start in between"),
            (vec![first(), second(), up(15)], "NoGuiSession", "both count once they were seen together"),
            (vec![first(), second(), up(25)], "", "a start after both"),
            (vec![runs(0, 25), first(), second()], "", "a VM that runs"),
            (vec![first(), second(), runs(0, 25)], "", "a VM that runs"),
            (vec![first(), second(), failed(session, 30)], "NoGuiSession", "one more failure"),
        ] {
            assert_eq!(reason(&reported(&starts), 31), expected, "{why}");
        }
    }

    #[test]
    fn two_broken_images_do_not_blame_a_mac_with_session_and_keychain() {
        let there = GuiSession { session: Presence::Present, keychain: Presence::Present };
        let unknown_keychain = GuiSession { keychain: Presence::Unknown, ..there.clone() };
        for (found, fault, expected) in [
            (&there, HostFault::Session, ""),
            (&unknown_keychain, HostFault::Session, "NoGuiSession"),
            (&GuiSession::default(), HostFault::Session, "NoGuiSession"),
            (&logged_out(), HostFault::Session, "NoGuiSession"),
            // A user may be at the screen while the DHCP server is dead.
            (&there, HostFault::NoAddress, "NoAddressForVms"),
        ] {
            let failures =
                reported(&[failed_with(fault, "a", "image-a", 10), failed_with(fault, "b", "image-b", 20)]);
            assert_eq!(
                reason(&failures.after_look(found.clone(), at(21)), 22),
                expected,
                "{found:?}, {fault:?}"
            );
        }
    }

    #[test]
    fn a_vm_that_runs_refutes_what_a_broken_image_shows() {
        for fault in [HostFault::Session, HostFault::NoAddress] {
            let fault = || failed(fault, 10);
            assert_eq!(reason(&witnessed(reported(&[fault(), up(11)])), 12), "");
            assert_eq!(reason(&witnessed(reported(&[up(11), fault()])), 12), "");
            assert_eq!(reason(&witnessed(reported(&[fault(), runs(1, 11)])), 12), "");
            assert_ne!(reason(&witnessed(reported(&[fault(), runs(1, 9)])), 12), "");
        }
        let limit = || failed(HostFault::VmLimit { ours: 1 }, 10);
        assert_eq!(reason(&reported(&[limit(), runs(1, 11)]), 12), "VmSlotsLeaked");
        assert_eq!(reason(&reported(&[limit(), up(11)]), 12), "");
    }

    #[test]
    fn a_fault_lasts_longer_each_time() {
        let mut starts = witnessed(StartFailures::default());
        let mut now = 0;
        let mut pauses = Vec::new();
        for _ in 0..6 {
            starts = starts.after(&failed(HostFault::Session, now));
            let (_, until) = starts.problem(at(now)).unwrap();
            assert_eq!(reason(&starts, until.as_second()), "");
            pauses.push((until.as_second() - now) / 60);
            now = until.as_second() + 1;
        }
        assert_eq!(pauses, [5, 10, 20, 40, 60, 60]);
        let together = reported(&[failed(HostFault::Session, 0), failed(HostFault::Session, 5)]);
        assert_eq!(witnessed(together).problem(at(6)).unwrap().1, at(305), "the second shows nothing new");
    }

    #[test]
    fn failures_of_pods_alone_do_not_make_a_later_pause_longer() {
        let alone = (0..9).map(|time| failed(HostFault::Session, time * 4000));
        let starts = witnessed(alone.fold(StartFailures::default(), |starts, start| starts.after(&start)));
        assert_eq!(starts.problem(at(32_001)).unwrap().1, at(32_300));
    }

    #[test]
    fn a_pods_failure_does_not_hide_a_fault_of_the_mac() {
        let limit = failed(HostFault::VmLimit { ours: 0 }, 10);
        let starts = reported(&[limit, failed_with(HostFault::Session, "b", "image-b", 20)]);
        assert_eq!(reason(&starts, 21), "VmSlotsLeaked");
    }

    #[test]
    fn two_looks_in_a_row_blame_the_mac_before_any_pod_fails() {
        let look =
            |starts: StartFailures, found: &GuiSession, second| starts.after_look(found.clone(), at(second));
        let once = look(StartFailures::default(), &logged_out(), 10);
        assert_eq!(reason(&once, 11), "");
        let twice = look(once.clone(), &logged_out(), 20);
        assert_eq!(reason(&twice, 21), "NoGuiSession");
        assert_eq!(reason(&look(once.clone(), &locked(), 20), 21), "KeychainLocked");
        assert_eq!(reason(&twice, 310), "", "a Pod may try");
        assert_eq!(reason(&look(twice.clone(), &GuiSession::default(), 30), 31), "", "unknown is no witness");
        assert_eq!(
            reason(&twice.clone().after(&runs(0, 22)), 23),
            "",
            "a VM that runs proves the looks wrong"
        );
        let failed = twice.after(&failed(HostFault::Session, 320));
        assert_eq!(reason(&failed, 321), "NoGuiSession");
    }

    #[derive(Debug, Clone)]
    enum Step {
        Report(Start),
        Look(GuiSession),
        Addresses(bool),
    }

    fn step(images: usize) -> impl Strategy<Value = Step> {
        let faults = prop_oneof![Just(HostFault::Session), Just(HostFault::NoAddress)];
        let failure = (faults, 0..5usize, 0..images, 0i64..50_000).prop_map(|(fault, pod, image, second)| {
            Step::Report(failed_with(
                fault,
                ["a", "b", "c", "d", "e"][pod],
                &format!("image-{image}"),
                second,
            ))
        });
        let up = (0i64..50_000, 0i64..50_000).prop_map(|(since, seen)| Step::Report(runs(since, seen)));
        let look = prop_oneof![Just(logged_out()), Just(locked()), Just(GuiSession::default())];
        prop_oneof![5 => failure, 1 => up, 1 => look.prop_map(Step::Look), 1 => any::<bool>().prop_map(Step::Addresses)]
    }

    fn taken(starts: StartFailures, step: &Step) -> StartFailures {
        match step {
            Step::Report(start) => starts.after(start),
            Step::Look(found) => starts.after_look(found.clone(), at(25_000)),
            Step::Addresses(few) => StartFailures { few_addresses: few.then(|| "few".to_owned()), ..starts },
        }
    }

    proptest! {
        #[test]
        fn one_image_never_makes_the_node_unready(steps in proptest::collection::vec(step(1), 1..40)) {
            let mut starts = StartFailures::default();
            for step in steps.iter().filter(|step| matches!(step, Step::Report(_))) {
                starts = taken(starts, step);
                for now in [0, 25_000, 50_000, 60_000] {
                    prop_assert_eq!(starts.problem(at(now)), None, "{:?}", steps);
                }
            }
        }

        #[test]
        fn every_fault_ends_within_an_hour_and_a_vm_that_runs_refutes_it(
            steps in proptest::collection::vec(step(3), 1..40)
        ) {
            let starts = steps.iter().fold(StartFailures::default(), taken);
            prop_assert!(starts.problem(at(50_000 + 3600)).is_none());
            let running = starts.after(&runs(0, 60_000));
            prop_assert_eq!(running.problem(at(60_000)), None);
        }
    }
}
