//! What is left of a machine when its host is given back: nothing.

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::{Node, Pod, Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;

use super::join_token;
use crate::apiserver::{ApiError, call, delete};
use crate::certificate_request::is_of_node;
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

/// Removes the Node, its Pods and its certificate signing requests. The host is gone: no agent reports the end of a Pod.
pub(super) async fn remove_node(client: &Client, node: &str) -> Result<(), ApiError> {
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
    delete("delete the Node", &Api::<Node>::all(client.clone()), node).await
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
