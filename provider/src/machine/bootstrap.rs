//! A host becomes a Node, is restarted, or is given up.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use kube::runtime::controller::Action;
use kube::runtime::events::EventType;
use serde_json::json;

use super::decide::Report;
use super::host_work::{HostWork, Way};
use super::inputs::Lack;
use super::reconciler::{ReconcileError, Reconciler, reference, server};
use super::release::Release;
use super::{delete, report};
use crate::apiserver::{call, change};
use crate::crd::{
    ConditionStatus, ScalewayAppleSiliconMachine as Machine, ScalewayAppleSiliconMachineStatus as Status,
    find_condition,
};
use crate::error_chain::chain;
use crate::pool::{Destination, PoolError};

const SOON: Duration = Duration::from_secs(30);
const LATER: Duration = Duration::from_mins(1);
const MUCH_LATER: Duration = Duration::from_mins(5);

impl Reconciler {
    pub(super) async fn bootstrap(&self, machine: &Machine) -> Result<Action, ReconcileError> {
        let known = machine.status.clone().unwrap_or_default();
        // The watch shows Macs only. The agent must not become the Node of another machine, whatever that is.
        if known.host_config_hash.is_none()
            && let Some(node) = delete::foreign_node(&self.client, machine).await?
        {
            let reason = "NodeNameTaken";
            let message = format!("the Node {node} is not this machine's; delete it if that host is gone");
            return self.report(machine, &Report::Refused { reason, message }, SOON).await;
        }
        let _turn = if known.ready && known.host_config_hash.is_some() {
            match self.take_turn(machine) {
                Some(turn) => Some(turn),
                None => return Ok(Action::requeue(SOON)),
            }
        } else {
            None
        };
        if known.bootstrap_attempts.is_none() {
            self.events.say(machine, EventType::Normal, "Bootstrapping", "the host becomes a Node").await;
        }
        let work = self.work(machine, Way::Join).await?;
        let now = Timestamp::now();
        let fresh = call("read the machine", self.api(machine).get_opt(&machine.name_any())).await?;
        // Work on a host takes minutes. What it has come to is written into the machine as it is now, unless that has lost the host.
        let Some(machine) = fresh.filter(|fresh| server(fresh) == server(machine)) else {
            return Ok(Action::requeue(Duration::ZERO));
        };
        let mut status = machine.status.clone().unwrap_or_default();
        let (action, event) = match work {
            HostWork::Done { hash, tailnet, .. } => {
                report::in_tailnet(&mut status, tailnet);
                report::converged(&mut status, &hash, self.config.agent.sha256().as_str(), now);
                (Action::requeue(SOON), None)
            }
            HostWork::Moved(addresses) => {
                status.addresses = addresses;
                (Action::requeue(Duration::ZERO), None)
            }
            HostWork::Busy(word) => {
                let words = format!("the host is {word}");
                report::condition(
                    &mut status,
                    "Bootstrapped",
                    ConditionStatus::False,
                    "HostNotReady",
                    &words,
                    now,
                );
                (Action::requeue(SOON), None)
            }
            HostWork::Lacks(Lack { reason, words }) => {
                let is = ConditionStatus::False;
                report::condition(&mut status, "Bootstrapped", is, reason, &words, now);
                (Action::requeue(MUCH_LATER), Some((reason, words)))
            }
            HostWork::Gone => return self.host_gone(&machine, status, now).await,
            HostWork::Failed(words) => {
                report::bootstrap_failed(&mut status, "BootstrapFailed", &words, now);
                (Action::requeue(SOON), Some(("BootstrapFailed", words)))
            }
        };
        self.save(&machine, status).await?;
        if let Some((reason, words)) = event {
            self.events.say(&machine, EventType::Warning, reason, &words).await;
        }
        Ok(action)
    }

    /// The pool has no such host any more. A machine that was never ready gets another. One that was stays, and is replaced by Cluster API: its
    /// Node has its identity.
    pub(super) async fn host_gone(
        &self,
        machine: &Machine,
        mut status: Status,
        now: Timestamp,
    ) -> Result<Action, ReconcileError> {
        let words = "the pool has no such host any more";
        self.events.say(machine, EventType::Warning, "HostGone", words).await;
        if status.ready {
            report::condition(&mut status, "Bootstrapped", ConditionStatus::False, "HostGone", words, now);
            status.last_bootstrap_failure_time = Some(Time(now));
            status.bootstrap_attempts = Some(status.bootstrap_attempts.unwrap_or(0).saturating_add(1));
            self.save(machine, status).await?;
            return Ok(Action::requeue(MUCH_LATER));
        }
        self.forget_host(machine, words, now).await
    }

    /// The machine is as before its claim.
    pub(super) async fn forget_host(
        &self,
        machine: &Machine,
        words: &str,
        now: Timestamp,
    ) -> Result<Action, ReconcileError> {
        // The pin of its host key would lock out the next host.
        self.credentials.remove(&machine.name_any()).await?;
        let identity = machine.spec.provider_id.as_deref();
        delete::remove_node(&self.client, &machine.name_any(), identity).await?;
        let patch = json!({ "spec": { "providerID": null } });
        let machine = change("remove providerID", &self.api(machine), machine, patch).await?;
        let mut status = machine.status.clone().unwrap_or_default();
        report::given_up(&mut status, words, now);
        self.save(&machine, status).await?;
        self.wanted().remove(&reference(&machine));
        Ok(Action::requeue(SOON))
    }

    pub(super) async fn reboot(&self, machine: &Machine) -> Result<Action, ReconcileError> {
        let Ok(Some((zone, id))) = Self::held(machine) else { return Ok(Action::requeue(Duration::ZERO)) };
        let now = Timestamp::now();
        let mut status = machine.status.clone().unwrap_or_default();
        let (type_, reason, words) = match self.pool.reboot(&zone, &id).await {
            Ok(()) => {
                status.bootstrap_reboot_issued = Some(true);
                (
                    EventType::Normal,
                    "RebootingForRecovery",
                    "the host is restarted because it could not be bootstrapped".to_owned(),
                )
            }
            Err(error @ PoolError::Unsupported(_)) => {
                status.bootstrap_reboot_issued = Some(true);
                (EventType::Warning, "RebootForRecoveryFailed", chain(&error))
            }
            Err(PoolError::NoSuchHost(_)) => return self.host_gone(machine, status, now).await,
            Err(error) => {
                report::reboot_failed(&mut status, now);
                (EventType::Warning, "RebootForRecoveryFailed", chain(&error))
            }
        };
        status.last_bootstrap_failure_time = Some(Time(now));
        self.save(machine, status).await?;
        self.events.say(machine, type_, reason, &words).await;
        Ok(Action::requeue(SOON))
    }

    pub(super) async fn quarantine(&self, machine: &Machine) -> Result<Action, ReconcileError> {
        let why =
            machine.status.as_ref().and_then(|status| find_condition(&status.conditions, "Bootstrapped"));
        let why = why.and_then(|known| known.message.clone()).unwrap_or_default();
        match self.release(machine, Destination::Quarantine).await {
            Release::Done => {}
            Release::Busy => return Ok(Action::requeue(SOON)),
            Release::Failed => return Ok(Action::requeue(LATER)),
        }
        let words =
            format!("the host could not be bootstrapped and is in quarantine; another one is claimed. {why}");
        self.events.say(machine, EventType::Warning, "BootstrapExhausted", &words).await;
        self.forget_host(machine, &words, Timestamp::now()).await
    }
}
