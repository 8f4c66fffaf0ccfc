//! What a worker has done about the shims of its Pod's VMs, and how often in vain. Only the worker's memory has it: after a restart of the
//! agent each step is tried anew.

use super::launch::Launched;
use crate::names::Restart;
use crate::pod::sync::decide::Decision;

#[derive(Debug, Default)]
pub(super) struct ShimHistory {
    /// The shim that was started last.
    launched: Option<Launched>,
    /// The VM without a shim whose guest was asked last.
    asked: Option<Restart>,
    /// The VM without a shim that was told to stop last.
    stopped: Option<Restart>,
    vain_stops: u32,
    vain_cleans: u32,
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

    pub(super) fn launched(&mut self, launched: Option<Launched>) {
        self.launched = launched;
    }

    /// The shim that was started last, if it was for this VM.
    pub(super) fn take_launched(&mut self, restart: Restart) -> Option<Launched> {
        self.launched.take().filter(|launched| launched.is_for(restart))
    }

    pub(super) fn asked(&self) -> Option<Restart> {
        self.asked
    }

    pub(super) fn asks(&mut self, restart: Restart) {
        self.asked = Some(restart);
    }

    /// What the guest said could not be recorded; it is asked again.
    pub(super) fn ask_again(&mut self) {
        self.asked = None;
    }

    /// A VM without a shim is told to stop. Counted before the result is known: a stop that hangs is in vain, too.
    pub(super) fn stops(&mut self, restart: Restart) {
        self.stopped = Some(restart);
        self.vain_stops += 1;
    }

    pub(super) fn has_stopped(&self, restart: Restart) -> bool {
        self.stopped == Some(restart)
    }

    /// How often in a row a VM without a shim was told to stop.
    pub(super) fn vain_stops(&self) -> u32 {
        self.vain_stops
    }

    /// A VM was to be deleted, and its shim has gone or not.
    pub(super) fn cleans(&mut self, shim_is_gone: bool) {
        self.vain_cleans = if shim_is_gone { 0 } else { self.vain_cleans + 1 };
    }

    /// How often in a row a VM could not be deleted because its shim has not gone.
    pub(super) fn vain_cleans(&self) -> u32 {
        self.vain_cleans
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stops_and_cleans_count_until_another_step_succeeds() {
        let mut history = ShimHistory::default();
        let counts = |history: &ShimHistory| (history.vain_stops(), history.vain_cleans());
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
        assert!(history.has_stopped(Restart(1)) && !history.has_stopped(Restart(0)));
    }
}
