//! A VM run, read at one moment.

use jiff::Timestamp;

use super::{Holder, VmRun};
use crate::clock;
use crate::fs::file::FileError;
use crate::names::Restart;
use crate::state::outcome::{Ending, Outcome};
use crate::state::records::{CommandRequest, InitStage, InitState, Notice, Progress, Stage, StopRequest};
use crate::state::shim_spec::ShimSpec;

/// All files of a VM run, read in an order that makes them consistent.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(Default))]
#[allow(clippy::struct_excessive_bools, reason = "each is a file that exists or not")]
pub(crate) struct VmRunView {
    pub(crate) restart: Restart,
    pub(crate) holder: Holder,
    /// Absent when the agent died before it had written it.
    pub(crate) spec: Option<ShimSpec>,
    /// Whether a shim has ever started the run.
    pub(crate) begun: bool,
    pub(crate) progress: Option<Progress>,
    pub(crate) init: Vec<InitState>,
    pub(crate) notices: Vec<Notice>,
    pub(crate) wants_disk_space: bool,
    pub(crate) command_request: Option<CommandRequest>,
    pub(crate) stop: Option<StopRequest>,
    /// The outcome of the container while the VM may still run.
    pub(crate) result: Option<Outcome>,
    /// Whether the container ended before the shim had read any stop request.
    pub(crate) ended_before_stop: bool,
    /// Whether the agent has asked the guest for an end that the shim did not live to record.
    pub(crate) guest_asked: bool,
    /// The outcome of the run; nothing of it runs any more.
    pub(crate) outcome: Option<Outcome>,
    /// The time of the outcome or the result, by the clock that never jumps.
    pub(crate) ended_at: Option<Timestamp>,
    /// When the shim reached its stage, by the clock that never jumps.
    pub(crate) stage_since: Option<Timestamp>,
    /// Whether tart has deleted the VM.
    pub(crate) cleaned: bool,
}

impl VmRun {
    pub(crate) fn view(&self) -> Result<VmRunView, FileError> {
        // The lock first: a shim writes its outcome before it releases its lock, so a lock that is free makes the outcome, or its
        // absence, final.
        let holder = self.holder()?;
        let mut view = VmRunView {
            restart: self.restart,
            holder,
            spec: self.read("spec.json")?,
            begun: self.has_begun()?,
            progress: self.read("progress.json")?,
            init: self.read("init.json")?.unwrap_or_default(),
            notices: self.read("notices.json")?.unwrap_or_default(),
            wants_disk_space: self.wants_disk_space(),
            command_request: self.command_request()?,
            stop: self.stop_request()?,
            result: self.read("result.json")?,
            ended_before_stop: self.path.join("ended-before-stop").exists(),
            guest_asked: self.path.join("guest-asked").exists(),
            // A spoilt outcome counts as none: the agent writes `Lost` in its place.
            outcome: self.read("outcome.json")?,
            ended_at: None,
            stage_since: None,
            cleaned: self.is_cleaned(),
        };
        let end = view.outcome.as_ref().or(view.result.as_ref());
        view.ended_at = end.map(|end| clock::of_record(end.finished_at));
        view.stage_since = view.progress.as_ref().map(|progress| clock::of_record(progress.since));
        Ok(view)
    }
}

impl VmRunView {
    /// How often in a row the container had failed before this run; 0 where the spec is lost.
    pub(crate) fn crashes(&self) -> u32 {
        self.spec.as_ref().map_or(0, |spec| spec.crashes)
    }

    /// Whether the run is the main container's, and not only for init containers. A run whose spec is lost counts as the main container's:
    /// it may have started.
    pub(crate) fn has_main(&self) -> bool {
        self.spec.as_ref().is_none_or(|spec| spec.main.is_some())
    }

    /// How often the main container had restarted before the last of a Pod's runs.
    pub(crate) fn main_restarts(runs: &[Self]) -> u32 {
        let Some((last, before)) = runs.split_last() else { return 0 };
        match &last.spec {
            Some(spec) => spec.main_restarts.unwrap_or(last.restart.0),
            None if before.is_empty() => last.restart.0,
            None => Self::next_main_restarts(before),
        }
    }

    /// How often the main container will have restarted before the run that follows these.
    pub(crate) fn next_main_restarts(runs: &[Self]) -> u32 {
        // Without a spec, it may have started if a shim had begun the run.
        let may_have_run = |last: &Self| last.spec.is_some() || last.begun || last.outcome.is_some();
        let has_run = |last: &Self| last.has_main() && may_have_run(last);
        Self::main_restarts(runs).saturating_add(u32::from(runs.last().is_some_and(has_run)))
    }

    /// The Pod's init containers, as this run and those before it left them.
    pub(crate) fn init_states(&self) -> Vec<InitState> {
        let before = self.spec.as_ref().map(|spec| spec.init_before.as_slice()).unwrap_or_default();
        let elsewhere = before.iter().filter(|known| self.init.iter().all(|own| own.name != known.name));
        let mut states: Vec<InitState> = elsewhere.chain(&self.init).cloned().collect();
        if let Some((name, outcome)) = self.failed_init() {
            let over = InitStage::Over(outcome.clone());
            match states.iter_mut().find(|state| state.name == *name) {
                Some(state) if state.now == InitStage::Waiting => state.now = over,
                Some(_) => {}
                None => states.push(InitState { now: over, ..InitState::new(name) }),
            }
        }
        states
    }

    /// The init container whose turn it was when a VM that is only for init containers ended without their success. A VM that did not start
    /// has failed for this container.
    pub(crate) fn failed_init(&self) -> Option<(&String, &Outcome)> {
        let spec = self.spec.as_ref().filter(|spec| spec.main.is_none())?;
        let outcome = self.outcome.as_ref().filter(|outcome| outcome.ending != Ending::Initialized)?;
        let has_succeeded = |name: &String| self.init.iter().any(|it| it.name == *name && it.has_succeeded());
        let mut names = spec.init.iter().map(|container| &container.name);
        names.find(|name| !has_succeeded(name)).map(|name| (name, outcome))
    }

    /// When the container ended, by the clock that never jumps.
    pub(crate) fn ended_at(&self, outcome: &Outcome) -> Timestamp {
        self.ended_at.unwrap_or(outcome.finished_at)
    }

    /// The stop request, unless the container had ended before the shim read it.
    pub(crate) fn effective_stop(&self) -> Option<StopRequest> {
        self.stop.filter(|_| !self.ended_before_stop)
    }

    /// The container that runs, and since when.
    pub(crate) fn running_container(&self) -> Option<(&str, Timestamp)> {
        let main = || Some((self.spec.as_ref()?.main.as_ref()?.name.as_str(), self.running_since()?));
        let init = |state: &InitState| match state.now {
            InitStage::Running(since) => Some(since),
            _ => None,
        };
        let mut running = self.init.iter().filter_map(|state| Some((state.name.as_str(), init(state)?)));
        running.next().or_else(main).filter(|_| self.outcome.is_none())
    }

    /// When the main container started; absent when it never did.
    pub(crate) fn running_since(&self) -> Option<Timestamp> {
        let running = |progress: &&Progress| matches!(progress.stage, Stage::Running { .. });
        self.progress.as_ref().filter(running).map(|progress| progress.since)
    }
}

#[cfg(test)]
impl VmRunView {
    /// A run of which nothing is written yet.
    pub(crate) fn example(restart: u32) -> Self {
        Self { restart: Restart(restart), ..Self::default() }
    }
}
