//! Init containers: one after the other, in the guest that the main container will run in.

use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::sleep;
use tracing::warn;

use super::{Run, Task};
use crate::backoff::restart_delay;
use crate::crash_point;
use crate::error_chain::chain;
use crate::guest::Guest;
use crate::shim::Shim;
use crate::shim::outcome::messages::stopped_early;
use crate::shim::outcome::run_result::GuestEnd;
use crate::state::{ContainerSpec, Ending, InitStage, InitState, Outcome};

/// What became of the init containers.
pub(crate) enum InitResult {
    /// All have succeeded.
    Done,
    /// It does not come to the main container.
    Ended(GuestEnd),
}

/// What becomes of one that has ended.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// The next one's turn.
    Go,
    /// The same one again, after this time.
    Again(Duration),
    /// The end.
    Fail(Ending),
}

impl Shim {
    /// Runs all init containers, each until it succeeds.
    pub(crate) async fn initialise(&self, guest: &mut Guest, address: IpAddr) -> InitResult {
        let before = |spec: &ContainerSpec| {
            let known = self.spec.init_before.iter().find(|state| state.name == spec.name);
            known.cloned().unwrap_or_else(|| InitState::new(&spec.name))
        };
        let mut states: Vec<InitState> = self.spec.init.iter().map(before).collect();
        for (index, planned) in self.spec.init.iter().enumerate() {
            let Some(command) = &planned.command else { continue };
            let mut failures = 0;
            loop {
                if states[index].last.is_some() {
                    states[index].restarts += 1;
                }
                let due = (planned.late && (index > 0 || failures > 0)).then_some(states[index].restarts);
                if due.is_some() {
                    states[index].now = InitStage::Waiting;
                    self.record(&states);
                }
                let Some(command) = self.command_of(planned, command, due).await else {
                    return InitResult::Ended(GuestEnd::Over(stopped_early()));
                };
                let command = command.as_ref();
                let spec = &self.with_own_log(planned, states[index].restarts);
                let identity = (index == 0).then_some(&self.spec.identity);
                let task = Task { spec, command, address, identity, is_main: false };
                let mut started_at = None;
                let run = self.run_container(guest, task, |at, _| {
                    started_at = Some(at);
                    states[index].now = InitStage::Running(at);
                    self.record(&states);
                    crash_point::point("shim.init.started");
                });
                let run = run.await;
                crash_point::point("shim.init.exit");
                let lost = run == Run::Lost;
                let ending = match run {
                    Run::Over(ending) => ending,
                    Run::NotBegun => return InitResult::Ended(GuestEnd::Over(stopped_early())),
                    Run::Overdue => Ending::Stopped { killed: true },
                    Run::Lost => Ending::Lost,
                };
                if let Ending::NotStarted { message, .. } = &ending {
                    // The VM lives on, so that nobody else tells why.
                    self.notice("Failed", format!("Error: {message}"));
                }
                let outcome = Outcome { ending, started_at, finished_at: Timestamp::now() };
                let next = next(spec, &outcome.ending, self.spec.init_again, failures);
                if lost || (self.stop.latest().is_some() && next != Next::Go) {
                    states[index].now = InitStage::Over(outcome);
                    self.record(&states);
                    return InitResult::Ended(if lost {
                        GuestEnd::Lost
                    } else {
                        GuestEnd::Over(stopped_early())
                    });
                }
                match next {
                    Next::Go => {
                        states[index].now = InitStage::Over(outcome);
                        self.record(&states);
                        crash_point::point("shim.init.over");
                        break;
                    }
                    Next::Fail(ending) => {
                        states[index].now = InitStage::Over(outcome);
                        self.record(&states);
                        return InitResult::Ended(GuestEnd::Over(ending));
                    }
                    Next::Again(delay) => {
                        states[index].now = if delay.is_zero() {
                            InitStage::Over(outcome.clone())
                        } else {
                            InitStage::BackOff(delay)
                        };
                        states[index].last = Some(outcome);
                        self.record(&states);
                        crash_point::point("shim.init.failed");
                        let mut stop = self.stop.clone();
                        tokio::select! {
                            () = sleep(delay) => {}
                            _ = stop.requested() => {
                                return InitResult::Ended(GuestEnd::Over(stopped_early()));
                            }
                        }
                        failures += 1;
                    }
                }
            }
        }
        InitResult::Done
    }

    /// A container with a log of its own for this start. That of the start before stays, and no other.
    fn with_own_log(&self, spec: &ContainerSpec, restarts: u32) -> ContainerSpec {
        if let Err(error) = spec.keep_logs(restarts, 1) {
            warn!(vm = %self.spec.vm, error = chain(&error), "old logs of an init container cannot be removed");
        }
        ContainerSpec { log: spec.log_after(restarts), ..spec.clone() }
    }

    fn record(&self, states: &[InitState]) {
        if let Err(error) = self.attempt.record_init(states) {
            warn!(error = chain(&error), "what the init containers do cannot be written down");
        }
    }
}

fn next(spec: &ContainerSpec, ending: &Ending, again: bool, failures: u32) -> Next {
    match ending.exit_code() {
        0 => Next::Go,
        _ if again => Next::Again(restart_delay(failures)),
        code => Next::Fail(Ending::InitFailed { container: spec.name.clone(), code }),
    }
}
