//! What a Pod's next VM runs, and what it takes over from the VMs before it.

use crate::names::Restart;
use crate::state::{InitState, InitVm, Segment, VmRunView};

/// What a VM run takes over from the runs before it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TakenOver {
    /// The Pod's init containers that have run.
    pub(crate) init: Vec<InitState>,
    /// How often the main container has restarted.
    pub(crate) main_restarts: u32,
}

/// The number of the segment that the next VM runs: the first with an init container that has not succeeded, or the last. An init container
/// in the main container's VM runs again in each new one, whose disk is new.
pub(crate) fn next_segment(segments: &[Segment], runs: &[VmRunView]) -> usize {
    let states = init_states(runs);
    let has_succeeded = |name: &String| states.iter().any(|it| it.name == *name && it.has_succeeded());
    let is_done = |segment: &Segment| segment.init.iter().all(has_succeeded);
    let last = segments.len().saturating_sub(1);
    segments.iter().take(last).position(|segment| !is_done(segment)).unwrap_or(last)
}

/// The Pod's init containers as its last run left them. A run whose spec is lost, or was never written, knows nothing of the runs before it.
pub(crate) fn init_states(runs: &[VmRunView]) -> Vec<InitState> {
    let known = runs.iter().rfind(|run| run.spec.is_some() || !run.init.is_empty());
    known.map(VmRunView::init_states).unwrap_or_default()
}

/// What a VM run with this segment takes over from the Pod's `runs` before it.
pub(crate) fn taken_over(runs: &[VmRunView], restart: Restart, segment: &Segment) -> TakenOver {
    let before = runs.partition_point(|run| run.restart < restart);
    let runs = &runs[..before];
    let main_restarts = VmRunView::next_main_restarts(runs);
    let known = runs.iter().rfind(|run| run.spec.is_some() || !run.init.is_empty());
    let Some((known, end)) = known.and_then(|run| Some((run, run.outcome.as_ref()?))) else {
        return TakenOver { init: Vec::new(), main_restarts };
    };
    let vm = known.spec.as_ref().map(|spec| InitVm {
        vm: spec.vm.clone(),
        image: spec.image.clone(),
        image_name: spec.image_name.clone(),
    });
    let take_over = |state: InitState| {
        // A container that has not run in that VM has run in one before it.
        let ran_there = known.init.iter().any(|own| own.name == state.name);
        let ran_in = if ran_there { vm.clone() } else { state.ran_in.clone() };
        let runs_again = segment.has(&state.name) || !state.has_succeeded();
        let state = if runs_again { state.in_next_vm(end) } else { state };
        InitState { ran_in, ..state }
    };
    TakenOver { init: known.init_states().into_iter().map(take_over).collect(), main_restarts }
}

#[cfg(test)]
mod tests;
