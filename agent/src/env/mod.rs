//! A container's environment: Services, `ConfigMaps`, Secrets and the downward API.

pub(crate) mod downward;
pub(crate) mod expansion;
mod resolve;
pub(crate) mod services;
pub(crate) mod sources;

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{ConfigMap, Container, EnvVarSource, Pod, Secret};
use kube::ResourceExt;

pub(crate) use resolve::{ConfigError, Resolved, Snapshot, resolve};

use crate::apiserver::watched_objects::{ObjectError, WatchedObject, first_of};
use downward::DownwardError;
use services::{LinkedServices, service_environment};
use sources::InputSources;

/// The environment of a container that is about to start. It watches its objects until it is dropped.
#[derive(Debug)]
pub(crate) struct Environment {
    pod: Arc<Pod>,
    container: Container,
    world: InputSources,
    config_maps: BTreeMap<String, WatchedObject<ConfigMap>>,
    secrets: BTreeMap<String, WatchedObject<Secret>>,
    services: LinkedServices,
    /// Whether the last attempt failed because the Node had no address.
    lacks_address: bool,
}

impl Environment {
    /// The environment of one of a Pod's containers. Must be called inside a runtime.
    pub(crate) fn of(pod: Arc<Pod>, container: &Container, world: &InputSources) -> Self {
        let namespace = pod.namespace().unwrap_or_default();
        let names = Names::of(container);
        let config_map = |name: &String| (name.clone(), world.objects.config_map(&namespace, name));
        let secret = |name: &String| (name.clone(), world.objects.secret(&namespace, name));
        Self {
            config_maps: names.config_maps.iter().map(config_map).collect(),
            secrets: names.secrets.iter().map(secret).collect(),
            services: world.services.of(&namespace, wants_links(&pod)),
            pod,
            container: container.clone(),
            world: world.clone(),
            lacks_address: false,
        }
    }

    /// Takes the Pod's newer version: labels and annotations may be in variables.
    pub(crate) fn follow(&mut self, pod: &Arc<Pod>) {
        self.pod = pod.clone();
    }

    /// The variables as of now, or why there are none. Waits for objects, a few seconds at most.
    pub(crate) async fn resolve(&mut self) -> Result<Resolved, ConfigError> {
        // Read all objects, even if one fails: `changed` counts from here.
        let snapshot = self.gather().await;
        let resolved = snapshot.and_then(|snapshot| resolve(&self.pod, &self.container, &snapshot));
        self.lacks_address = matches!(resolved, Err(ConfigError::Downward(DownwardError::NoAddress(_))));
        resolved
    }

    /// Waits until `resolve` may return something else. Safe to cancel.
    pub(crate) async fn changed(&mut self) {
        let config_maps =
            self.config_maps.values_mut().map(|object| -> BoxFuture<'_, ()> { Box::pin(object.changed()) });
        let secrets =
            self.secrets.values_mut().map(|object| -> BoxFuture<'_, ()> { Box::pin(object.changed()) });
        let mut waits: Vec<BoxFuture<'_, ()>> = config_maps.chain(secrets).collect();
        waits.push(Box::pin(self.services.changed()));
        if self.lacks_address {
            let mut address = self.world.address.clone();
            waits.push(Box::pin(async move {
                if address.wait_for(Option::is_some).await.is_err() {
                    std::future::pending::<()>().await;
                }
            }));
        }
        first_of(waits).await;
    }

    async fn gather(&mut self) -> Result<Snapshot, ConfigError> {
        let config_maps = all(&mut self.config_maps).await;
        let secrets = all(&mut self.secrets).await;
        let services = self.services.get().await.map_err(ConfigError::Services);
        let namespace = self.pod.namespace().unwrap_or_default();
        let services = services?;
        let services = services.iter().map(AsRef::as_ref);
        Ok(Snapshot {
            config_maps: config_maps?,
            secrets: secrets?,
            services: service_environment(&namespace, wants_links(&self.pod), services),
            host_ip: self.world.host_ip(),
            allocatable: self.world.allocatable.clone(),
        })
    }
}

async fn all<T>(
    watched: &mut BTreeMap<String, WatchedObject<T>>,
) -> Result<BTreeMap<String, Option<Arc<T>>>, ObjectError> {
    let mut objects = BTreeMap::new();
    for (name, object) in watched {
        objects.insert(name.clone(), object.get().await);
    }
    objects.into_iter().map(|(name, object)| Ok((name, object?))).collect()
}

/// Whether earlier containers of the Pod may change this container's environment: they may write `ConfigMaps`, Secrets, labels and
/// annotations. Such an environment is resolved when the container starts, unless a `subPathExpr` needs it before the VM starts.
pub(crate) fn may_change(container: &Container) -> bool {
    let from = || container.env.iter().flatten().filter_map(|variable| variable.value_from.as_ref());
    let describes = |from: &EnvVarSource| {
        let path = from.field_ref.as_ref().map_or("", |field| field.field_path.as_str());
        path.starts_with("metadata.labels") || path.starts_with("metadata.annotations")
    };
    let has_expressions = container.volume_mounts.iter().flatten().any(|mount| mount.sub_path_expr.is_some());
    let names = Names::of(container);
    let is_made_of_objects = !names.config_maps.is_empty() || !names.secrets.is_empty();
    (is_made_of_objects || from().any(describes)) && !has_expressions
}

fn wants_links(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|spec| spec.enable_service_links).unwrap_or(true)
}

/// The objects that a container's environment names.
#[derive(Default)]
struct Names {
    config_maps: Vec<String>,
    secrets: Vec<String>,
}

impl Names {
    fn of(container: &Container) -> Self {
        let mut names = Self::default();
        for from in container.env_from.iter().flatten() {
            names.config_maps.extend(from.config_map_ref.iter().map(|source| source.name.clone()));
            names.secrets.extend(from.secret_ref.iter().map(|source| source.name.clone()));
        }
        for from in container.env.iter().flatten().filter_map(|variable| variable.value_from.as_ref()) {
            names.config_maps.extend(from.config_map_key_ref.iter().map(|source| source.name.clone()));
            names.secrets.extend(from.secret_key_ref.iter().map(|source| source.name.clone()));
        }
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{from_json, merged};
    use serde_json::{Value, json};

    #[test]
    fn an_environment_from_objects_or_labels_is_resolved_late() {
        let of = |fields: &Value| may_change(&from_json(merged(&json!({"name": "c", "image": "i"}), fields)));
        let from = |source: Value| json!({"env": [{"name": "A", "valueFrom": source}]});
        let key = json!({"name": "n", "key": "k"});
        let field = |path: &str| from(json!({"fieldRef": {"fieldPath": path}}));
        for late in [
            from(json!({"configMapKeyRef": key})),
            from(json!({"secretKeyRef": key})),
            field("metadata.labels['a']"),
            field("metadata.annotations['a']"),
            json!({"envFrom": [{"configMapRef": {"name": "n"}}]}),
            json!({"envFrom": [{"secretRef": {"name": "n", "optional": true}}]}),
        ] {
            assert!(of(&late), "{late}");
            let mounts = json!([{"name": "v", "mountPath": "/v", "subPathExpr": "$(A)"}]);
            assert!(!of(&merged(&late, &json!({"volumeMounts": mounts}))), "{late}");
        }
        for fixed in [
            json!({}),
            json!({"env": [{"name": "A", "value": "b"}]}),
            field("metadata.name"),
            field("status.podIP"),
            from(json!({"resourceFieldRef": {"resource": "limits.cpu"}})),
        ] {
            assert!(!of(&fixed), "{fixed}");
        }
    }
}
