//! Init containers: one after the other, in the guest of the main container or in one of their own.

use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::sleep;
use tracing::warn;

use super::ContainerStart;
use crate::backoff::CONTAINER_RESTART;
use crate::crash_point;
use crate::error_chain::chain;
use crate::guest::Guest;
use crate::shim::Shim;
use crate::shim::outcome::messages::stopped_before_start;
use crate::state::{ContainerSpec, Ending, InitStage, InitState, NotStarted, NotStartedReason, Outcome};

/// What follows the end of an init container.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Container,
    Restart(Duration),
    Fail,
}

impl Shim {
    /// Runs each init container until it succeeds. An error when nothing can run after them.
    pub(super) async fn run_init_containers(&self, guest: &mut Guest, address: IpAddr) -> Result<(), Ending> {
        let before = |spec: &ContainerSpec| {
            let known = self.spec.init_before.iter().find(|state| state.name == spec.name);
            let known = known.cloned().unwrap_or_else(|| InitState::new(&spec.name));
            InitState { ran_in: None, ..known }
        };
        let mut states: Vec<InitState> = self.spec.init.iter().map(before).collect();
        for (index, planned) in self.spec.init.iter().enumerate() {
            let Some(command) = &planned.command else { continue };
            let mut failures = 0;
            loop {
                if states[index].last.is_some() {
                    states[index].restarts += 1;
                }
                let asks = planned.asks_for_command && (index > 0 || failures > 0);
                let asked_restarts = asks.then_some(states[index].restarts);
                if asks {
                    states[index].now = InitStage::Waiting;
                    self.record_init(&states);
                }
                let Some(command) = self.command_of(planned, command, asked_restarts).await else {
                    return Err(stopped_before_start().into());
                };
                let command = command.as_ref();
                let spec = &self.with_own_log(planned, states[index].restarts);
                let identity = (index == 0).then_some(&self.spec.identity);
                let start = ContainerStart { spec, command, address, identity, is_main: false };
                let mut started_at = None;
                let ending = self.run_container(guest, start, |at, _| {
                    started_at = Some(at);
                    states[index].now = InitStage::Running(at);
                    self.record_init(&states);
                    crash_point::point("shim.init.started");
                });
                let ending = ending.await;
                crash_point::point("shim.init.exit");
                match &ending {
                    Ending::NotStarted(NotStarted { reason: NotStartedReason::Stopped, .. }) => {
                        return Err(ending);
                    }
                    // The VM lives on, so that no outcome has the message.
                    Ending::NotStarted(NotStarted { message, .. }) => {
                        self.notice("Failed", format!("Error: {message}"));
                    }
                    _ => {}
                }
                let (is_lost, code) = (ending == Ending::Lost, ending.exit_code());
                let outcome = Outcome { ending, started_at, finished_at: Timestamp::now() };
                let next = next(code, self.spec.restart_init, failures);
                let is_stopping = self.stop.latest().is_some();
                if let Next::Restart(delay) = next
                    && !is_lost
                    && !is_stopping
                {
                    states[index].now = if delay.is_zero() {
                        InitStage::Over(outcome.clone())
                    } else {
                        InitStage::BackOff(delay)
                    };
                    states[index].last = Some(outcome);
                    self.record_init(&states);
                    crash_point::point("shim.init.failed");
                    let mut stop = self.stop.clone();
                    tokio::select! {
                        () = sleep(delay) => {}
                        _ = stop.requested() => return Err(stopped_before_start().into()),
                    }
                    failures += 1;
                    continue;
                }
                states[index].now = InitStage::Over(outcome);
                self.record_init(&states);
                if is_lost {
                    return Err(Ending::Lost);
                }
                if next == Next::Container {
                    crash_point::point("shim.init.over");
                    break;
                }
                return Err(if is_stopping {
                    stopped_before_start().into()
                } else {
                    Ending::InitFailed { container: spec.name.clone(), code }
                });
            }
        }
        Ok(())
    }

    /// The container with the log of this start. The log of the start before stays, older ones are removed.
    fn with_own_log(&self, spec: &ContainerSpec, restarts: u32) -> ContainerSpec {
        if let Err(error) = spec.keep_logs(restarts, 1) {
            warn!(vm = %self.spec.vm, error = chain(&error), "cannot remove old logs of an init container");
        }
        ContainerSpec { log: spec.log_after(restarts), ..spec.clone() }
    }

    fn record_init(&self, states: &[InitState]) {
        if let Err(error) = self.vm_run.record_init(states) {
            warn!(error = chain(&error), "cannot write the states of the init containers");
        }
    }
}

fn next(code: i32, restart: bool, failures: u32) -> Next {
    match code {
        0 => Next::Container,
        _ if restart => Next::Restart(CONTAINER_RESTART.after(failures)),
        _ => Next::Fail,
    }
}
