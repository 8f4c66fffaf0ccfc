//! How far the start of a Pod's VM has come: whether the Pod still waits, whether the host is at fault, how long each stage took.

use std::time::Duration;

use jiff::Timestamp;

use super::decide::{Desired, Observation};
use super::time::between;
use crate::node::start_failures::{Start, StartFailure};
use crate::state::{Ending, Holder, HostFault, Outcome, Progress, Stage, VmRunView};

/// Whether a Pod has never run yet. A Pod whose VMs fail to start still waits.
pub(crate) fn waits(seen: &Observation) -> bool {
    let has_run = |run: &VmRunView| {
        let runs = run.progress.as_ref().is_some_and(|p| matches!(p.stage, Stage::Running { .. }));
        runs || run.outcome.as_ref().is_some_and(|outcome| outcome.started_at.is_some())
    };
    matches!(seen.desired, Desired::Run(_))
        && !seen.refused
        && !seen.is_over()
        && !seen.runs.iter().any(has_run)
}

/// What the start of a VM says about the host.
pub(crate) fn start(run: &VmRunView, address_patience: Duration, now: Timestamp) -> Option<Start> {
    let failed = |fault, message, at| {
        let spec = run.spec.as_ref()?;
        let (pod, image) = (spec.vm.uid().clone(), spec.image.clone());
        Some(Start::Failed(StartFailure { fault, message, pod, image, at }))
    };
    if let Some(Outcome { ending: Ending::NotStarted(end), finished_at, .. }) = &run.outcome
        && let Some(fault) = end.fault
    {
        return failed(fault, end.message.clone(), *finished_at);
    }
    let Progress { stage, since, .. } = run.progress.as_ref()?;
    match stage {
        Stage::Up { .. } | Stage::Running { .. } => {
            let last_seen = run.ended_at.or_else(|| (run.holder == Holder::Shim).then_some(now));
            Some(Start::Up { since: *since, last_seen })
        }
        Stage::Booting if run.outcome.is_none() => {
            let (at, due) = (*since + address_patience, run.stage_since.unwrap_or(*since) + address_patience);
            let message = format!("a VM has no address {} s after its start", address_patience.as_secs());
            let waiting = run.holder == Holder::Shim && now >= due;
            if waiting { failed(HostFault::NoAddress, message, at) } else { None }
        }
        Stage::Cloning | Stage::Configuring | Stage::Booting => None,
    }
}

/// How long the stages of a VM's start took that are over.
pub(crate) fn stages(steps: &[Progress]) -> Vec<(&'static str, Duration)> {
    let name = |stage: &Stage| match stage {
        Stage::Cloning => Some("clone"),
        Stage::Configuring => Some("configure"),
        Stage::Booting => Some("boot"),
        Stage::Up { .. } => Some("command"),
        Stage::Running { .. } => None,
    };
    let took = |step: &Progress, next: &Progress| Some((name(&step.stage)?, between(step.since, next.since)));
    steps.windows(2).filter_map(|pair| took(&pair[0], &pair[1])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::{Restart, VmName};
    use crate::state::{NotStarted, NotStartedReason, RestartPolicy, ShimSpec};

    const PATIENCE: Duration = Duration::from_mins(5);

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn vm_run(stage: Option<Stage>, ending: Option<Ending>) -> VmRunView {
        VmRunView {
            holder: if ending.is_some() { Holder::None } else { Holder::Shim },
            spec: Some(ShimSpec::example(VmName::new("0b1c".parse().unwrap(), Restart(0)))),
            begun: stage.is_some(),
            progress: stage.map(|stage| Progress { since: at(1000), ..Progress::example(stage) }),
            outcome: ending.map(|ending| Outcome { ending, started_at: None, finished_at: at(2000) }),
            ..VmRunView::example(0)
        }
    }

    fn not_started(fault: Option<HostFault>) -> Ending {
        NotStarted { reason: NotStartedReason::StartError, message: "no".into(), fault }.into()
    }

    #[test]
    fn a_start_reports_host_faults_and_successes() {
        let address = "127.0.0.2".parse().unwrap();
        let said = |run: &VmRunView, now| match start(run, PATIENCE, at(now)) {
            None => "nothing",
            Some(Start::Up { last_seen: Some(seen), .. }) if seen == at(now) => "runs",
            Some(Start::Up { .. }) => "up",
            Some(Start::Failed(failure)) => match failure.fault {
                HostFault::Session => "session",
                HostFault::VmLimit { .. } => "limit",
                HostFault::NoAddress => "no address",
            },
        };
        let booting = || Some(Stage::Booting);
        let table = vec![
            (vm_run(None, None), 9999, "nothing"),
            (vm_run(Some(Stage::Cloning), None), 9999, "nothing"),
            (vm_run(booting(), None), 1299, "nothing"),
            (vm_run(booting(), None), 1300, "no address"),
            (vm_run(Some(Stage::Up { address }), None), 9999, "runs"),
            (vm_run(Some(Stage::Running { address }), None), 1001, "runs"),
            (vm_run(Some(Stage::Running { address }), Some(Ending::Lost)), 9999, "up"),
            (vm_run(booting(), Some(not_started(Some(HostFault::Session)))), 2001, "session"),
            (vm_run(booting(), Some(not_started(Some(HostFault::VmLimit { ours: 0 })))), 2001, "limit"),
            (vm_run(booting(), Some(not_started(None))), 9999, "nothing"),
            (vm_run(booting(), Some(Ending::Stopped { killed: true })), 9999, "nothing"),
        ];
        for (run, now, expected) in table {
            assert_eq!(said(&run, now), expected, "{run:?}");
        }
    }

    #[test]
    fn a_stage_lasts_until_the_next_one() {
        let address = "127.0.0.2".parse().unwrap();
        let step = |stage, second| Progress { since: at(second), ..Progress::example(stage) };
        let steps = [
            step(Stage::Cloning, 0),
            step(Stage::Configuring, 1),
            step(Stage::Booting, 3),
            step(Stage::Up { address }, 33),
            step(Stage::Running { address }, 34),
        ];
        let seconds: Vec<_> = stages(&steps).into_iter().map(|(name, took)| (name, took.as_secs())).collect();
        assert_eq!(seconds, [("clone", 1), ("configure", 2), ("boot", 30), ("command", 1)]);
        // A clock that was set back makes no stage negative.
        let set_back = [step(Stage::Booting, 9), step(Stage::Running { address }, 5)];
        assert_eq!(stages(&set_back), [("boot", Duration::ZERO)]);
        assert_eq!(stages(&steps[..1]), []);
    }

    #[test]
    fn a_pod_waits_until_it_has_run_or_is_over() {
        let seen = |desired, runs| Observation::example(desired, runs, at(3000));
        let run = Desired::Run(RestartPolicy::Always);
        let address = "127.0.0.2".parse().unwrap();
        assert!(waits(&seen(run, vec![])));
        assert!(waits(&seen(run, vec![vm_run(Some(Stage::Up { address }), None)])));
        assert!(!waits(&seen(run, vec![vm_run(Some(Stage::Running { address }), None)])));
        let failed = || vec![vm_run(Some(Stage::Booting), Some(not_started(None)))];
        assert!(waits(&seen(run, failed())));
        assert!(!waits(&seen(Desired::Run(RestartPolicy::Never), failed())));
        let ran = Some(Stage::Running { address });
        assert!(!waits(&seen(run, vec![vm_run(ran, Some(Ending::Lost)), vm_run(None, None)])));
        assert!(!waits(&seen(Desired::Gone, vec![])));
        assert!(!waits(&Observation { refused: true, ..seen(run, vec![]) }));
    }
}
