//! What a test changes and reads in the cluster: objects, deletions, the Node's Lease.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use kube::{Api, Resource};
use serde_json::{Value, json};
use tart_kubelet_tests::wait;

use super::{DEADLINE, Scene};

/// What a test reads of a Node's status.
pub(crate) trait NodeView {
    /// The status of a condition; empty when the Node has none of this kind.
    fn condition(&self, kind: &str) -> &str;
    /// The reason of a condition; empty when the Node has none of this kind.
    fn condition_reason(&self, kind: &str) -> &str;
    /// The names of the images that the Node lists.
    fn image_names(&self) -> BTreeSet<String>;
}

impl NodeView for Node {
    fn condition(&self, kind: &str) -> &str {
        let conditions = self.status.iter().flat_map(|status| status.conditions.iter().flatten());
        conditions.filter(|one| one.type_ == kind).map(|one| one.status.as_str()).next().unwrap_or_default()
    }

    fn condition_reason(&self, kind: &str) -> &str {
        let conditions = self.status.iter().flat_map(|status| status.conditions.iter().flatten());
        conditions.filter(|one| one.type_ == kind).find_map(|one| one.reason.as_deref()).unwrap_or_default()
    }

    fn image_names(&self) -> BTreeSet<String> {
        let images = self.status.iter().flat_map(|status| status.images.iter().flatten());
        images.flat_map(|image| image.names.iter().flatten().cloned()).collect()
    }
}

/// When a Lease was renewed.
pub(crate) fn renew_time(lease: &Lease) -> Option<Timestamp> {
    Some(lease.spec.as_ref()?.renew_time.as_ref()?.0)
}

impl Scene {
    /// `kubectl apply` of an object.
    pub(crate) async fn apply(&self, object: &Value) -> Result<()> {
        self.kubectl.apply(&object.to_string()).await.map(drop)
    }

    /// Creates or changes a `ConfigMap` with one key.
    pub(crate) async fn config_map(&self, name: &str, key: &str, value: &str) -> Result<()> {
        let object = json!({"kind": "ConfigMap", "metadata": {"name": name}, "data": {key: value}});
        self.apply_v1(object).await
    }

    /// Creates or changes a Secret with one key.
    pub(crate) async fn secret(&self, name: &str, key: &str, value: &str) -> Result<()> {
        let object = json!({"kind": "Secret", "metadata": {"name": name}, "stringData": {key: value}});
        self.apply_v1(object).await
    }

    async fn apply_v1(&self, mut object: Value) -> Result<()> {
        object["apiVersion"] = json!("v1");
        self.apply(&object).await
    }

    /// Creates a Service with one port, 80.
    pub(crate) async fn service(&self, name: &str, spec: &Value) -> Result<()> {
        let mut object = json!({"kind": "Service", "metadata": {"name": name}, "spec": spec});
        if object["spec"]["ports"].is_null() {
            object["spec"]["ports"] = json!([{"port": 80}]);
        }
        self.apply_v1(object).await
    }

    /// Creates a Secret for `imagePullSecrets`.
    pub(crate) async fn pull_secret(
        &self,
        name: &str,
        server: &str,
        user: &str,
        password: &str,
    ) -> Result<()> {
        let login = [
            format!("--docker-server={server}"),
            format!("--docker-username={user}"),
            format!("--docker-password={password}"),
        ];
        let create = ["create", "secret", "docker-registry", name];
        self.kubectl.run(create.into_iter().chain(login.iter().map(String::as_str))).await.map(drop)
    }

    /// `kubectl patch pod`.
    pub(crate) async fn patch(&self, pod: &str, patch: &Value) -> Result<()> {
        self.kubectl.run(["patch", "pod", pod, "--patch", &patch.to_string()]).await.map(drop)
    }

    /// Changes the image of a Pod's main container.
    pub(crate) async fn set_image(&self, pod: &str, image: &str) -> Result<()> {
        let (pod, change) = (format!("pod/{pod}"), format!("main={image}"));
        self.kubectl.run(["set", "image", &pod, &change]).await.map(drop)
    }

    /// Deletes a Pod and waits until it is gone from the API.
    pub(crate) async fn delete(&self, pod: &str) -> Result<()> {
        self.kubectl.run(["delete", "pod", pod]).await.map(drop)
    }

    /// Deletes a Pod without waiting for anything.
    pub(crate) async fn begin_delete(&self, pod: &str) -> Result<()> {
        self.kubectl.run(["delete", "pod", pod, "--wait=false"]).await.map(drop)
    }

    /// Deletes a Pod with another grace period, without waiting for anything.
    pub(crate) async fn begin_delete_within(&self, pod: &str, seconds: u32) -> Result<()> {
        let grace = format!("--grace-period={seconds}");
        self.kubectl.run(["delete", "pod", pod, "--wait=false", &grace]).await.map(drop)
    }

    /// Deletes a Pod from the API at once.
    pub(crate) async fn force_delete(&self, pod: &str) -> Result<()> {
        self.kubectl.run(["delete", "pod", pod, "--grace-period=0", "--force"]).await.map(drop)
    }

    /// Deletes a Pod, and waits until nothing is left of it or of any other.
    pub(crate) async fn delete_all_of(&self, pod: &str) -> Result<()> {
        self.begin_delete(pod).await?;
        self.until_gone(pod).await?;
        self.nothing_left().await
    }

    /// Lets a deleted Pod with a finalizer go.
    pub(crate) async fn remove_finalizers(&self, pod: &str) -> Result<()> {
        let none = r#"{"metadata":{"finalizers":null}}"#;
        self.kubectl.run(["patch", "pod", pod, "--type=merge", "--patch", none]).await.map(drop)
    }

    /// The UID of a Pod.
    pub(crate) async fn uid(&self, pod: &str) -> Result<String> {
        self.pods.get(pod).await?.metadata.uid.context("no UID")
    }

    /// Objects of a kind in the scene's namespace.
    pub(crate) async fn api<K>(&self) -> Result<Api<K>>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Ok(Api::namespaced(self.control_plane.client().await?, self.namespace()))
    }

    /// The Leases of all Nodes.
    pub(crate) async fn leases(&self) -> Result<Api<Lease>> {
        Ok(Api::namespaced(self.control_plane.client().await?, "kube-node-lease"))
    }

    /// Waits until the Node's Lease was renewed after a time.
    pub(crate) async fn lease_renewed_after(&self, time: Option<Timestamp>) -> Result<Lease> {
        let renewed = |lease: &Lease| renew_time(lease) > time;
        wait::until(&self.leases().await?, &self.node, "renewed", DEADLINE, renewed).await
    }

    /// Waits until the Node's Lease is renewed once more.
    pub(crate) async fn next_lease_renewal(&self) -> Result<()> {
        let before = renew_time(&self.leases().await?.get(&self.node).await?);
        self.lease_renewed_after(before).await.map(drop)
    }
}
