//! Certificate signing requests of the provider's own Nodes: the first client certificate that an agent asks for with its token, and the
//! certificates for the kubelet API.

mod decide;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Patch, PatchParams};
use kube::runtime::controller::Action;
use kube::runtime::events::EventType;
use kube::runtime::reflector::Store;
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use tokio::time::timeout;
use tracing::{info, warn};

use self::decide::{Answer, Request, Requester, SERVING, decide};
use crate::apiserver::{ApiError, call};
use crate::certificate_request::parse;
use crate::crd::{AddressType, ScalewayAppleSiliconMachine as Machine};
use crate::events::Events;
use crate::machine::{TOKEN_NAMESPACE, machine_of_token};

/// How long a request waits for the machine's address in the tailnet before it is looked at again.
const TAILNET_PAUSE: Duration = Duration::from_secs(3);
/// How long a request waits for the first list of machines.
const STORE_DEADLINE: Duration = Duration::from_secs(30);
/// When a request of a Node without a machine is looked at again: no change of a machine brings it.
const UNKNOWN_PAUSE: Duration = Duration::from_mins(1);

/// Answers certificate signing requests.
pub(crate) struct Approver {
    pub(crate) client: Client,
    pub(crate) machines: Store<Machine>,
    /// Whether Nodes have addresses in a tailnet.
    pub(crate) has_tailnet: bool,
    pub(crate) events: Events,
}

/// A machine that asks for a certificate.
struct Asking {
    machine: Arc<Machine>,
    name: String,
    addresses: BTreeSet<IpAddr>,
    is_in_tailnet: bool,
}

impl Approver {
    /// One pass over a request.
    pub(crate) async fn reconcile(&self, request: &CertificateSigningRequest) -> Result<Action, ApiError> {
        let has_answer = request.status.as_ref().and_then(|status| status.conditions.as_ref());
        if has_answer.is_some_and(|all| !all.is_empty()) {
            return Ok(Action::await_change());
        }
        let user = request.spec.username.as_deref().unwrap_or_default();
        let (token, node) = (user.strip_prefix("system:bootstrap:"), user.strip_prefix("system:node:"));
        if token.is_none() && node.is_none() {
            return Ok(Action::await_change());
        }
        // Nothing else would bring the request again.
        if !matches!(timeout(STORE_DEADLINE, self.machines.wait_until_ready()).await, Ok(Ok(()))) {
            return Ok(Action::requeue(UNKNOWN_PAUSE));
        }
        let asking = match (token, node) {
            (Some(token), _) => self.machine_of_token(token).await?,
            (None, node) => node.and_then(|node| self.machine(node)),
        };
        // Not one of ours, or not yet: the watch may be behind the Node.
        let Some(Asking { machine, name, addresses, is_in_tailnet }) = asking else {
            return Ok(Action::requeue(UNKNOWN_PAUSE));
        };
        // The machine has its address in the tailnet as soon as the work on its host has ended. Its agent may ask before.
        if self.has_tailnet && !is_in_tailnet && request.spec.signer_name == SERVING {
            return Ok(Action::requeue(TAILNET_PAUSE));
        }
        let asked = Request {
            signer: &request.spec.signer_name,
            asked_by: if token.is_some() { Requester::TokenOf(&name) } else { Requester::Node(&name) },
            usages: request.spec.usages.iter().flatten().map(String::as_str).collect(),
            content: parse(&request.spec.request.0),
        };
        match decide(&asked, &addresses) {
            Answer::Leave => {}
            Answer::Approve => {
                let what = if asked.signer == SERVING { "serving" } else { "client" };
                info!(request = request.name_any(), machine = name, what, "approved");
                let message = format!("the names and addresses are those of the machine {name}");
                self.answer(request, "Approved", "MachineMatches", &message).await?;
            }
            Answer::Deny(problem) => {
                warn!(request = request.name_any(), machine = name, problem, "denied");
                self.answer(request, "Denied", "MachineDiffers", &problem).await?;
                let words =
                    format!("the certificate signing request {} is denied: {problem}", request.name_any());
                self.events.say(&machine, EventType::Warning, "CertificateDenied", &words).await;
            }
        }
        Ok(Action::await_change())
    }

    fn machine(&self, name: &str) -> Option<Asking> {
        let machine = self
            .machines
            .find(|machine| machine.name_any() == name && machine.metadata.deletion_timestamp.is_none())?;
        let known = machine.status.as_ref().map(|status| status.addresses.as_slice()).unwrap_or_default();
        Some(Asking {
            machine: Arc::clone(&machine),
            name: name.to_owned(),
            addresses: known.iter().filter_map(|one| one.address.parse().ok()).collect(),
            is_in_tailnet: known.iter().any(|one| one.type_ == AddressType::InternalIP),
        })
    }

    async fn machine_of_token(&self, token: &str) -> Result<Option<Asking>, ApiError> {
        let api = Api::<Secret>::namespaced(self.client.clone(), TOKEN_NAMESPACE);
        let name = format!("bootstrap-token-{token}");
        let Some(secret) = call("read a bootstrap token", api.get_opt(&name)).await? else { return Ok(None) };
        let is_ours = secret.labels().get("tuist.dev/managed-by").is_some_and(|by| by == "tart-provider");
        let machine = machine_of_token(&secret).filter(|_| is_ours);
        Ok(machine.and_then(|machine| self.machine(&machine.name)))
    }

    async fn answer(
        &self,
        request: &CertificateSigningRequest,
        type_: &str,
        reason: &str,
        message: &str,
    ) -> Result<(), ApiError> {
        let now = Time(Timestamp::now());
        let condition = CertificateSigningRequestCondition {
            type_: type_.to_owned(),
            status: "True".to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()),
            last_update_time: Some(now),
            ..CertificateSigningRequestCondition::default()
        };
        let patch = Patch::Merge(json!({
            "metadata": { "resourceVersion": request.resource_version() },
            "status": { "conditions": [condition] },
        }));
        let api = Api::<CertificateSigningRequest>::all(self.client.clone());
        let (name, params) = (request.name_any(), PatchParams::default());
        call("answer a certificate signing request", api.patch_approval(&name, &params, &patch))
            .await
            .map(drop)
    }
}
