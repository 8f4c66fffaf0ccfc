//! `emptyDir.medium: Memory`: a file system in the guest's own memory, if possible.

use k8s_openapi::api::core::v1::{PodSpec, Volume};

use crate::quantity;
use crate::state::container_spec::{all_containers, has_command};
use crate::state::{RestartPolicy, Segment};

/// Whether a volume is in the guest's memory. Such a volume is lost with the VM, so a container that may restart does not get one, nor does
/// a Pod that has several VMs. The guest
/// agent creates it, writable for all. Any other volume is a directory of the host, as if it had no medium.
pub(super) fn is_in_memory(spec: &PodSpec, volume: &Volume) -> bool {
    let wants_memory =
        volume.empty_dir.as_ref().and_then(|source| source.medium.as_deref()) == Some("Memory");
    let runs_once = RestartPolicy::of(spec.restart_policy.as_deref()) == RestartPolicy::Never;
    let runs_a_command = spec.containers.last().is_some_and(has_command);
    let mut mounts = all_containers(spec).flat_map(|container| container.volume_mounts.iter().flatten());
    let is_read_only = mounts.any(|mount| mount.name == volume.name && mount.read_only == Some(true));
    wants_memory && runs_once && runs_a_command && !is_read_only && Segment::is_only_one(spec)
}

/// How large a volume in memory may be, in bytes; 0 for as large as the guest lets it be.
pub(super) fn size(volume: &Volume) -> u64 {
    let limit = volume.empty_dir.as_ref().and_then(|source| source.size_limit.as_ref());
    limit.and_then(quantity::whole).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn volume(source: &Value) -> Volume {
        serde_json::from_value(json!({"name": "v", "emptyDir": source})).unwrap()
    }

    #[test]
    fn a_volume_that_must_outlive_its_vm_is_not_in_memory() {
        let memory = json!({"medium": "Memory"});
        let table = [
            (&memory, "Never", &["true"][..], false, true),
            (&json!({}), "Never", &["true"], false, false),
            (&memory, "Always", &["true"], false, false),
            (&memory, "OnFailure", &["true"], false, false),
            (&memory, "Never", &[], false, false),
            (&memory, "Never", &["true"], true, false),
        ];
        for (source, policy, command, read_only, expected) in table {
            let mount = json!({"name": "v", "mountPath": "/v", "readOnly": read_only});
            let container = json!({"name": "main", "command": command, "volumeMounts": [mount]});
            let spec = json!({"restartPolicy": policy, "containers": [container]});
            let found = is_in_memory(&serde_json::from_value(spec).unwrap(), &volume(source));
            assert_eq!(found, expected, "{source} {policy} {command:?} {read_only}");
        }
    }

    #[test]
    fn a_volume_of_several_vms_is_not_in_memory() {
        for (image, expected) in [("a", true), ("b", false)] {
            let container =
                |name: &str, image: &str| json!({"name": name, "image": image, "command": ["true"]});
            let (init, main) = (container("init", image), container("main", "a"));
            let spec = json!({"restartPolicy": "Never", "initContainers": [init], "containers": [main]});
            let found =
                is_in_memory(&serde_json::from_value(spec).unwrap(), &volume(&json!({"medium": "Memory"})));
            assert_eq!(found, expected, "{image}");
        }
    }

    #[test]
    fn the_size_of_a_volume_in_memory_is_its_limit() {
        assert_eq!(size(&volume(&json!({"medium": "Memory"}))), 0);
        assert_eq!(size(&volume(&json!({"medium": "Memory", "sizeLimit": "1Mi"}))), 1 << 20);
    }
}
