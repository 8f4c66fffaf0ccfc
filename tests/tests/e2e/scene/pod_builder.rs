//! A Pod for a scene's Node, field by field.

use anyhow::Result;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Map, Value, json};

use super::{IMAGE, Scene};

/// A Pod with one container, `main`, that the scheduler places on the scene's Node. It is not created yet.
#[derive(Clone)]
pub(crate) struct PodBuilder<'a> {
    scene: &'a Scene,
    name: String,
    metadata: Map<String, Value>,
    container: Map<String, Value>,
    spec: Map<String, Value>,
}

impl Scene {
    /// A Pod whose VM only boots, unless a command is added.
    pub(crate) fn pod(&self, name: impl AsRef<str>) -> PodBuilder<'_> {
        let name = name.as_ref().to_owned();
        let (metadata, container, spec) = (Map::new(), Map::new(), Map::new());
        PodBuilder { scene: self, name, metadata, container, spec }
            .container(json!({"name": "main", "image": IMAGE}))
            .spec(json!({
                "restartPolicy": "Never",
                "nodeSelector": {"kubernetes.io/hostname": self.node},
                "tolerations": [{"key": "tuist.dev/macos", "operator": "Exists"}],
            }))
    }
}

impl PodBuilder<'_> {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The same Pod with another name.
    pub(crate) fn named(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// Sets fields of the container that have no method here.
    pub(crate) fn container(mut self, fields: Value) -> Self {
        merge(&mut self.container, fields);
        self
    }

    /// Sets fields of the Pod's spec that have no method here.
    pub(crate) fn spec(mut self, fields: Value) -> Self {
        merge(&mut self.spec, fields);
        self
    }

    /// Sets one field of the container.
    fn field(mut self, name: &str, value: Value) -> Self {
        self.container.insert(name.to_owned(), value);
        self
    }

    fn metadata(mut self, fields: Value) -> Self {
        merge(&mut self.metadata, fields);
        self
    }

    pub(crate) fn image(self, image: impl AsRef<str>) -> Self {
        self.container(json!({"image": image.as_ref()}))
    }

    pub(crate) fn command<A: AsRef<str>>(self, words: impl IntoIterator<Item = A>) -> Self {
        self.container(json!({"command": strings(words)}))
    }

    pub(crate) fn args<A: AsRef<str>>(self, words: impl IntoIterator<Item = A>) -> Self {
        self.container(json!({"args": strings(words)}))
    }

    /// Has a shell script for a command.
    pub(crate) fn sh(self, script: impl AsRef<str>) -> Self {
        self.command(["/bin/sh", "-c", script.as_ref()])
    }

    /// Has a shell script for a command that ends at its first failure.
    pub(crate) fn strict_sh(self, script: impl AsRef<str>) -> Self {
        self.command(["/bin/sh", "-ec", script.as_ref()])
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        push(&mut self.container, "env", json!({"name": name, "value": value}));
        self
    }

    /// A variable with a `valueFrom`.
    pub(crate) fn env_from(mut self, name: &str, source: Value) -> Self {
        let mut variable = Map::new();
        variable.insert("name".to_owned(), name.into());
        variable.insert("valueFrom".to_owned(), source);
        push(&mut self.container, "env", variable.into());
        self
    }

    /// A variable from a field of the Pod.
    pub(crate) fn env_field(self, name: &str, path: &str) -> Self {
        self.env_from(name, json!({"fieldRef": {"fieldPath": path}}))
    }

    /// A variable from a key of a Secret.
    pub(crate) fn env_secret(self, name: &str, secret: &str, key: &str) -> Self {
        self.env_from(name, json!({"secretKeyRef": {"name": secret, "key": key}}))
    }

    /// A variable from a key of a `ConfigMap`.
    pub(crate) fn env_config_map(self, name: &str, map: &str, key: &str) -> Self {
        self.env_from(name, json!({"configMapKeyRef": {"name": map, "key": key}}))
    }

    /// A volume, with its source as in a manifest: `{"emptyDir": {}}`.
    pub(crate) fn volume(mut self, name: &str, mut source: Value) -> Self {
        source["name"] = json!(name);
        push(&mut self.spec, "volumes", source);
        self
    }

    pub(crate) fn mount(self, volume: &str, path: impl AsRef<str>) -> Self {
        self.mount_with(volume, path, json!({}))
    }

    /// A mount with more fields: `subPath`, `readOnly`.
    pub(crate) fn mount_with(mut self, volume: &str, path: impl AsRef<str>, mut fields: Value) -> Self {
        fields["name"] = json!(volume);
        fields["mountPath"] = json!(path.as_ref());
        push(&mut self.container, "volumeMounts", fields);
        self
    }

    /// A volume, mounted at `/private/tmp/<name>`.
    pub(crate) fn mounted(self, name: &str, source: Value) -> Self {
        self.volume(name, source).mount(name, format!("/private/tmp/{name}"))
    }

    /// A `ConfigMap`, mounted at `/private/tmp/<name>`.
    pub(crate) fn config_map(self, name: &str) -> Self {
        self.mounted(name, json!({"configMap": {"name": name}}))
    }

    /// A Secret, mounted at `/private/tmp/<name>`.
    pub(crate) fn secret(self, name: &str) -> Self {
        self.mounted(name, json!({"secret": {"secretName": name}}))
    }

    /// An empty directory, mounted.
    pub(crate) fn empty_dir(self, volume: &str, path: &str) -> Self {
        self.volume(volume, json!({"emptyDir": {}})).mount(volume, path)
    }

    /// The key `token` of the Secret `keys`: as the variable `TOKEN`, and as a file in `/private/tmp/keys`.
    pub(crate) fn secret_token(self) -> Self {
        let source = json!({"secret": {"secretName": "keys"}});
        self.env_secret("TOKEN", "keys", "token").volume("keys", source).mount("keys", "/private/tmp/keys")
    }

    /// An init container with the Pod's image and these fields.
    pub(crate) fn init_container(mut self, name: &str, fields: Value) -> Self {
        let mut container = Map::new();
        merge(&mut container, json!({"name": name, "image": self.container["image"]}));
        merge(&mut container, fields);
        push(&mut self.spec, "initContainers", container.into());
        self
    }

    /// An init container that runs a shell script.
    pub(crate) fn init_sh(self, name: &str, script: impl AsRef<str>) -> Self {
        self.init_container(name, json!({"command": ["/bin/sh", "-c", script.as_ref()]}))
    }

    pub(crate) fn post_start(self, hook: impl Into<Value>) -> Self {
        self.hook("postStart", hook.into())
    }

    pub(crate) fn pre_stop(self, hook: impl Into<Value>) -> Self {
        self.hook("preStop", hook.into())
    }

    fn hook(mut self, name: &str, hook: Value) -> Self {
        self.container.entry("lifecycle").or_insert_with(|| json!({}))[name] = hook;
        self
    }

    pub(crate) fn readiness(self, probe: Value) -> Self {
        self.field("readinessProbe", probe)
    }

    pub(crate) fn liveness(self, probe: Value) -> Self {
        self.field("livenessProbe", probe)
    }

    pub(crate) fn startup(self, probe: Value) -> Self {
        self.field("startupProbe", probe)
    }

    /// The container's `securityContext`.
    pub(crate) fn security_context(self, context: Value) -> Self {
        self.field("securityContext", context)
    }

    /// The file with the termination message.
    pub(crate) fn message_path(self, path: &str) -> Self {
        self.container(json!({"terminationMessagePath": path}))
    }

    pub(crate) fn resources(self, resources: Value) -> Self {
        self.field("resources", resources)
    }

    pub(crate) fn pull_policy(self, policy: &str) -> Self {
        self.container(json!({"imagePullPolicy": policy}))
    }

    pub(crate) fn pull_secrets(mut self, secrets: &[&str]) -> Self {
        for secret in secrets {
            push(&mut self.spec, "imagePullSecrets", json!({"name": secret}));
        }
        self
    }

    pub(crate) fn restart_policy(self, policy: &str) -> Self {
        self.spec(json!({"restartPolicy": policy}))
    }

    /// The grace period of its deletion, in seconds.
    pub(crate) fn grace(self, seconds: u64) -> Self {
        self.spec(json!({"terminationGracePeriodSeconds": seconds}))
    }

    pub(crate) fn active_deadline(self, seconds: u64) -> Self {
        self.spec(json!({"activeDeadlineSeconds": seconds}))
    }

    /// Binds the Pod to the Node at its creation, past the scheduler.
    pub(crate) fn bound(self) -> Self {
        let node = json!({"nodeName": self.scene.node});
        self.spec(node)
    }

    pub(crate) fn label(mut self, key: &str, value: &str) -> Self {
        self.metadata.entry("labels").or_insert_with(|| json!({}))[key] = json!(value);
        self
    }

    pub(crate) fn annotation(mut self, key: &str, value: &str) -> Self {
        self.metadata.entry("annotations").or_insert_with(|| json!({}))[key] = json!(value);
        self
    }

    /// Gives the Pod a finalizer: it stays in the API after its deletion, so that a test can read how it ended.
    pub(crate) fn finalizer(self) -> Self {
        self.metadata(json!({"finalizers": ["example.com/linger"]}))
    }

    /// The manifest.
    pub(crate) fn json(mut self) -> Value {
        self.metadata.insert("name".to_owned(), self.name.into());
        self.spec.entry("containers").or_insert_with(|| json!([self.container]));
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": self.metadata, "spec": self.spec})
    }

    /// Creates the Pod.
    pub(crate) async fn create(self) -> Result<()> {
        let scene = self.scene;
        scene.apply(&self.json()).await
    }

    /// Creates the Pod and waits until it has a phase.
    pub(crate) async fn create_until(self, phase: &str) -> Result<Pod> {
        let (scene, name) = (self.scene, self.name.clone());
        self.create().await?;
        scene.phase(&name, phase).await
    }

    /// Creates the Pod, waits until its command has succeeded, and returns what that wrote, line by line.
    pub(crate) async fn output(self) -> Result<Vec<String>> {
        let scene = self.scene;
        let pod = self.create_until("Succeeded").await?;
        scene.log(&pod, "main", 0)
    }
}

/// A handler of a hook or a probe that runs a shell script in the guest.
pub(crate) fn exec(script: impl AsRef<str>) -> Value {
    json!({"exec": {"command": ["/bin/sh", "-c", script.as_ref()]}})
}

/// A probe with this handler, made every second.
pub(crate) fn every_second(mut handler: Value) -> Value {
    handler["periodSeconds"] = json!(1);
    handler
}

fn strings<A: AsRef<str>>(words: impl IntoIterator<Item = A>) -> Vec<String> {
    words.into_iter().map(|word| word.as_ref().to_owned()).collect()
}

/// Adds fields to an object.
fn merge(object: &mut Map<String, Value>, fields: Value) {
    if let Value::Object(fields) = fields {
        object.extend(fields);
    }
}

/// Adds an item to a list of an object.
fn push(object: &mut Map<String, Value>, list: &str, item: Value) {
    if let Some(list) = object.entry(list).or_insert_with(|| json!([])).as_array_mut() {
        list.push(item);
    }
}
