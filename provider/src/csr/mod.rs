//! Certificate signing requests of the provider's own Nodes: the first client certificate that an agent asks for with its token, and the
//! certificates for the kubelet API.

mod decide;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Patch, PatchParams};
use kube::runtime::controller::Action;
use kube::runtime::reflector::Store;
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use tracing::{info, warn};

use self::decide::{Answer, Request, Requester, SERVING, decide, parse};
use crate::apiserver::{ApiError, call};
use crate::crd::{AddressType, ScalewayAppleSiliconMachine as Machine};
use crate::machine::{TOKEN_NAMESPACE, machine_of_token};

/// How long a request waits for the machine's address in the tailnet before it is looked at again.
const TAILNET_PAUSE: Duration = Duration::from_secs(3);

/// Answers certificate signing requests.
pub(crate) struct Approver {
    pub(crate) client: Client,
    pub(crate) machines: Store<Machine>,
    /// Whether Nodes have addresses in a tailnet.
    pub(crate) has_tailnet: bool,
}

/// A machine that asks for a certificate.
struct Asking {
    name: String,
    addresses: BTreeSet<IpAddr>,
    is_in_tailnet: bool,
}

/// Whether a request is for a certificate of this Node: by the Node itself, or by the token that it has joined with.
pub(crate) fn is_of_node(request: &CertificateSigningRequest, node: &str) -> bool {
    let user = format!("system:node:{node}");
    let asked_by = request.spec.username.as_deref().unwrap_or_default();
    let names_it =
        || parse(&request.spec.request.0).is_ok_and(|content| content.common_names == [user.as_str()]);
    asked_by == user || (asked_by.starts_with("system:bootstrap:") && names_it())
}

impl Approver {
    /// One pass over a request.
    pub(crate) async fn reconcile(&self, request: &CertificateSigningRequest) -> Result<Action, ApiError> {
        let has_answer = request.status.as_ref().and_then(|status| status.conditions.as_ref());
        if has_answer.is_some_and(|all| !all.is_empty()) {
            return Ok(Action::await_change());
        }
        let user = request.spec.username.as_deref().unwrap_or_default();
        let (machine, is_token) =
            match (user.strip_prefix("system:bootstrap:"), user.strip_prefix("system:node:")) {
                (Some(token), _) => (self.machine_of_token(token).await?, true),
                (None, Some(node)) => (self.machine(node), false),
                (None, None) => (None, false),
            };
        // Not one of ours.
        let Some(Asking { name, addresses, is_in_tailnet }) = machine else {
            return Ok(Action::await_change());
        };
        // The machine has its address in the tailnet as soon as the work on its host has ended. Its agent may ask before.
        if self.has_tailnet && !is_in_tailnet && request.spec.signer_name == SERVING {
            return Ok(Action::requeue(TAILNET_PAUSE));
        }
        let asked = Request {
            signer: &request.spec.signer_name,
            asked_by: if is_token { Requester::TokenOf(&name) } else { Requester::Node(&name) },
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
