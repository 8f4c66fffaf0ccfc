//! Probes: whether a container has started, still works, and should get traffic. The rules and the words are the kubelet's.
//!
//! `spec` is what a container asks for, `result` makes one probe, `state` is what follows from results (without a clock). This file
//! schedules the probes.

mod event_budget;
mod exec;
mod grpc;
pub(crate) mod http;
pub(crate) mod reach;
mod result;
pub(crate) mod spec;
pub(crate) mod state;
mod tcp;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tracing::debug;

use crate::apiserver::events::EventReason;
use crate::clock;
use crate::guest::Guest;
use event_budget::EventBudget;
use reach::Reach;
use result::{ProbeResult, find};
use spec::{ProbeKind, Probes};
use state::{ContainerHealth, DueProbe, ProbeState};

/// What is probed.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) reach: Reach,
    /// The connection to the guest agent.
    pub(crate) guest: Guest,
    /// The argv prefix that runs a command as the container's user; empty if the guest's user runs it directly.
    pub(crate) enter: Vec<String>,
    /// The same prefix with a time limit that the guest enforces; the seconds follow it. Empty if only the guest agent can end a command.
    pub(crate) probe: Vec<String>,
}

/// Where warnings go: a reason and a note.
pub(crate) type Tell = Arc<dyn Fn(EventReason, &str) + Send + Sync>;

/// Where results are counted: the kind of the probe, and the kubelet's word for its result.
pub(crate) type Count = Arc<dyn Fn(ProbeKind, &'static str) + Send + Sync>;

/// The probes of one container while it runs; dropping it ends them.
#[derive(Debug)]
pub(crate) struct Prober {
    judge: Arc<watch::Sender<ProbeState>>,
    seen: watch::Receiver<ProbeState>,
    _tasks: JoinSet<()>,
}

impl Prober {
    /// Starts to probe a container that has run for `ran`. `before` is what the API shows of a container that an earlier agent started.
    pub(crate) fn start(
        probes: Probes,
        before: Option<ContainerHealth>,
        ran: Duration,
        target: Target,
        tell: &Tell,
        count: &Count,
    ) -> Self {
        let (judge, seen) = watch::channel(ProbeState::new(&probes, before));
        let (judge, target) = (Arc::new(judge), Arc::new(target));
        let budget = Arc::new(std::sync::Mutex::new(EventBudget::new(clock::now())));
        let mut tasks = JoinSet::new();
        for (kind, spec) in probes.into_each() {
            let share = if before.is_some() { fastrand::f64() } else { 0.0 };
            let first = spec.first_after(ran, share);
            let (target, tell, count, budget) = (target.clone(), tell.clone(), count.clone(), budget.clone());
            let period = spec.period;
            let ask = async move || {
                let finding = find(&spec, &target).await;
                debug!(%kind, ?finding, "probed");
                count(kind, finding.word());
                if let Some((reason, note)) = finding.event(kind)
                    && budget.lock().is_ok_and(|mut budget| budget.spend(clock::now()))
                {
                    tell(reason, &note);
                }
                finding
            };
            tasks.spawn(attend(kind, first, period, judge.clone(), ask));
        }
        Self { judge, seen, _tasks: tasks }
    }

    pub(crate) fn health(&mut self) -> ContainerHealth {
        self.seen.borrow_and_update().health
    }

    /// Ends startup and liveness probes: the Pod is to stop.
    pub(crate) fn leave(&self) {
        self.judge.send_if_modified(ProbeState::leave);
    }

    /// Waits until something else is known than [`health`](Self::health) last said.
    pub(crate) async fn changed(&mut self) {
        if self.seen.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Makes one kind of probe periodically, until its result cannot matter any more.
async fn attend(
    kind: ProbeKind,
    first: Duration,
    period: Duration,
    judge: Arc<watch::Sender<ProbeState>>,
    ask: impl AsyncFn() -> ProbeResult,
) {
    sleep(first).await;
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut changes = judge.subscribe();
    loop {
        ticks.tick().await;
        let held = judge.borrow().due(kind) == DueProbe::Held;
        match changes.wait_for(|judge| judge.due(kind) != DueProbe::Held).await.map(|judge| judge.due(kind)) {
            Ok(DueProbe::Now) => {}
            _ => return,
        }
        if held {
            // The first probe follows the container's start at once, the next ones the period.
            ticks.reset();
        }
        if let Some(passed) = ask().await.passed() {
            judge.send_if_modified(|judge| judge.record(kind, passed));
        }
    }
}

#[cfg(test)]
mod tests;
