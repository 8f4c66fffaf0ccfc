//! A host for a machine.

use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt as _;
use kube::runtime::controller::Action;
use kube::runtime::events::EventType;
use tokio::net::lookup_host;
use tokio::time::timeout;

use super::credentials::HostCredentials;
use super::decide::ClaimSettings;
use super::reconciler::{ReconcileError, Reconciler, reference};
use super::report;
use crate::crd::{
    AddressType, ConditionStatus, MachineAddress, Phase, ScalewayAppleSiliconMachine as Machine,
    ScalewayAppleSiliconMachineStatus as Status, find_condition,
};
use crate::error_chain::chain;
use crate::pool::{ClaimError, ClaimRequest, Host, Password};

/// How long the name of a host may take to be looked up.
const LOOKUP_DEADLINE: Duration = Duration::from_secs(10);
const SOON: Duration = Duration::from_secs(30);
const LATER: Duration = Duration::from_mins(1);
const MUCH_LATER: Duration = Duration::from_mins(5);

/// The addresses of a host. A name is looked up: certificates are for addresses.
pub(super) async fn addresses(host: &str) -> Vec<MachineAddress> {
    let ip = |address: String| MachineAddress { type_: AddressType::ExternalIP, address };
    if host.parse::<IpAddr>().is_ok() {
        return vec![ip(host.to_owned())];
    }
    let found = timeout(LOOKUP_DEADLINE, lookup_host((host, 0))).await.ok().and_then(Result::ok);
    let mut all: Vec<_> =
        found.into_iter().flatten().take(1).map(|found| ip(found.ip().to_string())).collect();
    all.push(MachineAddress { type_: AddressType::Hostname, address: host.to_owned() });
    all
}

impl Reconciler {
    pub(super) async fn claim(
        &self,
        machine: &Machine,
        settings: &ClaimSettings,
    ) -> Result<Action, ReconcileError> {
        let now = Timestamp::now();
        let mut status = machine.status.clone().unwrap_or_default();
        if let Err(error) = self.keys.ensure(&Self::fleet(machine), self.pool.as_ref()).await {
            let words = chain(&error);
            report::condition(
                &mut status,
                "Provisioned",
                ConditionStatus::False,
                "SSHKeyUnavailable",
                &words,
                now,
            );
            self.save(machine, status).await?;
            self.events.say(machine, EventType::Warning, "SSHKeyUnavailable", &words).await;
            return Ok(Action::requeue(SOON));
        }
        let request = ClaimRequest {
            machine: reference(machine),
            prefix: settings.prefix.clone(),
            zone: settings.zone.clone(),
            kind: machine.spec.type_.clone(),
            os: settings.os.clone(),
        };
        let (reason, words, pause) = match self.pool.claim(&request).await {
            Ok(host) => return self.claimed(machine, status, &host, now).await,
            Err(error @ ClaimError::NoAvailableHost(_)) => ("NoAvailableHost", chain(&error), LATER),
            Err(error @ ClaimError::ReservedName { .. }) => ("ReservedName", chain(&error), MUCH_LATER),
            // It goes by itself.
            Err(ClaimError::NoSuchMachine(_)) => return Ok(Action::await_change()),
            Err(ClaimError::Pool(error)) => ("ScalewayAdoptFailed", chain(&error), SOON),
        };
        let is_new = find_condition(&status.conditions, "Provisioned")
            .and_then(|known| known.reason.as_deref())
            != Some(reason);
        status.phase = Some(Phase::Adopting);
        report::condition(&mut status, "Provisioned", ConditionStatus::False, reason, &words, now);
        self.save(machine, status).await?;
        if is_new {
            self.events.say(machine, EventType::Warning, reason, &words).await;
        }
        Ok(Action::requeue(pause))
    }

    /// The credentials are written before the status: a status with a host has them.
    pub(super) async fn claimed(
        &self,
        machine: &Machine,
        mut status: Status,
        host: &Host,
        now: Timestamp,
    ) -> Result<Action, ReconcileError> {
        let (name, id) = (machine.name_any(), host.id.to_string());
        if let Some(ssh) = &host.ssh {
            let password = match &host.password {
                Password::Known(password) => Some(password.clone()),
                Password::Sealed | Password::Absent => None,
            };
            let known =
                HostCredentials { user: ssh.user.clone(), password, fingerprint: host.fingerprint.clone() };
            self.credentials.write(&name, &known).await?;
            status.addresses = addresses(&ssh.host).await;
        }
        report::claimed(&mut status, &id, now);
        self.save(machine, status).await?;
        self.events
            .say(machine, EventType::Normal, "Adopted", &format!("the host {id} is this machine's"))
            .await;
        Ok(Action::requeue(Duration::ZERO))
    }
}
