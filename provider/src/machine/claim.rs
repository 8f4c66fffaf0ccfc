//! A host for a machine.

use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt as _;
use kube::runtime::controller::Action;
use kube::runtime::events::EventType;
use tokio::net::lookup_host;
use tokio::time::timeout;

use super::decide::ClaimSettings;
use super::inputs::credentials::HostCredentials;
use super::reconciler::{ReconcileError, Reconciler, reference};
use super::report;
use crate::crd::{
    AddressType, ConditionStatus, MachineAddress, Phase, ScalewayAppleSiliconMachine as Machine,
    ScalewayAppleSiliconMachineStatus as Status, find_condition,
};
use crate::error_chain::chain;
use crate::pool::{ClaimError, ClaimRequest, Host};

/// How long the name of a host may take to be looked up.
const LOOKUP_DEADLINE: Duration = Duration::from_secs(10);
const SOON: Duration = Duration::from_secs(30);
const LATER: Duration = Duration::from_mins(1);
const MUCH_LATER: Duration = Duration::from_mins(5);

/// The addresses of a host. A name is looked up: certificates are for addresses.
pub(super) async fn addresses(host: &str, known: &[MachineAddress]) -> Vec<MachineAddress> {
    if host.parse::<IpAddr>().is_ok() {
        return vec![MachineAddress { type_: AddressType::ExternalIP, address: host.to_owned() }];
    }
    let found = timeout(LOOKUP_DEADLINE, lookup_host((host, 0))).await.ok().and_then(Result::ok);
    let found: Vec<_> = found.into_iter().flatten().map(|found| found.ip()).collect();
    named(host, &found, known)
}

/// The addresses of a host with a name. Of several that the name has, the host keeps the one that it has: each lookup may give them in another
/// order. It keeps it, too, while the lookup finds none.
fn named(host: &str, found: &[IpAddr], known: &[MachineAddress]) -> Vec<MachineAddress> {
    let name = MachineAddress { type_: AddressType::Hostname, address: host.to_owned() };
    let mut before = known.iter().filter(|one| one.type_ == AddressType::ExternalIP && known.contains(&name));
    let before = before.find_map(|one| one.address.parse().ok());
    let kept = before.filter(|before| found.is_empty() || found.contains(before));
    let address = kept.or_else(|| found.first().copied());
    let ip =
        |address: IpAddr| MachineAddress { type_: AddressType::ExternalIP, address: address.to_string() };
    address.map(ip).into_iter().chain([name]).collect()
}

/// Whether a machine has no host for this reason.
fn is_reason(status: &Status, reason: &str) -> bool {
    find_condition(&status.conditions, "Provisioned").and_then(|known| known.reason.as_deref())
        == Some(reason)
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
            let is_new = !is_reason(&status, "SSHKeyUnavailable");
            report::condition(
                &mut status,
                "Provisioned",
                ConditionStatus::False,
                "SSHKeyUnavailable",
                &words,
                now,
            );
            self.save(machine, status).await?;
            if is_new {
                self.events.say(machine, EventType::Warning, "SSHKeyUnavailable", &words).await;
            }
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
        let is_new = !is_reason(&status, reason);
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
        if let (Some(ssh), Some(known)) = (&host.ssh, HostCredentials::of(host)) {
            self.credentials.write(&name, &known).await?;
            status.addresses = addresses(&ssh.host, &status.addresses).await;
        }
        report::claimed(&mut status, &id, now);
        self.save(machine, status).await?;
        self.events
            .say(machine, EventType::Normal, "Adopted", &format!("the host {id} is this machine's"))
            .await;
        Ok(Action::requeue(Duration::ZERO))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_keeps_its_address_while_its_name_has_it_or_is_not_found() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let first = named("mac.example", &[ip("10.0.0.5"), ip("fd00::5")], &[]);
        assert_eq!(
            first.iter().map(|one| one.address.as_str()).collect::<Vec<_>>(),
            ["10.0.0.5", "mac.example"]
        );
        for found in [&[ip("fd00::5"), ip("10.0.0.5")][..], &[ip("10.0.0.5")], &[]] {
            assert_eq!(named("mac.example", found, &first), first, "{found:?}");
        }
        assert_eq!(named("mac.example", &[ip("10.0.0.6")], &first)[0].address, "10.0.0.6");
        // The address of another host is no address of this one.
        assert_eq!(named("other.example", &[ip("fd00::5"), ip("10.0.0.5")], &first)[0].address, "fd00::5");
    }
}
