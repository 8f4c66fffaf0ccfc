//! Work on a host over SSH: the same for a bootstrap and for a roll.

use std::net::IpAddr;

use jiff::Timestamp;
use kube::ResourceExt as _;
use tracing::{info, warn};

use super::claim::addresses;
use super::inputs::Lack;
use super::inputs::credentials::HostCredentials;
use super::inputs::join_token;
use super::reconciler::{ReconcileError, Reconciler, reference};
use crate::crd::{AddressType, MachineAddress, ScalewayAppleSiliconMachine as Machine};
use crate::error_chain::chain;
use crate::host::{Credential, Mode, converge, has_joined, tailnet_address};
use crate::pool::{HostState, Password};
use crate::ssh::{Connection, HostKeyPolicy, SshError};

/// Why there is work on a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// Its agent is to join.
    Join,
    /// Its agent has joined, and the host gets another configuration.
    Roll,
}

/// How work on a host ended.
pub(super) enum HostWork {
    /// The host has the configuration with this hash, and perhaps an address in a tailnet. Its agent may still need its join token.
    Done { hash: String, tailnet: Option<MachineAddress>, needs_token: bool },
    /// The host has another address than the status says.
    Moved(Vec<MachineAddress>),
    /// The host is being installed or restarts, in the pool's word.
    Busy(String),
    /// There is no such host any more.
    Gone,
    /// It lacks something that is not the host's fault, such as a password.
    Lacks(Lack),
    /// It failed.
    Failed(String),
}

/// Whether a machine has these addresses, beside that in its tailnet.
fn is_at(known: &[MachineAddress], is: &[MachineAddress]) -> bool {
    known.iter().filter(|one| one.type_ != AddressType::InternalIP).eq(is)
}

impl Reconciler {
    /// Takes the host of a machine to its configuration, over SSH.
    pub(super) async fn work(&self, machine: &Machine, way: Way) -> Result<HostWork, ReconcileError> {
        let failed = |error: &(dyn std::error::Error + 'static)| Ok(HostWork::Failed(chain(error)));
        let Ok(Some((zone, id))) = Self::held(machine) else { return Ok(HostWork::Gone) };
        let host = match self.pool.host(&zone, &id).await {
            Ok(Some(host)) => host,
            Ok(None) => return Ok(HostWork::Gone),
            Err(error) => return Err(error.into()),
        };
        match &host.state {
            HostState::Ready => {}
            HostState::Changing(word) => return Ok(HostWork::Busy(word.clone())),
            HostState::Broken(word) => {
                return Ok(HostWork::Failed(format!("the host is {word}, by the pool's word")));
            }
        }
        let Some(address) = host.ssh.clone() else {
            return Ok(HostWork::Busy("without an address".to_owned()));
        };
        let name = machine.name_any();
        let mut read = self.credentials.read(&name).await?;
        let credentials = read.get_or_insert_with(|| HostCredentials {
            user: address.user.clone(),
            password: None,
            fingerprint: None,
        });
        let before = credentials.clone();
        if let (None, Password::Known(password)) = (&credentials.password, &host.password) {
            credentials.password = Some(password.clone());
        }
        let known = machine.status.as_ref().map(|status| status.addresses.as_slice()).unwrap_or_default();
        let is = addresses(&address.host, known).await;
        if machine.status.as_ref().is_none_or(|status| !is_at(&status.addresses, &is)) {
            self.credentials.write(&name, credentials).await?;
            return Ok(HostWork::Moved(is));
        }
        let key = match &host.key {
            Some(key) => key.clone(),
            None => match self.keys.ensure(&Self::fleet(machine), self.pool.as_ref()).await {
                Ok(key) => key,
                Err(error) => {
                    let lack = Lack { reason: "SSHKeyUnavailable", words: chain(&error) };
                    return Ok(HostWork::Lacks(lack));
                }
            },
        };
        let pinned = host.fingerprint.clone().or_else(|| credentials.fingerprint.clone());
        let policy = pinned.map_or(HostKeyPolicy::TrustOnFirstUse, HostKeyPolicy::Pinned);
        let has_served = machine.status.as_ref().is_some_and(|status| status.ready);
        let mac = match Connection::open(&address, &key, &policy).await {
            Ok(mac) => mac,
            Err(error) => {
                // A host that was installed anew since it was claimed has another key, and nothing of ours on it yet.
                if matches!(error, SshError::HostKey { .. }) && !has_served && host.fingerprint.is_none() {
                    credentials.fingerprint = None;
                    self.credentials.write(&name, credentials).await?;
                }
                return failed(&error);
            }
        };
        credentials.fingerprint = Some(mac.fingerprint().clone());
        if *credentials != before || before.fingerprint.is_none() {
            self.credentials.write(&name, credentials).await?;
        }
        let kubeconfig =
            join_token::create(&self.client, &reference(machine), &self.server, Timestamp::now()).await?;
        let credential = match way {
            Way::Join => Credential::Join(kubeconfig),
            Way::Roll => Credential::Bootstrap(kubeconfig),
        };
        let config = self.config.of(machine, &credentials.user, credential);
        let (steps, hash) = (config.steps(), config.hash().to_string());
        let inputs = match self.inputs(machine, &config, &mac, credentials.password.clone()).await? {
            Ok(inputs) => inputs,
            Err(lack) => {
                mac.close().await;
                return Ok(HostWork::Lacks(lack));
            }
        };
        let mode = Mode::Apply(inputs);
        info!(machine = %name, host = %id, hash, "work on the host begins");
        let done = converge(&mac, &steps, &mode, |_, _| ()).await;
        let is_in_tailnet = done.is_converged() && config.tailscale.is_some();
        let tailnet = if is_in_tailnet { tailnet_address(&mac).await } else { None };
        let needs_token = !has_joined(&mac).await;
        mac.close().await;
        if done.is_converged() {
            info!(machine = %name, changed = done.changed(), "the host is as it should be");
            let internal = |address: IpAddr| MachineAddress {
                type_: AddressType::InternalIP,
                address: address.to_string(),
            };
            return Ok(HostWork::Done { hash, tailnet: tailnet.map(internal), needs_token });
        }
        let words = done.first_failure(&steps).unwrap_or_else(|| "a step was left out".to_owned());
        warn!(machine = %name, problem = words, "work on the host failed");
        Ok(if done.lacks_password() {
            HostWork::Lacks(Lack { reason: "MissingSudoPassword", words })
        } else {
            HostWork::Failed(words)
        })
    }
}
