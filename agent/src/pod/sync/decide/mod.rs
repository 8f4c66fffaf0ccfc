//! The next step for a Pod: one decision from what the API wants and what the state directory holds.

mod decision;
#[cfg(test)]
mod tests;

pub(crate) use decision::Decision;

use std::time::Duration;

use jiff::Timestamp;

use super::next_vm::next_segment;
use super::restart::{RestartDecision, verdict};
use super::time::later;
use crate::names::Restart;
use crate::probe::state::ContainerHealth;
use crate::state::{Ending, Holder, Outcome, RestartPolicy, Segment, StopCause, StopRequest, VmRunView};

/// How long after its deadline a shim may still be stopping its VM: to kill a VM that hangs takes time.
const SHIM_PATIENCE: Duration = Duration::from_secs(30);
/// How often the agent stops a VM that has lost its shim before it kills the shim's processes: a `tart` that hangs does not stop.
const MAX_STOPS: u32 = 3;
/// How often the agent tries to delete a VM before it kills the shim: a shim that has written its outcome should exit at once.
const VAIN_CLEANS: u32 = 5;
/// How long the guest of an evicted Pod may take to shut down, as in the kubelet.
const EVICTION_GRACE: Duration = Duration::from_secs(1);

/// What the API wants of a Pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Desired {
    Run(RestartPolicy),
    /// Stop: the Pod is being deleted with this grace period.
    Stop(Duration),
    /// The phase is final: nothing may run any more. The grace period is for a VM that still does.
    Finished(Duration),
    /// The API no longer has the Pod.
    Gone,
}

/// Everything that a decision depends on.
#[derive(Debug, Clone, PartialEq)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact that is seen on its own")]
pub(crate) struct Observation {
    pub(crate) desired: Desired,
    /// Whether the API server has shown the Pod to this agent, or that it is gone. Until then an earlier agent's knowledge has to do.
    pub(crate) is_confirmed: bool,
    pub(crate) refused: bool,
    /// Whether the state directory has the Pod's record.
    pub(crate) accepted: bool,
    /// The Pod's containers by the VMs that they run in; empty for a Pod that cannot be read.
    pub(crate) segments: Vec<Segment>,
    /// The Pod's VM runs, oldest first.
    pub(crate) runs: Vec<VmRunView>,
    /// The last VM that the API shows as started. The state directory may lack it.
    pub(crate) started: Option<Restart>,
    /// What probes say of the current container; absent without probes.
    pub(crate) health: Option<ContainerHealth>,
    /// When the agent may plan a VM or answer a command request again, after an image or input was missing.
    pub(crate) retry_at: Option<Timestamp>,
    /// Whether a volume, or the Pod's whole disk usage, exceeds its limit.
    pub(crate) too_large: bool,
    /// Why the Pod is evicted, if it is.
    pub(crate) evicted: Option<String>,
    /// Whether any of its volumes is on the disk.
    pub(crate) has_volumes: bool,
    /// Whether the agent has failed to remove them when it last tried.
    pub(crate) vain_wipe: bool,
    pub(crate) deadline: Option<Deadline>,
    /// The VM without a shim whose guest the agent has asked, even if that could not be recorded.
    pub(crate) asked: Option<Restart>,
    /// Vain stops in a row of a VM without a shim.
    pub(crate) vain_stops: u32,
    /// Vain deletions in a row of a VM whose shim has not exited.
    pub(crate) vain_cleans: u32,
    /// Whether the API server has accepted a final phase for this Pod.
    pub(crate) final_status_published: bool,
    /// The time of the observation. All times of decisions are of the clock that never jumps.
    pub(crate) now: Timestamp,
    /// The same time by the wall clock, for what users see.
    pub(crate) wall: Timestamp,
}

/// The end of `activeDeadlineSeconds`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Deadline {
    pub(crate) at: Timestamp,
    /// How long the guest may then take to shut down.
    pub(crate) grace: Duration,
}

impl Observation {
    /// The active deadline, if the Pod has missed it. A Pod that was over in time has not, whenever the API server learns of it.
    pub(crate) fn missed_deadline(&self) -> Option<Deadline> {
        let in_time = |at| self.last_end().is_some_and(|(run, end)| run.ended_at(end) < at);
        self.deadline.filter(|deadline| {
            deadline.at <= self.now && matches!(self.desired, Desired::Run(_)) && !in_time(deadline.at)
        })
    }

    /// Why the Pod is evicted, unless its container ended by itself before the agent stopped it.
    pub(crate) fn eviction(&self) -> Option<&str> {
        self.evicted.as_deref().filter(|_| !self.has_ended_by_itself())
    }

    /// Whether the container has ended and does not restart.
    pub(crate) fn is_over(&self) -> bool {
        self.last_end().is_some()
    }

    fn has_ended_by_itself(&self) -> bool {
        self.last_end().is_some_and(|(run, end)| {
            let is_own = end.ending.has_own_code() || matches!(end.ending, Ending::InitFailed { .. });
            run.stop.is_none() && is_own
        })
    }

    /// The end of a container that does not restart.
    fn last_end(&self) -> Option<(&VmRunView, &Outcome)> {
        let run = self.runs.last()?;
        let end = run.outcome.as_ref().or(run.result.as_ref())?;
        let is_last = matches!(self.verdict(run, end), RestartDecision::Succeeded | RestartDecision::Failed);
        is_last.then_some((run, end))
    }

    /// A VM in `containerStatuses` that the state directory lacks, e.g. after a reinstall.
    pub(crate) fn forgotten(&self) -> Option<Restart> {
        let is_desired = matches!(self.desired, Desired::Run(_) | Desired::Stop(_));
        self.started.filter(|_| self.runs.is_empty() && is_desired)
    }

    /// Whether macOS may count a VM of the Pod: a shim has begun it, and it is not known to be over.
    pub(crate) fn has_vm(&self) -> bool {
        let counts = |run: &VmRunView| match run.holder {
            Holder::Tart => true,
            Holder::Shim => run.outcome.is_none(),
            Holder::None => run.begun && run.outcome.is_none(),
        };
        self.runs.iter().any(counts)
    }

    /// The number of the segment that the next VM runs.
    pub(crate) fn next_segment(&self) -> usize {
        next_segment(&self.segments, &self.runs)
    }

    /// Whether a VM was planned with another image than the Pod names now for the same containers.
    pub(crate) fn is_outdated(&self, run: &VmRunView) -> bool {
        let Some(spec) = &run.spec else { return false };
        let first = spec.main.as_ref().or_else(|| spec.init.first()).map(|container| &container.name);
        let named = first.and_then(|name| self.segments.iter().find(|segment| segment.has(name)));
        spec.image_name.as_ref().zip(named).is_some_and(|(planned, named)| *planned != named.image)
    }

    /// Whether a VM was planned for other containers than the next VM is to run now, or with another image.
    fn is_replanned(&self, run: &VmRunView) -> bool {
        let (Some(spec), Some(next)) = (&run.spec, self.segments.get(self.next_segment())) else {
            return false;
        };
        let is_other = spec.main.is_some() != next.main.is_some()
            || !spec.init.iter().map(|container| &container.name).eq(&next.init);
        // The plan of an older agent names no image, and has all init containers.
        spec.image_name.is_some() && (is_other || self.is_outdated(run))
    }

    /// What follows the end of a container.
    pub(crate) fn verdict(&self, run: &VmRunView, outcome: &Outcome) -> RestartDecision {
        let (stop, ended_at) = (run.effective_stop(), run.ended_at(outcome));
        // The next VM follows at once. In a Pod that is to stop, the main container has not run.
        if outcome.ending == Ending::Initialized && matches!(self.desired, Desired::Run(_)) {
            return RestartDecision::Restart { at: ended_at, crashes: 0, delay: Duration::ZERO };
        }
        let Desired::Run(policy) = self.desired else {
            // A Pod that is to stop does not restart under any policy.
            return verdict(RestartPolicy::Never, 0, stop, outcome, ended_at);
        };
        match stop.and_then(|stop| stop.cause) {
            // As in the kubelet: a container that was stopped for another image restarts with it under every policy.
            Some(StopCause::Changed) => {
                RestartDecision::Restart { at: ended_at, crashes: 0, delay: Duration::ZERO }
            }
            // Failures with another image do not count.
            _ if self.is_outdated(run) => verdict(policy, 0, stop, outcome, ended_at),
            _ => verdict(policy, run.crashes(), stop, outcome, ended_at),
        }
    }

    /// Whether nothing of the Pod runs.
    pub(crate) fn is_idle(&self) -> bool {
        self.runs.iter().all(|run| run.outcome.is_some() && run.holder != Holder::Tart)
    }
}

/// The next step for a Pod.
pub(crate) fn decide(seen: &Observation) -> Decision {
    let step = match step(seen) {
        step if step.needs_api_server() && !seen.is_confirmed => Decision::Wait(None),
        step => step,
    };
    match (step, seen.deadline) {
        // The worker wakes up at the deadline.
        (Decision::Wait(until), Some(Deadline { at, .. })) if at > seen.now => {
            Decision::Wait(Some(until.map_or(at, |until| until.min(at))))
        }
        (step, _) => step,
    }
}

fn step(seen: &Observation) -> Decision {
    // This VM may still run, whatever is desired.
    if let Some(restart) = seen.forgotten() {
        let is_new = matches!(seen.desired, Desired::Run(_)) && !seen.accepted && !seen.refused;
        return if is_new { Decision::Accept } else { Decision::RecordMissingRun(restart) };
    }
    if let Some(Deadline { grace, .. }) = seen.missed_deadline() {
        return put_away(seen, grace).unwrap_or(Decision::Wait(None));
    }
    if let Desired::Run(_) = seen.desired {
        if seen.eviction().is_some() {
            return put_away(seen, EVICTION_GRACE).unwrap_or(Decision::Wait(None));
        }
        if seen.too_large && seen.is_confirmed && seen.evicted.is_none() && !seen.has_ended_by_itself() {
            return Decision::Evict;
        }
    }
    match seen.desired {
        Desired::Run(_) if seen.refused && !seen.accepted => Decision::Wait(None),
        Desired::Run(_) if !seen.accepted => Decision::Accept,
        // The container does not restart, even if the API server does not know yet.
        Desired::Run(_) if seen.is_over() && seen.is_idle() => {
            put_away(seen, Duration::ZERO).unwrap_or(Decision::Wait(None))
        }
        Desired::Run(_) => run(seen),
        Desired::Stop(grace) => put_away(seen, grace).unwrap_or(if seen.final_status_published {
            Decision::DeletePod
        } else {
            Decision::Wait(None)
        }),
        Desired::Finished(grace) => put_away(seen, grace).unwrap_or(Decision::Wait(None)),
        Desired::Gone => put_away(seen, Duration::ZERO).unwrap_or(Decision::ForgetPod),
    }
}

fn run(seen: &Observation) -> Decision {
    let Some((current, older)) = seen.runs.split_last() else {
        return plan(seen, Restart(0), 0);
    };
    if let Some(step) = older.iter().find_map(|old| end(seen, old, Duration::ZERO)) {
        return step;
    }
    // Two records stay: those of the main container's previous VM, which are its `lastState` and its log, and those of the VM before this
    // one, which the next plan may need.
    let previous = older.last();
    let of_main = older.iter().rfind(|old| old.has_main());
    let is_kept =
        |old: &VmRunView| [previous, of_main].into_iter().flatten().any(|it| it.restart == old.restart);
    if let Some(old) = older.iter().find(|old| !is_kept(old)) {
        return Decision::ForgetRun(old.restart);
    }
    match (current.holder, &current.outcome, current.begun, &current.spec) {
        (Holder::Shim, None, ..) => attend(seen, current),
        (Holder::Tart, ..) => stop_without_shim(seen, current),
        (Holder::None, None, false, None) => plan(seen, current.restart, crashes_before(seen, previous)),
        (Holder::None, None, false, Some(_)) if seen.is_replanned(current) => {
            plan(seen, current.restart, current.crashes())
        }
        (Holder::None, None, false, Some(_)) => Decision::Launch(current.restart),
        (Holder::None, None, true, _) => Decision::RecordLoss(current.restart),
        (Holder::Shim | Holder::None, Some(_), ..) if !current.cleaned => clean(seen, current),
        (Holder::Shim | Holder::None, Some(outcome), ..) => match seen.verdict(current, outcome) {
            RestartDecision::Restart { at, crashes, .. } if at <= seen.now => {
                plan(seen, current.restart.next(), crashes)
            }
            RestartDecision::Restart { at, .. } => Decision::Wait(Some(at)),
            RestartDecision::Succeeded | RestartDecision::Failed => Decision::Wait(None),
        },
    }
}

/// The next step for a VM with a live shim: none, unless the shim asks for something, a probe has failed, or the Pod names another image.
fn attend(seen: &Observation, current: &VmRunView) -> Decision {
    if let Some(stop) = current.stop.filter(|stop| stop.cause.is_some()) {
        return await_shim(current.restart, stop, seen.now);
    }
    // As in the kubelet, an init container runs to its end with the image that it has. A Pod that is refused now would not restart, and one
    // that is not confirmed would not restart yet.
    let restarts = seen.is_confirmed && !seen.refused;
    let has_changed = current.has_main() && seen.is_outdated(current) && restarts;
    let changed = has_changed.then_some(StopCause::Changed);
    match changed.or_else(|| seen.health?.failed) {
        // The container has ended by itself meanwhile.
        Some(cause) if current.result.is_none() => Decision::StopFor(current.restart, cause),
        _ if current.wants_disk_space => Decision::FreeSpace(current.restart),
        _ if current.command_request.is_none() => Decision::Wait(None),
        _ => match seen.retry_at {
            Some(at) if at > seen.now => Decision::Wait(Some(at)),
            _ => Decision::SendCommand(current.restart),
        },
    }
}

fn plan(seen: &Observation, restart: Restart, crashes: u32) -> Decision {
    match seen.retry_at {
        // An admitted Pod that cannot be read now: its status says so.
        _ if seen.refused => Decision::Wait(None),
        Some(at) if at > seen.now => Decision::Wait(Some(at)),
        _ => Decision::Plan { restart, segment: seen.next_segment(), crashes },
    }
}

/// The next step until nothing of a Pod runs and its volumes, which may hold secrets, are gone; `None` when that is so. Volumes go as soon
/// as nothing runs, because the deletion of a VM may take long. Volumes that cannot be removed delay no VM.
fn put_away(seen: &Observation, grace: Duration) -> Option<Decision> {
    let wipe = (seen.has_volumes && seen.is_idle()).then_some(Decision::RemoveVolumes);
    let tear_down = tear_down(seen, grace);
    if seen.vain_wipe { tear_down.or(wipe) } else { wipe.or(tear_down) }
}

/// The failures in a row before a VM whose plan was never written.
fn crashes_before(seen: &Observation, previous: Option<&VmRunView>) -> u32 {
    let ended = previous.and_then(|view| Some((view, view.outcome.as_ref()?)));
    match ended.map(|(view, outcome)| seen.verdict(view, outcome)) {
        Some(RestartDecision::Restart { crashes, .. }) => crashes,
        _ => 0,
    }
}

/// The next step until nothing of a Pod runs; `None` when nothing does.
fn tear_down(seen: &Observation, grace: Duration) -> Option<Decision> {
    seen.runs.iter().find_map(|run| end(seen, run, grace))
}

/// The next step until a VM is gone; `None` when it is.
fn end(seen: &Observation, run: &VmRunView, grace: Duration) -> Option<Decision> {
    let (restart, now) = (run.restart, seen.now);
    match (run.holder, &run.outcome) {
        (Holder::Shim, None) => {
            // A shortened grace period counts from now. An unchanged one is already running.
            let Some(stop) = run.stop.filter(|stop| stop.deadline <= later(now, grace)) else {
                return Some(Decision::AskToStop(restart, grace));
            };
            Some(await_shim(restart, stop, now))
        }
        (Holder::Tart, _) => Some(stop_without_shim(seen, run)),
        (Holder::None, None) => Some(Decision::RecordLoss(restart)),
        (Holder::Shim | Holder::None, Some(_)) if !run.cleaned => Some(clean(seen, run)),
        (Holder::Shim | Holder::None, Some(_)) => None,
    }
}

/// The next step for a VM that is over. A shim that has written its outcome should exit.
fn clean(seen: &Observation, run: &VmRunView) -> Decision {
    let is_stuck = run.holder == Holder::Shim && seen.vain_cleans >= VAIN_CLEANS;
    if is_stuck { Decision::KillShim(run.restart) } else { Decision::DeleteVm(run.restart) }
}

/// The next step for a VM without a shim of which something still runs.
fn stop_without_shim(seen: &Observation, run: &VmRunView) -> Decision {
    let restart = run.restart;
    let is_asked = run.guest_asked || seen.asked == Some(restart);
    // The API no longer has the Pod, so its exit code is of no use.
    if run.outcome.is_none() && !is_asked && seen.desired != Desired::Gone {
        Decision::AskGuest(restart)
    } else if seen.vain_stops < MAX_STOPS {
        Decision::StopWithoutShim(restart)
    } else {
        Decision::KillStrayProcesses(restart)
    }
}

/// The next step for a VM that its shim was asked to stop.
fn await_shim(restart: Restart, stop: StopRequest, now: Timestamp) -> Decision {
    let overdue = later(stop.deadline, SHIM_PATIENCE);
    if now < overdue { Decision::Wait(Some(overdue)) } else { Decision::KillShim(restart) }
}
