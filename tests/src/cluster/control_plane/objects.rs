//! What a fresh cluster needs in its API before Nodes can join and Pods can run.

use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, Role, RoleBinding, RoleRef, Subject};
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client, Resource};
use rand::Rng;
use rand::distr::Uniform;
use serde_json::json;

use crate::wait::eventually;

/// Bindings of users and groups to roles of the API server itself: name, kind of subject, subject, role.
///
/// The first three are kubeadm's: bootstrap tokens may ask for a certificate, and get it approved; Nodes may renew theirs. The
/// last lets the API server in at a kubelet that asks whether it may.
const BINDINGS: [(&str, &str, &str, &str); 4] = [
    ("kubelet-bootstrap", "Group", "system:bootstrappers", "system:node-bootstrapper"),
    (
        "node-autoapprove-bootstrap",
        "Group",
        "system:bootstrappers",
        "system:certificates.k8s.io:certificatesigningrequests:nodeclient",
    ),
    (
        "node-autoapprove-certificate-rotation",
        "Group",
        "system:nodes",
        "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
    ),
    ("kube-apiserver-kubelet-client", "User", "kube-apiserver-kubelet-client", "system:kubelet-api-admin"),
];

/// Waits until the API server says that it is ready.
pub(super) async fn api_server_ready(client: &Client, deadline: Duration) -> Result<()> {
    eventually("kube-apiserver to be ready", deadline, async || {
        let request = http::Request::get("/readyz").body(Vec::new())?;
        client.request_text(request).await?;
        Ok(())
    })
    .await
}

/// Lets Nodes join by bootstrap token, and the API server talk to them.
pub(super) async fn allow_nodes_to_join(client: &Client) -> Result<()> {
    let api = Api::all(client.clone());
    for (name, kind, subject, role) in BINDINGS {
        let group = "rbac.authorization.k8s.io".to_owned();
        let binding = ClusterRoleBinding {
            metadata: named(name),
            subjects: Some(vec![Subject {
                kind: kind.to_owned(),
                name: subject.to_owned(),
                api_group: Some(group.clone()),
                ..Subject::default()
            }]),
            role_ref: RoleRef {
                kind: "ClusterRole".to_owned(),
                name: role.to_owned(),
                api_group: Some(group),
            },
        };
        create(&api, &binding).await?;
    }
    Ok(())
}

/// Makes a bootstrap token, and returns its id and itself.
pub(super) async fn create_bootstrap_token(client: &Client) -> Result<(String, String)> {
    create_token(client, None).await
}

/// Makes a bootstrap token that is valid until a time, and returns its id and itself.
pub(super) async fn create_token(client: &Client, expiration: Option<&str>) -> Result<(String, String)> {
    let (id, secret) = (random(6), random(16));
    let mut data = vec![
        ("token-id", id.as_str()),
        ("token-secret", secret.as_str()),
        ("usage-bootstrap-authentication", "true"),
        ("usage-bootstrap-signing", "true"),
    ];
    data.extend(expiration.map(|expiration| ("expiration", expiration)));
    let object = Secret {
        metadata: named(&format!("bootstrap-token-{id}")),
        type_: Some("bootstrap.kubernetes.io/token".to_owned()),
        string_data: Some(data.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()),
        ..Secret::default()
    };
    create(&Api::namespaced(client.clone(), "kube-system"), &object).await?;
    let token = format!("{id}.{secret}");
    Ok((id, token))
}

/// Shows the cluster to those who join, as kubeadm does: the `ConfigMap` that bootstrap tokens sign, readable without credentials.
pub(super) async fn show_cluster_info(client: &Client, kubeconfig: &str) -> Result<()> {
    const NAMESPACE: &str = "kube-public";
    let info = ConfigMap {
        metadata: named("cluster-info"),
        data: Some([("kubeconfig".to_owned(), kubeconfig.to_owned())].into()),
        ..ConfigMap::default()
    };
    let name = "kubeadm:bootstrap-signer-clusterinfo";
    let rules = json!([{ "apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["cluster-info"], "verbs": ["get"] }]);
    let role: Role = serde_json::from_value(json!({ "metadata": { "name": name }, "rules": rules }))?;
    let group = "rbac.authorization.k8s.io";
    let binding: RoleBinding = serde_json::from_value(json!({
        "metadata": { "name": name },
        "subjects": [{ "kind": "User", "name": "system:anonymous", "apiGroup": group }],
        "roleRef": { "kind": "Role", "name": name, "apiGroup": group },
    }))?;
    create(&Api::namespaced(client.clone(), NAMESPACE), &role).await?;
    create(&Api::namespaced(client.clone(), NAMESPACE), &binding).await?;
    create(&Api::namespaced(client.clone(), NAMESPACE), &info).await
}

/// Waits until the cluster has signed its information for a bootstrap token.
pub(super) async fn cluster_info_signed(client: &Client, token_id: &str, deadline: Duration) -> Result<()> {
    let config_maps = Api::<ConfigMap>::namespaced(client.clone(), "kube-public");
    let key = format!("jws-kubeconfig-{token_id}");
    eventually(&format!("a signature for the token {token_id}"), deadline, async || {
        let info = config_maps.get("cluster-info").await?;
        anyhow::ensure!(info.data.is_some_and(|data| data.contains_key(&key)), "there is none");
        Ok(())
    })
    .await
}

/// Makes a namespace with a name of its own.
pub(super) async fn create_namespace(client: &Client, prefix: &str) -> Result<String> {
    let name = format!("{prefix}-{}", random(6));
    let namespace = Namespace { metadata: named(&name), ..Namespace::default() };
    create(&Api::all(client.clone()), &namespace).await?;
    Ok(name)
}

/// Waits until the controllers have put into a namespace what every Pod in it refers to.
pub(super) async fn namespace_ready(client: &Client, namespace: &str, deadline: Duration) -> Result<()> {
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), namespace);
    let config_maps = Api::<ConfigMap>::namespaced(client.clone(), namespace);
    eventually(&format!("the service account of namespace {namespace}"), deadline, async || {
        accounts.get("default").await?;
        config_maps.get("kube-root-ca.crt").await?;
        Ok(())
    })
    .await
}

async fn create<K>(api: &Api<K>, object: &K) -> Result<()>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    let name = object.meta().name.as_deref().unwrap_or_default();
    let created =
        tokio::time::timeout(Duration::from_secs(30), api.create(&PostParams::default(), object)).await;
    created
        .map_err(anyhow::Error::from)
        .and_then(|created| Ok(created?))
        .map(drop)
        .with_context(|| format!("cannot create {} {name}", K::kind(&())))
}

fn named(name: &str) -> ObjectMeta {
    ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() }
}

/// Random lower-case letters, as names and bootstrap tokens may have them.
fn random(length: usize) -> String {
    rand::rng().sample_iter(Uniform::new_inclusive('a', 'z').expect("a is before z")).take(length).collect()
}
