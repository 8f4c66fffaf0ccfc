//! Which Pods this agent can run. Every other one is refused at once, with the field that is in the way.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};

use super::expansion::{expand, expand_all, lookup};
use super::fields;
use crate::quantity;
use crate::state::GuestCommand;
use crate::tart::Size;
use crate::volume;

/// Why a Pod is refused: shown as the Pod's reason and message, and as an Event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// One word.
    pub reason: &'static str,
    /// What is in the way, and where.
    pub message: String,
}

/// A Pod that fits a VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VmPlan {
    /// The container's name.
    pub container: String,
    /// The image as the Pod names it.
    pub image: String,
    /// The Secrets that may hold credentials for the image's registry.
    pub pull_secrets: Vec<String>,
    /// When to look for a newer image.
    pub pull: PullPolicy,
    /// The size that the container's resources ask for.
    pub size: Size,
    /// Whether that size comes from requests alone: the VM may be larger.
    pub size_is_minimum: bool,
    /// The program to run in the guest; the VM simply boots when absent.
    pub command: Option<GuestCommand>,
}

/// A container's `imagePullPolicy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PullPolicy {
    /// Before each start.
    Always,
    /// When it is not there.
    IfNotPresent,
    /// Not at all.
    Never,
}

/// Reads a Pod as a VM, or says why it cannot be one.
pub fn admit(pod: &Pod) -> Result<VmPlan, Refusal> {
    let spec = pod.spec.as_ref().ok_or_else(|| unsupported("spec", "is missing"))?;
    let [container] = spec.containers.as_slice() else {
        return Err(unsupported(
            "spec.containers",
            "a VM is one container; put the others into Pods of their own",
        ));
    };
    if let Some((field, why)) = fields::first_refused(&serde_json::json!(spec)) {
        // The kubelet has a word of its own for this one.
        let reason = if field.starts_with("spec.os") { "PodOSNotSupported" } else { "UnsupportedPod" };
        return Err(Refusal { reason, message: format!("{field}: {why}") });
    }
    volume::admission::check(spec)?;
    let command = command(container);
    if command.is_none() && container.env.as_ref().is_some_and(|env| !env.is_empty()) {
        return Err(unsupported(
            "spec.containers[0].env",
            "a VM that only boots gets no environment yet; give it a command",
        ));
    }
    let image = container.image.clone().filter(|image| !image.is_empty());
    Ok(VmPlan {
        container: container.name.clone(),
        image: image.ok_or_else(|| unsupported("spec.containers[0].image", "is missing"))?,
        pull_secrets: spec.image_pull_secrets.iter().flatten().map(|secret| secret.name.clone()).collect(),
        pull: match container.image_pull_policy.as_deref() {
            Some("Always") => PullPolicy::Always,
            Some("Never") => PullPolicy::Never,
            _ => PullPolicy::IfNotPresent,
        },
        size: size(container)?,
        size_is_minimum: container
            .resources
            .as_ref()
            .is_none_or(|r| r.limits.as_ref().is_none_or(BTreeMap::is_empty)),
        command,
    })
}

fn unsupported(field: &str, why: &str) -> Refusal {
    Refusal { reason: "UnsupportedPod", message: format!("{field}: {why}") }
}

/// Limits, else requests, size the VM.
fn size(container: &Container) -> Result<Size, Refusal> {
    let resources = container.resources.as_ref();
    let asked = |name: &str| {
        let of = |map: Option<&BTreeMap<_, _>>| map.and_then(|map| map.get(name)).cloned();
        let limit = of(resources.and_then(|r| r.limits.as_ref()));
        limit.or_else(|| of(resources.and_then(|r| r.requests.as_ref())))
    };
    let too_large =
        |name: &str| unsupported(&format!("spec.containers[0].resources.{name}"), "is larger than any VM");
    let cpu = asked("cpu").map(|q| {
        quantity::whole(&q).and_then(|cores| u32::try_from(cores).ok()).ok_or_else(|| too_large("cpu"))
    });
    let memory = asked("memory")
        .map(|q| quantity::whole(&q).map(|bytes| bytes.div_ceil(1 << 20)).ok_or_else(|| too_large("memory")));
    Ok(Size { cpu: cpu.transpose()?.filter(|&n| n > 0), memory_mib: memory.transpose()?.filter(|&n| n > 0) })
}

/// `args` without `command` are the command line, since a VM image has no entry point.
fn command(container: &Container) -> Option<GuestCommand> {
    let variables = container.env.iter().flatten();
    let env = expand_all(variables.map(|v| (v.name.clone(), v.value.clone().unwrap_or_default())));
    let words = container.command.iter().chain(&container.args).flatten();
    let argv: Vec<String> = words.map(|word| expand(word, |name| lookup(&env, name))).collect();
    let working_dir = container.working_dir.clone().filter(|dir| !dir.is_empty());
    (!argv.is_empty()).then_some(GuestCommand { argv, env, working_dir })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(spec: &Value) -> Pod {
        serde_json::from_value(json!({"spec": spec})).unwrap()
    }

    fn with_container(extra: &Value) -> Pod {
        let mut container = json!({"name": "main", "image": "registry.test/macos:15"});
        container.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        pod(&json!({"containers": [container]}))
    }

    #[test]
    fn a_plain_pod_is_a_vm_that_boots() {
        let plan = admit(&with_container(&json!({}))).unwrap();
        assert_eq!(
            (plan.image.as_str(), plan.command, plan.size),
            ("registry.test/macos:15", None, Size::default())
        );
    }

    #[test]
    fn args_alone_are_the_command_line() {
        let plan = admit(&with_container(&json!({"args": ["make", "test"]}))).unwrap();
        assert_eq!(plan.command.unwrap().argv, ["make", "test"]);
        let plan = admit(&with_container(&json!({"command": ["make"], "args": ["test"]}))).unwrap();
        assert_eq!(plan.command.unwrap().argv, ["make", "test"]);
    }

    #[test]
    fn limits_else_requests_size_the_vm() {
        let size = |resources: Value| admit(&with_container(&json!({"resources": resources}))).unwrap().size;
        let of = |cpu, memory_mib| Size { cpu, memory_mib };
        assert_eq!(size(json!({"requests": {"cpu": "2", "memory": "4Gi"}})), of(Some(2), Some(4096)));
        assert_eq!(size(json!({"requests": {"cpu": "2"}, "limits": {"cpu": "3500m"}})), of(Some(4), None));
    }

    #[test]
    fn what_is_refused_names_its_field() {
        let table = vec![
            (pod(&json!({"containers": []})), "spec.containers"),
            (pod(&json!({"containers": [{"name": "a"}, {"name": "b"}]})), "spec.containers"),
            (
                pod(&json!({"containers": [{"name": "a", "image": "i"}], "hostNetwork": true})),
                "spec.hostNetwork",
            ),
            (pod(&json!({"containers": [{"name": "a", "image": "i"}], "os": {"name": "linux"}})), "spec.os"),
            (
                pod(
                    &json!({"containers": [{"name": "a", "image": "i"}], "volumes": [{"name": "v", "nfs": {"path": "/"}}]}),
                ),
                "spec.volumes[0].nfs",
            ),
            (
                with_container(&json!({"volumeMounts": [{"name": "v", "mountPath": "/"}]})),
                "spec.containers[0].volumeMounts[0].mountPath",
            ),
            (
                with_container(&json!({"livenessProbe": {"tcpSocket": {"port": 1}}})),
                "spec.containers[0].livenessProbe",
            ),
            (
                with_container(&json!({"ports": [{"containerPort": 1, "hostPort": 1}]})),
                "spec.containers[0].ports[0].hostPort",
            ),
            (
                with_container(
                    &json!({"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}),
                ),
                "spec.containers[0].env[0].valueFrom",
            ),
            (
                with_container(&json!({"resources": {"limits": {"cpu": "9E"}}})),
                "spec.containers[0].resources.cpu",
            ),
        ];
        for (pod, field) in table {
            let refusal = admit(&pod).unwrap_err();
            assert!(refusal.message.starts_with(&format!("{field}: ")), "{refusal:?}");
        }
    }

    #[test]
    fn the_token_that_every_pod_gets_is_a_volume_like_any_other() {
        let sources = json!([
            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
        ]);
        let token =
            json!({"name": "kube-api-access-x", "projected": {"defaultMode": 420, "sources": sources}});
        let mount = json!({"name": "kube-api-access-x", "readOnly": true,
            "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"});
        let container = json!({"name": "a", "image": "i", "volumeMounts": [mount]});
        let pod = pod(&json!({"containers": [container], "volumes": [token]}));
        assert_eq!(admit(&pod).err(), None);
    }
}
