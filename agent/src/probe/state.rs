//! What follows from the results of probes: a state machine without a clock, by the kubelet's rules.

use super::spec::{ProbeKind, ProbeSpec, Probes};
use crate::state::StopCause;

/// What is known of a container that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ContainerHealth {
    /// Whether it has started, in the sense of its startup probe.
    pub(crate) started: bool,
    /// Whether it should get traffic.
    pub(crate) ready: bool,
    /// The probe for which it has to be stopped.
    pub(crate) failed: Option<StopCause>,
}

/// Whether a probe is to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DueProbe {
    Now,
    /// Wait for the startup probe.
    Held,
    /// Never again for this container.
    Never,
}

/// What one container's probes have said so far, and what follows from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProbeState {
    startup: Option<Run>,
    liveness: Option<Run>,
    readiness: Option<Run>,
    pub(super) health: ContainerHealth,
    leaving: bool,
}

/// Equal results in a row.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Run {
    success_threshold: u32,
    failure_threshold: u32,
    passes: bool,
    length: u32,
}

impl Run {
    fn new(spec: &ProbeSpec) -> Self {
        let ProbeSpec { success_threshold, failure_threshold, .. } = *spec;
        Self { success_threshold, failure_threshold, passes: false, length: 0 }
    }

    /// Counts one more result. Returns whether the threshold is reached.
    fn add(&mut self, passed: bool) -> bool {
        self.length = if self.passes == passed { self.length.saturating_add(1) } else { 1 };
        self.passes = passed;
        self.length >= if passed { self.success_threshold } else { self.failure_threshold }
    }
}

impl ProbeState {
    /// No probe has run yet. `before`, what the API shows of this container, holds until a probe says otherwise: a restarted agent must
    /// not take a Pod out of its Services.
    pub(crate) fn new(probes: &Probes, before: Option<ContainerHealth>) -> Self {
        let run = |spec: &Option<ProbeSpec>| spec.as_ref().map(Run::new);
        let started = probes.startup.is_none() || before.is_some_and(|before| before.started);
        let ready = probes.readiness.is_none() || before.is_some_and(|before| before.ready);
        Self {
            startup: run(&probes.startup),
            liveness: run(&probes.liveness),
            readiness: run(&probes.readiness),
            health: ContainerHealth { started, ready: started && ready, failed: None },
            leaving: false,
        }
    }

    /// Whether a probe is to run.
    pub(crate) fn due(&self, kind: ProbeKind) -> DueProbe {
        let stopping = self.leaving || self.health.failed.is_some();
        match kind {
            ProbeKind::Startup if stopping || self.health.started => DueProbe::Never,
            ProbeKind::Liveness if stopping => DueProbe::Never,
            ProbeKind::Liveness | ProbeKind::Readiness if !self.health.started => DueProbe::Held,
            ProbeKind::Startup | ProbeKind::Liveness | ProbeKind::Readiness => DueProbe::Now,
        }
    }

    /// Takes the result of a probe. Returns whether the container's health changes.
    pub(crate) fn record(&mut self, kind: ProbeKind, passed: bool) -> bool {
        // A probe that ends after the failure that counts does not matter.
        if self.due(kind) != DueProbe::Now {
            return false;
        }
        let run = match kind {
            ProbeKind::Startup => &mut self.startup,
            ProbeKind::Liveness => &mut self.liveness,
            ProbeKind::Readiness => &mut self.readiness,
        };
        if !run.as_mut().is_some_and(|run| run.add(passed)) {
            return false;
        }
        let before = self.health;
        match (kind, passed) {
            (ProbeKind::Startup, true) => {
                self.health.started = true;
                self.health.ready = self.readiness.is_none();
            }
            (ProbeKind::Startup, false) => self.health.failed = Some(StopCause::FailedStartup),
            (ProbeKind::Liveness, false) => self.health.failed = Some(StopCause::FailedLiveness),
            (ProbeKind::Liveness, true) => {}
            (ProbeKind::Readiness, passed) => self.health.ready = passed,
        }
        self.health != before
    }

    /// The Pod is being deleted: no probe restarts it, but readiness still counts. Returns whether the container's health changes.
    pub(crate) fn leave(&mut self) -> bool {
        self.health.failed = None;
        !std::mem::replace(&mut self.leaving, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ProbeKind::{Liveness, Readiness, Startup};
    use proptest::prelude::*;

    fn all() -> Probes {
        Probes {
            startup: Some(ProbeSpec::example(1, 2)),
            liveness: Some(ProbeSpec::example(1, 3)),
            readiness: Some(ProbeSpec::example(2, 3)),
        }
    }

    /// What is known after some results: started, ready, failed.
    fn after(
        probes: &Probes,
        before: Option<ContainerHealth>,
        results: &[(ProbeKind, bool)],
    ) -> (bool, bool, Option<StopCause>) {
        let mut judge = ProbeState::new(probes, before);
        for (kind, passed) in results {
            judge.record(*kind, *passed);
        }
        let ContainerHealth { started, ready, failed } = judge.health;
        (started, ready, failed)
    }

    #[test]
    fn results_in_a_row_decide() {
        let liveness = Probes { liveness: Some(ProbeSpec::example(1, 3)), ..Probes::default() };
        let readiness = Probes { readiness: Some(ProbeSpec::example(2, 3)), ..Probes::default() };
        let (startup_failed, liveness_failed) =
            (Some(StopCause::FailedStartup), Some(StopCause::FailedLiveness));
        let fails = |kind, times| vec![(kind, false); times];
        let up = vec![(Startup, true), (Readiness, true), (Readiness, true)];
        let table = [
            // No probe, nothing to wait for.
            (Probes::default(), vec![], (true, true, None)),
            (liveness.clone(), vec![], (true, true, None)),
            (liveness.clone(), fails(Liveness, 2), (true, true, None)),
            (liveness.clone(), fails(Liveness, 3), (true, true, liveness_failed)),
            (
                liveness.clone(),
                [fails(Liveness, 2), vec![(Liveness, true)], fails(Liveness, 2)].concat(),
                (true, true, None),
            ),
            // Results after the failure do not count.
            (liveness, [fails(Liveness, 3), vec![(Liveness, true)]].concat(), (true, true, liveness_failed)),
            // Readiness begins as false and changes at its thresholds.
            (readiness.clone(), vec![], (true, false, None)),
            (readiness.clone(), vec![(Readiness, true)], (true, false, None)),
            (readiness.clone(), vec![(Readiness, true); 2], (true, true, None)),
            (
                readiness.clone(),
                [vec![(Readiness, true); 2], fails(Readiness, 2)].concat(),
                (true, true, None),
            ),
            (
                readiness.clone(),
                [vec![(Readiness, true); 2], fails(Readiness, 3)].concat(),
                (true, false, None),
            ),
            (readiness, fails(Readiness, 99), (true, false, None)),
            // Other probes do not count before startup.
            (all(), vec![], (false, false, None)),
            (
                all(),
                [fails(Liveness, 9), vec![(Readiness, true); 9], fails(Startup, 1)].concat(),
                (false, false, None),
            ),
            (all(), fails(Startup, 2), (false, false, startup_failed)),
            (all(), [fails(Startup, 2), vec![(Startup, true)]].concat(), (false, false, startup_failed)),
            (all(), vec![(Startup, true)], (true, false, None)),
            (all(), up.clone(), (true, true, None)),
            // A started container stays started.
            (all(), [up.clone(), fails(Startup, 9)].concat(), (true, true, None)),
            (all(), [up, fails(Liveness, 3)].concat(), (true, true, liveness_failed)),
        ];
        for (probes, results, expected) in table {
            assert_eq!(after(&probes, None, &results), expected, "{probes:?} {results:?}");
        }
    }

    #[test]
    fn a_restarted_agent_goes_on_from_what_the_api_shows() {
        let shown = |started, ready| Some(ContainerHealth { started, ready, failed: None });
        assert_eq!(after(&all(), shown(true, true), &[]), (true, true, None));
        assert_eq!(after(&all(), shown(true, false), &[]), (true, false, None));
        assert_eq!(after(&all(), shown(false, false), &[]), (false, false, None));
        let failing = vec![(Readiness, false); 3];
        assert_eq!(after(&all(), shown(true, true), &failing[..2]), (true, true, None));
        assert_eq!(after(&all(), shown(true, true), &failing), (true, false, None));
        assert_eq!(ProbeState::new(&all(), shown(true, true)).due(Startup), DueProbe::Never);
    }

    #[test]
    fn other_probes_wait_for_startup() {
        let mut judge = ProbeState::new(&all(), None);
        let due = |judge: &ProbeState| [Startup, Liveness, Readiness].map(|kind| judge.due(kind));
        assert_eq!(due(&judge), [DueProbe::Now, DueProbe::Held, DueProbe::Held]);
        judge.record(Startup, true);
        assert_eq!(due(&judge), [DueProbe::Never, DueProbe::Now, DueProbe::Now]);
        let mut leaving = judge.clone();
        assert!(leaving.leave() && !leaving.leave());
        assert_eq!(due(&leaving), [DueProbe::Never, DueProbe::Never, DueProbe::Now]);
        for _ in 0..3 {
            judge.record(Liveness, false);
        }
        assert_eq!(due(&judge), [DueProbe::Never, DueProbe::Never, DueProbe::Now]);
        judge.leave();
        assert_eq!(judge.health.failed, None, "a Pod that leaves is not restarted");
    }

    fn any_result() -> impl Strategy<Value = (ProbeKind, bool)> {
        (prop_oneof![Just(Startup), Just(Liveness), Just(Readiness)], any::<bool>())
    }

    proptest! {
        /// In every order of results: ready implies started, a failure is final, and only enough failures in a row make one.
        #[test]
        fn ready_implies_started_and_failures_are_final(results in prop::collection::vec(any_result(), 0..60), threshold in 1..5_u32) {
            let probes = Probes {
                startup: Some(ProbeSpec::example(1, threshold)),
                liveness: Some(ProbeSpec::example(1, threshold)),
                readiness: Some(ProbeSpec::example(threshold, threshold)),
            };
            let mut judge = ProbeState::new(&probes, None);
            let mut failures = 0;
            for (kind, passed) in results {
                let before = judge.health;
                let due = judge.due(kind);
                let changed = judge.record(kind, passed);
                let now = judge.health;
                prop_assert_eq!(changed, before != now);
                prop_assert!(due == DueProbe::Now || !changed);
                prop_assert!(now.started || !now.ready);
                prop_assert!(now.started || !before.started);
                prop_assert!(before.failed.is_none() || now.failed == before.failed);
                if kind != Readiness && due == DueProbe::Now {
                    failures = if passed { 0 } else { failures + 1 };
                    prop_assert_eq!(now.failed.is_some(), failures >= threshold);
                }
            }
        }

        /// A container without a startup probe is judged by each other probe alone.
        #[test]
        fn probes_do_not_mix(results in prop::collection::vec(any::<bool>(), 0..40)) {
            let readiness = Probes { readiness: Some(ProbeSpec::example(2, 3)), ..Probes::default() };
            let both = Probes { liveness: Some(ProbeSpec::example(1, u32::MAX)), ..readiness.clone() };
            let alone: Vec<_> = results.iter().map(|passed| (Readiness, *passed)).collect();
            let mixed: Vec<_> = results.iter().flat_map(|passed| [(Readiness, *passed), (Liveness, !*passed)]).collect();
            prop_assert_eq!(after(&readiness, None, &alone), after(&both, None, &mixed));
        }
    }
}
