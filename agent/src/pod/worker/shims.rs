//! The shims of a Pod's VMs: the start of one, and what the worker has done about those that are gone or stuck. Only the worker's memory has
//! the latter: after a restart of the agent each step is tried anew.

use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::Duration;

use nix::libc;
use tokio::task::{JoinHandle, block_in_place};
use tokio::time::{Instant, timeout};

use super::retry::StepError;
use super::{RETRY, SAFETY_NET, Worker};
use crate::names::Restart;
use crate::pod::sync::decide::Decision;
use crate::shim;
use crate::state::{Holder, VmRunView};

/// A shim records at once that it has begun. One that has not after this time cannot write.
const BEGIN_LIMIT: Duration = Duration::from_secs(10);

/// A shim that lives and has not recorded that it has begun.
#[derive(Debug)]
struct UnbegunShim {
    restart: Restart,
    /// When the worker first saw it.
    since: Instant,
    is_told: bool,
}

#[derive(Debug, Default)]
pub(super) struct ShimHistory {
    /// The VM whose shim was started last, and the end of that shim.
    launched: Option<(Restart, JoinHandle<Option<ExitStatus>>)>,
    /// The VM without a shim whose guest was asked last.
    pub(super) asked: Option<Restart>,
    /// The VM without a shim that was told to stop last.
    pub(super) stopped: Option<Restart>,
    /// How often in a row a VM without a shim was told to stop.
    pub(super) vain_stops: u32,
    /// How often in a row a VM could not be deleted because its shim has not gone.
    pub(super) vain_cleans: u32,
    unbegun: Option<UnbegunShim>,
}

impl ShimHistory {
    /// A step has succeeded: what was in vain before it no longer counts.
    pub(super) fn succeeded(&mut self, decision: Decision) {
        if !matches!(decision, Decision::StopWithoutShim(_)) {
            self.vain_stops = 0;
        }
        if !matches!(decision, Decision::DeleteVm(_)) {
            self.vain_cleans = 0;
        }
    }

    /// The VM whose shim has not begun within [`BEGIN_LIMIT`], once for each shim.
    pub(super) fn stuck(&mut self, runs: &[VmRunView], now: Instant) -> Option<Restart> {
        let unbegun = runs.last().filter(|run| run.holder == Holder::Shim && !run.begun);
        let restart = unbegun.map(|run| run.restart);
        self.unbegun.take_if(|known| Some(known.restart) != restart);
        let known = self.unbegun.get_or_insert(UnbegunShim { restart: restart?, since: now, is_told: false });
        let is_due = !known.is_told && now.duration_since(known.since) >= BEGIN_LIMIT;
        known.is_told |= is_due;
        is_due.then_some(known.restart)
    }

    /// A shim that is stuck may begin now. If it does not, that is told later.
    pub(super) fn may_begin(&mut self) {
        self.unbegun = None;
    }

    /// A VM without a shim is told to stop. Counted before the result is known: a stop that hangs is in vain, too.
    pub(super) fn stops(&mut self, restart: Restart) {
        self.stopped = Some(restart);
        self.vain_stops += 1;
    }

    /// A VM was to be deleted, and its shim has gone or not.
    pub(super) fn cleans(&mut self, shim_is_gone: bool) {
        self.vain_cleans = if shim_is_gone { 0 } else { self.vain_cleans + 1 };
    }
}

impl Worker {
    pub(super) async fn launch(&mut self, restart: Restart) -> Result<(), StepError> {
        // A second start is decided on only if the first shim has ended before it took the VM up.
        if let Some((_, end)) = self.shims.launched.take().filter(|(vm, _)| *vm == restart) {
            // That shim holds no lock any more, so its exit status comes in a moment.
            let status = timeout(RETRY, end).await.ok().and_then(|joined| joined.ok().flatten());
            let killed = status.is_some_and(|status| status.signal() == Some(libc::SIGKILL));
            let status = status.map_or_else(|| "exit status unknown".to_owned(), |status| status.to_string());
            return Err(StepError::ShimDied { status, killed, log: self.dir.shim_log_path(restart) });
        }
        if let Some(unknown) = self.unknown_vm(restart)? {
            // A user has deleted the Pod's directory while that VM ran. Recorded as begun again, it does not run twice.
            if self.stop_unknown(&unknown).await? {
                unknown.create_begun()?;
            }
            return Ok(());
        }
        let slots = &self.host.registry.slots;
        let mut changes = slots.changes();
        if !slots.take(self.dir.uid()) {
            self.reporter.waits_for_slot(&self.updates.pod());
            tokio::select! {
                Ok(()) = changes.changed() => {}
                () = self.wait_at_most(SAFETY_NET) => {}
            }
            return Ok(());
        }
        let waker = self.watcher.waker();
        let ended = move || waker.notify_one();
        let run = self.dir.run(restart);
        let end = block_in_place(|| shim::launch(&self.host.vms.shim, &self.dir, &run, ended))?;
        self.shims.launched = end.map(|end| (restart, end));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shim_that_does_not_begin_is_told_once() {
        let mut history = ShimHistory::default();
        let begun = Instant::now();
        let run = |restart, holder, begun| VmRunView {
            restart: Restart(restart),
            holder,
            begun,
            ..VmRunView::default()
        };
        let mut stuck = |run: VmRunView, second| history.stuck(&[run], begun + Duration::from_secs(second));
        assert_eq!(stuck(run(0, Holder::Shim, false), 0), None);
        assert_eq!(stuck(run(0, Holder::Shim, false), 9), None);
        assert_eq!(stuck(run(0, Holder::Shim, false), 10), Some(Restart(0)));
        assert_eq!(stuck(run(0, Holder::Shim, false), 60), None, "it was told");
        assert_eq!(stuck(run(1, Holder::Shim, false), 60), None, "another shim");
        assert_eq!(stuck(run(1, Holder::Shim, true), 80), None, "it has begun");
        assert_eq!(stuck(run(1, Holder::None, false), 100), None, "it is gone");
        assert_eq!(stuck(run(1, Holder::Shim, false), 120), None, "it was started anew");
        assert_eq!(stuck(run(1, Holder::Shim, false), 130), Some(Restart(1)));
        history.may_begin();
        assert_eq!(history.stuck(&[run(1, Holder::Shim, false)], begun + Duration::from_secs(140)), None);
        assert_eq!(history.stuck(&[], begun), None);
    }

    #[test]
    fn stops_and_cleans_count_until_another_step_succeeds() {
        let mut history = ShimHistory::default();
        let counts = |history: &ShimHistory| (history.vain_stops, history.vain_cleans);
        for _ in 0..2 {
            history.stops(Restart(1));
            history.succeeded(Decision::StopWithoutShim(Restart(1)));
        }
        assert_eq!(counts(&history), (2, 0));
        history.cleans(false);
        history.succeeded(Decision::DeleteVm(Restart(1)));
        assert_eq!(counts(&history), (0, 1));
        history.cleans(true);
        assert_eq!(counts(&history), (0, 0));
        history.cleans(false);
        history.succeeded(Decision::Accept);
        assert_eq!(counts(&history), (0, 0));
        assert_eq!(history.stopped, Some(Restart(1)));
    }
}
