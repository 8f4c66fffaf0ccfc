//! What is left of a machine when its host is given back: nothing.

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::{Node, Pod, Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;

use super::inputs::join_token;
use super::observe::provider_id_of;
use crate::apiserver::{ApiError, call, delete};
use crate::certificate_request::is_of_node;
use crate::crd::ScalewayAppleSiliconMachine as Machine;
use crate::names::MachineRef;

/// The finalizer that the Go agent put on its Pods. With its Mac gone no agent removes it.
const LEGACY_POD_FINALIZER: &str = "tart-kubelet.tuist.dev/vm-cleanup";

/// Takes away what lets a Mac act in the cluster: before its host is given back, and again after.
pub(super) async fn revoke(client: &Client, machine: &MachineRef, secrets: &str) -> Result<(), ApiError> {
    join_token::remove(client, machine).await?;
    // The Go provider's identities of Nodes.
    let name = format!("tart-kubelet-{}", machine.name);
    delete("delete a ClusterRoleBinding", &Api::<ClusterRoleBinding>::all(client.clone()), &name).await?;
    let secret = Api::<Secret>::namespaced(client.clone(), secrets);
    delete("delete a token", &secret, &format!("{name}-token")).await?;
    delete("delete a ServiceAccount", &Api::<ServiceAccount>::namespaced(client.clone(), secrets), &name)
        .await
}

/// Whose a Node is that has a machine's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// There is none.
    Absent,
    /// The machine's.
    Ours,
    /// Another's: another Mac, or no Mac at all.
    Foreign,
}

/// Whose a Node is. One without a providerID may be the machine's, if it is a Mac and the machine has had a host.
pub(super) fn owner(node: Option<&Node>, identity: Option<&str>) -> Owner {
    let Some(node) = node else { return Owner::Absent };
    let identity = identity.filter(|identity| !identity.is_empty());
    let is_mac = || node.labels().get("kubernetes.io/os").is_none_or(|os| os == "darwin");
    let is_ours = match provider_id_of(node) {
        Some(is) => identity == Some(is.as_str()),
        None => identity.is_some() && is_mac(),
    };
    if is_ours { Owner::Ours } else { Owner::Foreign }
}

/// The name of the Node that has a machine's name and is not its Node. The API server is asked: the watch shows Macs only.
pub(super) async fn foreign_node(client: &Client, machine: &Machine) -> Result<Option<String>, ApiError> {
    let name = machine.name_any();
    let node = call("read the Node", Api::<Node>::all(client.clone()).get_opt(&name)).await?;
    let is_foreign = owner(node.as_ref(), machine.spec.provider_id.as_deref()) == Owner::Foreign;
    Ok(is_foreign.then_some(name))
}

/// Removes the Node, its Pods and its certificate signing requests. The host is gone: no agent reports the end of a Pod. A Node that is not
/// the machine's is left alone, with all that is on it.
pub(super) async fn remove_node(client: &Client, node: &str, identity: Option<&str>) -> Result<(), ApiError> {
    let nodes = Api::<Node>::all(client.clone());
    let read = call("read the Node", nodes.get_opt(node)).await?;
    if owner(read.as_ref(), identity) == Owner::Foreign || identity.is_none_or(str::is_empty) {
        return Ok(());
    }
    let bound = ListParams::default().fields(&format!("spec.nodeName={node}"));
    for pod in call("list the Pods of the Node", Api::<Pod>::all(client.clone()).list(&bound)).await? {
        let api = Api::<Pod>::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
        remove_pod(&api, &pod).await?;
    }
    let requests = Api::<CertificateSigningRequest>::all(client.clone());
    for signer in ["kubernetes.io/kubelet-serving", "kubernetes.io/kube-apiserver-client-kubelet"] {
        let of_signer = ListParams::default().fields(&format!("spec.signerName={signer}"));
        for request in call("list the certificate signing requests", requests.list(&of_signer)).await? {
            if is_of_node(&request, node) {
                delete("delete a certificate signing request", &requests, &request.name_any()).await?;
            }
        }
    }
    let Some(uid) = read.and_then(|read| read.metadata.uid) else { return Ok(()) };
    // Not another one that has come meanwhile.
    let preconditions = Preconditions { uid: Some(uid), resource_version: None };
    let this = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    match call("delete the Node", nodes.delete(node, &this)).await {
        Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error),
        _ => Ok(()),
    }
}

async fn remove_pod(api: &Api<Pod>, pod: &Pod) -> Result<(), ApiError> {
    let name = pod.name_any();
    let ignore_gone = |result: Result<_, ApiError>| match result {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    };
    if pod.finalizers().iter().any(|finalizer| finalizer == LEGACY_POD_FINALIZER) {
        let others: Vec<_> = pod.finalizers().iter().filter(|one| *one != LEGACY_POD_FINALIZER).collect();
        let patch =
            json!({ "metadata": { "finalizers": others, "resourceVersion": pod.resource_version() } });
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        ignore_gone(
            call("remove the finalizer of a Pod", api.patch(&name, &params, &patch)).await.map(drop),
        )?;
    }
    let now = DeleteParams::default().grace_period(0);
    ignore_gone(call("delete a Pod", api.delete(&name, &now)).await.map(drop))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(provider_id: Option<&str>, os: &str) -> Node {
        let object = json!({
            "metadata": { "name": "mac", "labels": { "kubernetes.io/os": os } },
            "spec": provider_id.map(|id| json!({ "providerID": id })),
        });
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn a_node_is_a_machines_only_by_its_identity() {
        let ours = Some("scw-applesilicon://fr-par-1/7f6b");
        for (node, identity, wanted) in [
            (node(ours, "darwin"), ours, Owner::Ours),
            (node(None, "darwin"), ours, Owner::Ours),
            (node(Some("scw-applesilicon://fr-par-1/other"), "darwin"), ours, Owner::Foreign),
            (node(Some("hcloud://1"), "linux"), ours, Owner::Foreign),
            (node(None, "linux"), ours, Owner::Foreign),
            (node(None, "darwin"), None, Owner::Foreign),
            (node(ours, "darwin"), Some(""), Owner::Foreign),
        ] {
            assert_eq!(owner(Some(&node), identity), wanted, "{node:?} {identity:?}");
        }
        assert_eq!(owner(None, ours), Owner::Absent);
    }
}
