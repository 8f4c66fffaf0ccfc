//! A host gets another configuration.

use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt as _;
use kube::runtime::controller::Action;
use kube::runtime::events::EventType;
use kube::runtime::reflector::ObjectRef;

use super::host_work::{HostWork, Way};
use super::inputs::Lack;
use super::inputs::join_token;
use super::observe::is_ready;
use super::reconciler::{ReconcileError, Reconciler, reference, server};
use super::report;
use super::roll::Turn;
use crate::apiserver::call;
use crate::crd::{ConditionStatus, ScalewayAppleSiliconMachine as Machine};
use crate::names::MachineRef;

const SOON: Duration = Duration::from_secs(30);

/// A machine is being rolled as long as this is there.
pub(super) struct TakenTurn<'a> {
    reconciler: &'a Reconciler,
    machine: MachineRef,
}

impl Drop for TakenTurn<'_> {
    fn drop(&mut self) {
        self.reconciler.rolling().remove(&self.machine);
    }
}

impl Reconciler {
    pub(super) async fn roll(&self, machine: &Machine) -> Result<Action, ReconcileError> {
        let Some(_turn) = self.take_turn(machine) else { return Ok(Action::requeue(SOON)) };
        let result = Box::pin(self.roll_now(machine)).await;
        if let Ok((_, Some(written))) = &result {
            self.until_seen(written).await;
        }
        result.map(|(action, _)| action)
    }

    /// Takes a machine's turn, if it is its turn. Decided under the lock: another machine may have begun since.
    pub(super) fn take_turn(&self, machine: &Machine) -> Option<TakenTurn<'_>> {
        let this = reference(machine);
        let mut rolling = self.rolling();
        let turn = self.turn(machine, &rolling);
        (turn == Turn::Now && rolling.insert(this.clone()))
            .then_some(TakenTurn { reconciler: self, machine: this })
    }

    /// Waits until the watch shows what was written: whether this roll failed decides about the next.
    pub(super) async fn until_seen(&self, written: &Machine) {
        for _ in 0..100 {
            let seen = self.stores.machines.get(&ObjectRef::from_obj(written));
            if seen.is_none_or(|seen| seen.status == written.status) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Rolls a machine, and returns it as it was written.
    pub(super) async fn roll_now(
        &self,
        machine: &Machine,
    ) -> Result<(Action, Option<Machine>), ReconcileError> {
        let was_ready = self.node(&machine.name_any()).is_some_and(|node| is_ready(&node));
        let desired = self.desired(machine).await?.unwrap_or_default();
        let mut status = machine.status.clone().unwrap_or_default();
        let from = status.host_config_hash.clone().unwrap_or_default();
        let short = |hash: &str| hash.chars().take(12).collect::<String>();
        report::condition(
            &mut status,
            "HostUpToDate",
            ConditionStatus::False,
            "Rolling",
            "",
            Timestamp::now(),
        );
        status.desired_host_config_hash = Some(desired.clone());
        let machine = &self.save(machine, status).await?;
        let words = format!("the host gets configuration {} in place of {}", short(&desired), short(&from));
        self.events.say(machine, EventType::Normal, "RollingAgent", &words).await;
        let work = self.work(machine, Way::Roll).await?;
        let now = Timestamp::now();
        let fresh = call("read the machine", self.api(machine).get_opt(&machine.name_any())).await?;
        let Some(machine) = fresh.filter(|fresh| server(fresh) == server(machine)) else {
            return Ok((Action::requeue(Duration::ZERO), None));
        };
        let mut status = machine.status.clone().unwrap_or_default();
        let failed = match work {
            HostWork::Done { hash, tailnet, needs_token } => {
                report::in_tailnet(&mut status, tailnet);
                report::rolled(&mut status, &hash, self.config.agent.sha256().as_str(), now);
                // An agent that still has to join has an hour for it.
                if !needs_token {
                    join_token::remove(&self.client, &reference(&machine)).await?;
                }
                None
            }
            HostWork::Moved(addresses) => {
                status.addresses = addresses;
                self.save(&machine, status).await?;
                return Ok((Action::requeue(Duration::ZERO), None));
            }
            HostWork::Gone => {
                return self.host_gone(&machine, status, now).await.map(|action| (action, None));
            }
            // What says nothing about the host or the configuration halts no fleet.
            HostWork::Busy(word) => {
                let words = format!("the host is {word}");
                report::roll_waits(&mut status, "HostBusy", &words, now);
                self.save(&machine, status).await?;
                return Ok((Action::requeue(SOON), None));
            }
            HostWork::Lacks(Lack { reason, words }) => {
                report::roll_waits(&mut status, reason, &words, now);
                let machine = self.save(&machine, status).await?;
                self.events.say(&machine, EventType::Warning, reason, &words).await;
                return Ok((Action::requeue(SOON), None));
            }
            HostWork::Failed(words) => Some(words),
        };
        if let Some(words) = &failed {
            report::roll_failed(&mut status, &desired, self.limits.update_attempts, was_ready, words, now);
        }
        let machine = self.save(&machine, status).await?;
        self.metrics.rolled(failed.is_none());
        match failed {
            None => {
                let words =
                    format!("the host went from configuration {} to {}", short(&from), short(&desired));
                self.events.say(&machine, EventType::Normal, "AgentRolled", &words).await;
                Ok((Action::requeue(Duration::ZERO), Some(machine)))
            }
            Some(words) => {
                self.events.say(&machine, EventType::Warning, "AgentRollFailed", &words).await;
                Ok((Action::requeue(SOON), Some(machine)))
            }
        }
    }
}
