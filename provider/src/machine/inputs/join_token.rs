//! The credential with which an agent asks for its first certificate: a bootstrap token of its own, for an hour. With it the agent can only ask;
//! the provider approves the request for this Node's name and no other.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret as SecretObject;
use kube::api::{DeleteParams, ListParams, ObjectMeta, PostParams};
use kube::{Api, Client, ResourceExt as _};
use rand::Rng as _;
use serde_json::json;

use super::super::ApiServer;
use crate::apiserver::{ApiError, call};
use crate::host::Secret;
use crate::names::MachineRef;

/// The group that tokens are in. It may create certificate signing requests, and nothing else.
const JOIN_GROUP: &str = "system:bootstrappers:tart-provider";
/// Where the API server looks for tokens.
pub(crate) const TOKEN_NAMESPACE: &str = "kube-system";
const LIFETIME: Duration = Duration::from_hours(1);
const MACHINE_NAMESPACE: &str = "tuist.dev/machine-namespace";
const MACHINE_NAME: &str = "tuist.dev/machine";

/// The machine that a token was made for.
pub(crate) fn machine_of_token(token: &SecretObject) -> Option<MachineRef> {
    // An annotation: names of machines may be longer than labels.
    let annotation = |key| token.annotations().get(key).cloned();
    Some(MachineRef { namespace: annotation(MACHINE_NAMESPACE)?, name: annotation(MACHINE_NAME)? })
}

fn labels() -> BTreeMap<String, String> {
    [("tuist.dev/managed-by".to_owned(), "tart-provider".to_owned())].into()
}

/// Makes a token for a machine's Node, and the kubeconfig that has it. Tokens from before are removed.
pub(in crate::machine) async fn create(
    client: &Client,
    machine: &MachineRef,
    server: &ApiServer,
    now: Timestamp,
) -> Result<Secret, ApiError> {
    remove(client, machine).await?;
    let (id, secret) = (random(6), random(16));
    let data = [
        ("token-id", id.clone()),
        ("token-secret", secret.clone()),
        ("expiration", (now + LIFETIME).strftime("%Y-%m-%dT%H:%M:%SZ").to_string()),
        ("usage-bootstrap-authentication", "true".to_owned()),
        ("auth-extra-groups", JOIN_GROUP.to_owned()),
        ("description", format!("lets the Mac of the machine {machine} join")),
    ];
    let annotations = [(MACHINE_NAMESPACE, machine.namespace.clone()), (MACHINE_NAME, machine.name.clone())];
    let object = SecretObject {
        metadata: ObjectMeta {
            name: Some(format!("bootstrap-token-{id}")),
            labels: Some(labels()),
            annotations: Some(annotations.map(|(key, value)| (key.to_owned(), value)).into()),
            ..ObjectMeta::default()
        },
        type_: Some("bootstrap.kubernetes.io/token".to_owned()),
        string_data: Some(data.map(|(key, value)| (key.to_owned(), value)).into()),
        ..SecretObject::default()
    };
    let api = Api::<SecretObject>::namespaced(client.clone(), TOKEN_NAMESPACE);
    call("create a bootstrap token", api.create(&PostParams::default(), &object)).await?;
    Ok(kubeconfig(server, &format!("{id}.{secret}")))
}

/// Removes all tokens of a machine.
pub(in crate::machine) async fn remove(client: &Client, machine: &MachineRef) -> Result<(), ApiError> {
    let api = Api::<SecretObject>::namespaced(client.clone(), TOKEN_NAMESPACE);
    let ours = ListParams::default().labels("tuist.dev/managed-by=tart-provider");
    for token in call("list the bootstrap tokens", api.list(&ours)).await? {
        if machine_of_token(&token).as_ref() == Some(machine) {
            let name = token.name_any();
            match call("delete a bootstrap token", api.delete(&name, &DeleteParams::default())).await {
                Err(error) if !error.is_not_found() => return Err(error),
                _ => {}
            }
        }
    }
    Ok(())
}

/// Random characters, as tokens may have them. The generator of the thread is a cryptographic one.
fn random(length: usize) -> String {
    const ALPHABET: &[u8] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    let mut generator = rand::rng();
    std::iter::repeat_with(|| char::from(ALPHABET[generator.random_range(0..ALPHABET.len())]))
        .take(length)
        .collect()
}

/// JSON is YAML.
fn kubeconfig(server: &ApiServer, token: &str) -> Secret {
    use base64::{Engine as _, prelude::BASE64_STANDARD};
    let name = "tart-kubelet";
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": name, "cluster": {
            "server": server.url, "certificate-authority-data": BASE64_STANDARD.encode(&server.authority),
        } }],
        "users": [{ "name": name, "user": { "token": token } }],
        "contexts": [{ "name": name, "context": { "cluster": name, "user": name } }],
        "current-context": name,
    });
    Secret::new(config.to_string().into_bytes())
}
