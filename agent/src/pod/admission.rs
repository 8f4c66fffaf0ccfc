//! Which Pods this agent can run. Every other one is refused at once, with the field that is in the way.

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, SecurityContext, Volume};

use crate::quantity;
use crate::state::GuestCommand;
use crate::tart::Size;

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
    admit_spec(spec)?;
    let [container] = spec.containers.as_slice() else {
        return Err(unsupported(
            "spec.containers",
            "a VM is one container; put the others into Pods of their own",
        ));
    };
    admit_container(container)?;
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
        command: command(container),
    })
}

fn admit_spec(spec: &PodSpec) -> Result<(), Refusal> {
    if let Some(os) = &spec.os {
        return Err(Refusal {
            reason: "PodOSNotSupported",
            message: format!("spec.os: this Node runs macOS, the Pod asks for {}", os.name),
        });
    }
    let some = |list: &Option<Vec<_>>| list.as_ref().is_some_and(|list| !list.is_empty());
    let checks = [
        ("spec.initContainers", some(&spec.init_containers), "init containers are not supported yet"),
        (
            "spec.ephemeralContainers",
            spec.ephemeral_containers.as_ref().is_some_and(|list| !list.is_empty()),
            "a VM cannot be joined by a container",
        ),
        ("spec.hostNetwork", spec.host_network == Some(true), "a VM cannot share the host's network"),
        ("spec.hostPID", spec.host_pid == Some(true), "a VM cannot share the host's processes"),
        ("spec.hostIPC", spec.host_ipc == Some(true), "a VM cannot share the host's memory"),
        (
            "spec.volumes",
            spec.volumes.iter().flatten().any(|volume| !is_default_token(volume)),
            "volumes are not supported yet",
        ),
        (
            "spec.readinessGates",
            spec.readiness_gates.as_ref().is_some_and(|g| !g.is_empty()),
            "readiness gates are not supported yet",
        ),
        (
            "spec.activeDeadlineSeconds",
            spec.active_deadline_seconds.is_some(),
            "a deadline is not supported yet",
        ),
    ];
    refuse_first(&checks)
}

fn admit_container(container: &Container) -> Result<(), Refusal> {
    let dynamic = container.env.iter().flatten().any(|variable| variable.value_from.is_some());
    let checks = [
        (
            "spec.containers[0].envFrom",
            container.env_from.as_ref().is_some_and(|e| !e.is_empty()),
            "envFrom is not supported yet",
        ),
        ("spec.containers[0].env.valueFrom", dynamic, "valueFrom is not supported yet"),
        (
            "spec.containers[0].livenessProbe",
            container.liveness_probe.is_some(),
            "probes are not supported yet",
        ),
        (
            "spec.containers[0].readinessProbe",
            container.readiness_probe.is_some(),
            "probes are not supported yet",
        ),
        (
            "spec.containers[0].startupProbe",
            container.startup_probe.is_some(),
            "probes are not supported yet",
        ),
        ("spec.containers[0].lifecycle", container.lifecycle.is_some(), "hooks are not supported yet"),
        ("spec.containers[0].stdin", container.stdin == Some(true), "stdin is not supported yet"),
        ("spec.containers[0].tty", container.tty == Some(true), "a terminal is not supported yet"),
        (
            "spec.containers[0].volumeDevices",
            container.volume_devices.as_ref().is_some_and(|d| !d.is_empty()),
            "block devices are not supported",
        ),
        (
            "spec.containers[0].ports.hostPort",
            container.ports.iter().flatten().any(|port| port.host_port.is_some()),
            "host ports are not supported yet",
        ),
        (
            "spec.containers[0].securityContext",
            container.security_context.as_ref().is_some_and(|context| context != &SecurityContext::default()),
            "security contexts are not supported yet",
        ),
    ];
    refuse_first(&checks)
}

fn refuse_first(checks: &[(&str, bool, &str)]) -> Result<(), Refusal> {
    match checks.iter().find(|(_, present, _)| *present) {
        Some((field, _, why)) => Err(unsupported(field, why)),
        None => Ok(()),
    }
}

fn unsupported(field: &str, why: &str) -> Refusal {
    Refusal { reason: "UnsupportedPod", message: format!("{field}: {why}") }
}

/// The token volume that every Pod gets without asking for it; a VM runs well without.
fn is_default_token(volume: &Volume) -> bool {
    volume.projected.is_some() && volume.name.starts_with("kube-api-access-")
}

/// Limits, else requests, size the VM.
fn size(container: &Container) -> Result<Size, Refusal> {
    let resources = container.resources.as_ref();
    let asked = |name: &str| {
        let of = |map: Option<&std::collections::BTreeMap<_, _>>| map.and_then(|map| map.get(name)).cloned();
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
    let argv: Vec<String> = container.command.iter().chain(&container.args).flatten().cloned().collect();
    let variable =
        |v: &k8s_openapi::api::core::v1::EnvVar| (v.name.clone(), v.value.clone().unwrap_or_default());
    (!argv.is_empty()).then(|| GuestCommand {
        argv,
        env: container.env.iter().flatten().map(variable).collect(),
        working_dir: container.working_dir.clone().filter(|dir| !dir.is_empty()),
    })
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
                    &json!({"containers": [{"name": "a", "image": "i"}], "volumes": [{"name": "v", "emptyDir": {}}]}),
                ),
                "spec.volumes",
            ),
            (
                with_container(&json!({"livenessProbe": {"tcpSocket": {"port": 1}}})),
                "spec.containers[0].livenessProbe",
            ),
            (
                with_container(&json!({"ports": [{"containerPort": 1, "hostPort": 1}]})),
                "spec.containers[0].ports.hostPort",
            ),
            (
                with_container(&json!({"env": [{"name": "A", "valueFrom": {}}]})),
                "spec.containers[0].env.valueFrom",
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
    fn the_token_that_every_pod_gets_is_no_reason_to_refuse_it() {
        let token = json!({"name": "kube-api-access-x", "projected": {"sources": []}});
        let pod = pod(&json!({"containers": [{"name": "a", "image": "i"}], "volumes": [token]}));
        assert!(admit(&pod).is_ok());
    }
}
