//! What the work on a host needs: credentials, keys, tokens, and the configuration of its fleet. What is needed once is kept nowhere: the key to the tailnet,
//! and the token of the Actions runner.

pub(super) mod credentials;
pub(super) mod fleet_config;
pub(super) mod fleet_key;
pub(super) mod join_token;
pub(super) mod runner;

use k8s_openapi::api::core::v1::Secret as SecretObject;
use kube::Api;

use super::reconciler::{ReconcileError, Reconciler};
use crate::apiserver::call;
use crate::crd::ScalewayAppleSiliconMachine as Machine;
use crate::error_chain::chain;
use crate::host::{HostConfig, Inputs, Remote, Secret};

const AUTH_KEY: &str = "auth-key";

/// What work on a host lacks. It says nothing about the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Lack {
    /// The reason in the condition.
    pub(super) reason: &'static str,
    /// What is missing, and why.
    pub(super) words: String,
}

impl Reconciler {
    /// What the steps of a host need, as far as the host has it not.
    pub(super) async fn inputs<R: Remote>(
        &self,
        machine: &Machine,
        config: &HostConfig,
        mac: &R,
        password: Option<Secret>,
    ) -> Result<Result<Inputs, Lack>, ReconcileError> {
        let tailscale_auth_key = match (&config.tailscale, &self.tailscale_auth_key) {
            (Some(_), Some(name)) => match self.auth_key(name).await? {
                Ok(key) => Some(key),
                Err(lack) => return Ok(Err(lack)),
            },
            _ => None,
        };
        let runner_token = if config.needs_runner_token(mac).await {
            match self.runner_token(machine).await? {
                Ok(token) => Some(token),
                Err(error) => {
                    let words = format!("no token for the Actions runner: {}", chain(&error));
                    return Ok(Err(Lack { reason: "GHRunnerRegistrationTokenUnavailable", words }));
                }
            }
        } else {
            None
        };
        Ok(Ok(Inputs { password, tailscale_auth_key, runner_token }))
    }

    async fn auth_key(&self, name: &str) -> Result<Result<Secret, Lack>, ReconcileError> {
        let lack = |problem: &str| {
            let words =
                format!("no key to the tailnet: the Secret {}/{name} {problem}", self.secrets_namespace);
            Ok(Err(Lack { reason: "TailscaleAuthKeyUnavailable", words }))
        };
        let api = Api::<SecretObject>::namespaced(self.client.clone(), &self.secrets_namespace);
        let Some(secret) = call("read the key to the tailnet", api.get_opt(name)).await? else {
            return lack("is not there");
        };
        match secret.data.and_then(|mut data| data.remove(AUTH_KEY)).filter(|key| !key.0.is_empty()) {
            Some(key) => Ok(Ok(Secret::new(key.0))),
            None => lack(&format!("has no {AUTH_KEY}")),
        }
    }
}
