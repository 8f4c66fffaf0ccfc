//! The inputs of Pods with a real API server: the agent's own code with a Node's identity, under the Node authorizer and
//! `NodeRestriction`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::FutureExt;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::core::v1::{ConfigMap, Container, Pod, Volume};
use kube::api::{Api, PostParams};
use serde_json::{Value, json};
use tart_kubelet_tests::control_plane::ControlPlane;
use tart_kubelet_tests::kubeconfig;
use tart_kubelet_tests::kubectl::Kubectl;
use tart_kubelet_tests::proxy::Proxy;
use tokio::sync::watch;
use tokio::time::timeout;

use super::Payload;
use super::content::Content;
use crate::apiserver::watched_objects::{ObjectError, WatchedObject};
use crate::env::sources::InputSources;
use crate::env::{ConfigError, Environment, Resolved};
use crate::testing;

/// Generous, because machines are shared. No test passes because of it.
const DEADLINE: Duration = Duration::from_mins(2);

/// A Node without an agent, and a namespace whose Pods are bound to it.
struct Bound {
    control_plane: &'static ControlPlane,
    namespace: String,
    node: String,
    kubectl: Kubectl,
    pods: Api<Pod>,
}

impl Bound {
    async fn new(name: &str) -> Result<Self> {
        let control_plane = ControlPlane::shared().await?;
        let namespace = control_plane.namespace(name).await?;
        let node = format!("node-{namespace}");
        let kubectl = control_plane.kubectl().namespace(&namespace);
        // The control plane deletes Pods of a Node that does not exist.
        kubectl
            .apply(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}}).to_string())
            .await?;
        let pods = Api::namespaced(control_plane.client().await?, &namespace);
        Ok(Self { control_plane, namespace, node, kubectl, pods })
    }

    /// Creates a Pod that is bound from the start.
    async fn pod(&self, name: &str, container: &Value, volumes: &Value) -> Result<Arc<Pod>> {
        let mut only = json!({"name": "main", "image": "i"});
        only.as_object_mut().context("no object")?.extend(container.as_object().cloned().unwrap_or_default());
        let spec = json!({"nodeName": self.node, "containers": [only], "volumes": volumes});
        let metadata = json!({"name": name, "labels": {"version": "1"}});
        let pod = serde_json::from_value(json!({"metadata": metadata, "spec": spec}))?;
        Ok(Arc::new(self.pods.create(&PostParams::default(), &pod).await?))
    }

    async fn apply(&self, kind: &str, name: &str, body: Value) -> Result<()> {
        let mut object = json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}});
        object.as_object_mut().context("no object")?.extend(body.as_object().cloned().unwrap_or_default());
        self.kubectl.apply(&object.to_string()).await.map(drop)
    }

    async fn config_map(&self, name: &str, value: &str) -> Result<()> {
        self.apply("ConfigMap", name, json!({"data": {"key": value}})).await
    }

    /// The sources as the Node sees them.
    async fn sources(&self) -> Result<InputSources> {
        self.sources_through(&self.control_plane.node_kubeconfig(&self.node)?).await
    }

    async fn sources_through(&self, kubeconfig: &Path) -> Result<InputSources> {
        let client = kubeconfig::client(kubeconfig).await?;
        Ok(InputSources::new(
            &client,
            client.clone(),
            Arc::default(),
            watch::channel(Some("192.0.2.1".parse()?)).1,
        ))
    }
}

/// A Pod's variable from a `ConfigMap`, which lets the Node read it.
fn uses(config_map: &str) -> Value {
    json!({"env": [{"name": "V", "valueFrom": {"configMapKeyRef": {"name": config_map, "key": "key"}}}]})
}

/// Waits until a `ConfigMap` has a value, or is gone.
async fn follow(object: &mut WatchedObject<ConfigMap>, expected: Option<&str>) -> Result<()> {
    let follow = async {
        loop {
            let found = object.get().await?;
            let value = found.as_ref().and_then(|found| found.data.as_ref()?.get("key"));
            if value.map(String::as_str) == expected {
                return Ok(());
            }
            object.changed().await;
        }
    };
    timeout(DEADLINE, follow).await.with_context(|| format!("never saw {expected:?}"))?
}

#[tokio::test]
async fn an_object_is_followed_from_before_it_exists_until_it_is_gone() -> Result<()> {
    let _programs = testing::programs().await;
    let bound = Bound::new("follow").await?;
    bound.pod("pod", &uses("map"), &json!([])).await?;
    let sources = bound.sources().await?;
    let mut map = sources.objects.config_map(&bound.namespace, "map");
    ensure!(timeout(DEADLINE, map.get()).await??.is_none(), "it does not exist yet");
    for value in ["first", "second"] {
        bound.config_map("map", value).await?;
        follow(&mut map, Some(value)).await?;
    }
    let seen = map.get().await?.context("it is there")?;
    // kubectl keeps a copy of the content in there.
    ensure!(seen.metadata.annotations.is_none() && seen.metadata.managed_fields.is_none(), "{seen:?}");
    bound.kubectl.run(["delete", "configmap", "map"]).await?;
    follow(&mut map, None).await
}

#[tokio::test]
async fn an_object_is_forbidden_until_a_pod_of_this_node_names_it() -> Result<()> {
    let _programs = testing::programs().await;
    let bound = Bound::new("forbidden").await?;
    bound.config_map("map", "value").await?;
    let sources = bound.sources().await?;
    let mut map = sources.objects.config_map(&bound.namespace, "map");
    let error = timeout(DEADLINE, map.get()).await?.err().context("it was shown")?;
    let ObjectError::Forbidden { .. } = &error else { anyhow::bail!("{error}") };
    let words = error.to_string();
    ensure!(words.contains("configmap \"map\"") && words.contains("no relationship found"), "{words}");
    bound.pod("pod", &uses("map"), &json!([])).await?;
    timeout(DEADLINE, map.changed()).await?;
    follow(&mut map, Some("value")).await
}

#[tokio::test]
async fn an_outage_costs_no_update() -> Result<()> {
    let _programs = testing::programs().await;
    let bound = Bound::new("outage").await?;
    bound.pod("pod", &uses("map"), &json!([])).await?;
    bound.config_map("map", "before").await?;
    let proxy = Proxy::start(bound.control_plane).await?;
    let direct = bound.control_plane.node_kubeconfig(&bound.node)?;
    let sources = bound.sources_through(&proxy.kubeconfig(&direct)?).await?;
    let mut map = sources.objects.config_map(&bound.namespace, "map");
    follow(&mut map, Some("before")).await?;
    proxy.sever();
    bound.config_map("map", "after").await?;
    ensure!(map.get().await?.is_some(), "the agent keeps the last object while the API server is away");
    let mut unknown = sources.objects.config_map(&bound.namespace, "other");
    let error = timeout(DEADLINE, unknown.get()).await?.err().context("the API server is away")?;
    ensure!(error.to_string().starts_with("cannot read configmap \"other\": "), "{error}");
    proxy.delay(std::time::Duration::ZERO);
    follow(&mut map, Some("after")).await
}

fn value<'a>(resolved: &'a Resolved, name: &str) -> Option<&'a str> {
    resolved.variables.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
}

#[tokio::test]
async fn an_environment_waits_for_its_objects() -> Result<()> {
    let _programs = testing::programs().await;
    let bound = Bound::new("environment").await?;
    let ports = json!([{"port": 5432, "name": "sql"}]);
    bound.apply("Service", "data-base", json!({"spec": {"ports": ports, "selector": {"app": "db"}}})).await?;
    let container = json!({
        "envFrom": [{"secretRef": {"name": "secret"}, "prefix": "S_"}],
        "env": [
            {"name": "V", "valueFrom": {"configMapKeyRef": {"name": "map", "key": "key"}}},
            {"name": "MAYBE", "valueFrom": {"configMapKeyRef": {"name": "never", "key": "key", "optional": true}}},
            {"name": "HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
            {"name": "BOTH", "value": "$(V) $(S_password)"},
        ],
    });
    let pod = bound.pod("pod", &container, &json!([])).await?;
    let container: &Container = &pod.spec.as_ref().context("no spec")?.containers[0];
    let sources = bound.sources().await?;
    let mut environment = Environment::of(pod.clone(), container, &sources);

    let mut problems = Vec::new();
    let resolve = async {
        loop {
            match environment.resolve().await {
                Ok(resolved) => return Ok(resolved),
                Err(error @ (ConfigError::ConfigMapMissing(_) | ConfigError::SecretMissing(_))) => {
                    ensure!(environment.changed().now_or_never().is_none(), "nothing has changed");
                    // Creates only the object that is missing.
                    match error.to_string().as_str() {
                        "secret \"secret\" not found" => {
                            let data = json!({"stringData": {"password": "hunter2"}});
                            bound.apply("Secret", "secret", data).await?;
                        }
                        "configmap \"map\" not found" => bound.config_map("map", "value").await?,
                        other => anyhow::bail!("{other}"),
                    }
                    problems.push(error.to_string());
                    environment.changed().await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    };
    let resolved = timeout(DEADLINE, resolve).await??;
    problems.dedup();
    ensure!(problems == ["secret \"secret\" not found", "configmap \"map\" not found"], "{problems:?}");
    ensure!(value(&resolved, "BOTH") == Some("value hunter2"), "{:?}", resolved.variables);
    ensure!(value(&resolved, "MAYBE").is_none() && value(&resolved, "HOST") == Some("192.0.2.1"));
    ensure!(value(&resolved, "KUBERNETES_SERVICE_HOST").is_some(), "{resolved:?}");
    ensure!(value(&resolved, "DATA_BASE_SERVICE_PORT_SQL") == Some("5432"), "{resolved:?}");
    Ok(())
}

/// The text of a file.
fn text<'a>(payload: &'a Payload, path: &str) -> Result<&'a str> {
    let file = payload.0.get(Path::new(path)).with_context(|| format!("no {path} in {payload:?}"))?;
    Ok(std::str::from_utf8(&file.bytes)?)
}

/// The API server's review of a token.
async fn review(bound: &Bound, token: &str, audience: Option<&str>) -> Result<BTreeMap<String, Vec<String>>> {
    let spec = TokenReviewSpec {
        token: token.to_owned(),
        audiences: audience.map(|audience| vec![audience.to_owned()]),
    };
    let review = TokenReview { spec, ..TokenReview::default() };
    let reviews: Api<TokenReview> = Api::all(bound.control_plane.client().await?);
    let status = reviews.create(&PostParams::default(), &review).await?.status.context("no answer")?;
    ensure!(status.authenticated == Some(true), "{status:?}");
    let user = status.user.context("no user")?;
    let expected = format!("system:serviceaccount:{}:default", bound.namespace);
    ensure!(user.username.as_deref() == Some(&expected), "{user:?}");
    Ok(user.extra.unwrap_or_default())
}

fn volume(pod: &Pod, name: &str) -> Result<Volume> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.into_iter().find(|volume| volume.name.starts_with(name)).cloned().context("no such volume")
}

#[tokio::test]
async fn every_pod_gets_a_token_that_is_bound_to_it() -> Result<()> {
    let _programs = testing::programs().await;
    let bound = Bound::new("token").await?;
    let audience =
        json!({"serviceAccountToken": {"path": "vault", "audience": "vault", "expirationSeconds": 600}});
    let volumes = json!([{"name": "other", "projected": {"sources": [audience], "defaultMode": 0o400}}]);
    let pod = bound.pod("pod", &json!({}), &volumes).await?;
    let sources = bound.sources().await?;
    let (_sender, receiver) = watch::channel(pod.clone());

    let usual = volume(&pod, "kube-api-access-")?;
    let mut usual = Content::of(&usual, receiver.clone(), &sources).context("it has no content")?;
    let payload = timeout(DEADLINE, usual.payload()).await??;
    ensure!(text(&payload, "namespace")? == bound.namespace);
    ensure!(text(&payload, "ca.crt")?.contains("BEGIN CERTIFICATE"));
    let extra = review(&bound, text(&payload, "token")?, None).await?;
    let uid = extra.get("authentication.kubernetes.io/pod-uid").context("not bound")?;
    ensure!(uid.first() == pod.metadata.uid.as_ref(), "{extra:?}");
    let again = timeout(DEADLINE, usual.payload()).await??;
    ensure!(again == payload, "the token is kept while it is good");

    let mut other = Content::of(&volume(&pod, "other")?, receiver, &sources).context("it has no content")?;
    let payload = timeout(DEADLINE, other.payload()).await??;
    review(&bound, text(&payload, "vault")?, Some("vault")).await?;
    ensure!(review(&bound, text(&payload, "vault")?, None).await.is_err(), "it is for the vault only");
    ensure!(payload.0[Path::new("vault")].mode == 0o400, "{payload:?}");
    Ok(())
}

#[tokio::test]
async fn a_token_for_a_pod_of_another_node_is_refused() -> Result<()> {
    let _programs = testing::programs().await;
    let (here, there) = (Bound::new("here").await?, Bound::new("there").await?);
    let pod = there.pod("pod", &json!({}), &json!([])).await?;
    let sources = here.sources().await?;
    let wanted = volume(&pod, "kube-api-access-")?.projected.and_then(|volume| volume.sources);
    let wanted = wanted.into_iter().flatten().find_map(|source| source.service_account_token);
    let mut token = sources.tokens.token(&pod, &wanted.context("no token in it")?);
    let error = timeout(DEADLINE, token.get()).await?.err().context("it was given")?.to_string();
    ensure!(error.starts_with("failed to fetch token: ") && error.contains("forbidden"), "{error}");
    Ok(())
}

#[tokio::test]
async fn volumes_follow_their_sources() -> Result<()> {
    let _programs = testing::programs().await;
    let bound = Bound::new("volume").await?;
    let sources = json!([
        {"configMap": {"name": "map", "items": [{"key": "key", "path": "map/value", "mode": 0o600}]}},
        {"secret": {"name": "maybe", "optional": true}},
        {"serviceAccountToken": {"path": "token"}},
        {"downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
    ]);
    let volumes = json!([{"name": "all", "projected": {"sources": sources}}]);
    let pod = bound.pod("pod", &json!({}), &volumes).await?;
    let sources = bound.sources().await?;
    let (sender, receiver) = watch::channel(pod.clone());
    let mut content = Content::of(&volume(&pod, "all")?, receiver, &sources).context("it has no content")?;

    let error = timeout(DEADLINE, content.payload()).await?.err().context("the ConfigMap is missing")?;
    ensure!(error.to_string() == "configmap \"map\" not found", "{error}");
    ensure!(content.changed().now_or_never().is_none(), "nothing has changed");
    bound.config_map("map", "one").await?;
    timeout(DEADLINE, content.changed()).await?;
    let payload = timeout(DEADLINE, content.payload()).await??;
    ensure!(
        text(&payload, "map/value")? == "one" && text(&payload, "labels")? == "version=\"1\"",
        "{payload:?}"
    );
    ensure!(payload.0.len() == 3, "{payload:?}");
    // A Pod's status changes all the time.
    sender.send_modify(|pod| Arc::make_mut(pod).status = None);
    ensure!(content.changed().now_or_never().is_none(), "nothing has changed");

    bound.apply("Secret", "maybe", json!({"stringData": {"password": "hunter2"}})).await?;
    timeout(DEADLINE, content.changed()).await?;
    ensure!(text(&timeout(DEADLINE, content.payload()).await??, "password")? == "hunter2");

    bound.kubectl.run(["label", "pod", "pod", "version=2", "--overwrite"]).await?;
    sender.send_replace(Arc::new(bound.pods.get("pod").await?));
    timeout(DEADLINE, content.changed()).await?;
    ensure!(text(&timeout(DEADLINE, content.payload()).await??, "labels")? == "version=\"2\"");
    Ok(())
}
