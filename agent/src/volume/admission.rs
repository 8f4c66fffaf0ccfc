//! Which mounts a VM can have. What is refused for its name alone is in the table of fields.

use std::path::{Component, Path, PathBuf};

use k8s_openapi::api::core::v1::{Container, PodSpec};

use super::memory::is_in_memory;
use crate::pod::admission::Refusal;
use crate::pod::blueprint::has_command;

/// Refuses volumes that cannot be where the Pod wants them.
pub fn check(spec: &PodSpec) -> Result<(), Refusal> {
    let init = spec.init_containers.iter().flatten().enumerate();
    let init = init.map(|(index, container)| (format!("spec.initContainers[{index}]"), container));
    let main = spec.containers.iter().enumerate();
    let main = main.map(|(index, container)| (format!("spec.containers[{index}]"), container));
    init.chain(main).try_for_each(|(field, container)| check_container(&field, container))?;
    check_memory(spec)
}

/// What is in the guest's memory is made by its guest agent, and is there for all to write to.
fn check_memory(spec: &PodSpec) -> Result<(), Refusal> {
    let only_boots = spec.containers.last().is_some_and(|main| !has_command(main));
    let all = spec.init_containers.iter().flatten().chain(&spec.containers);
    let mounts: Vec<_> = all.flat_map(|container| container.volume_mounts.iter().flatten()).collect();
    let volumes = spec.volumes.iter().flatten().enumerate();
    for (index, volume) in volumes.filter(|(_, volume)| is_in_memory(volume)) {
        let mounts_it_read_only =
            mounts.iter().any(|mount| mount.name == volume.name && mount.read_only == Some(true));
        let why = match (only_boots, mounts_it_read_only) {
            (true, _) => "needs a container with a command: a VM that only boots is as its image has it",
            (_, true) => "a volume in memory cannot be read-only for some",
            _ => continue,
        };
        let message = format!("spec.volumes[{index}].emptyDir.medium: {why}");
        return Err(Refusal { reason: "UnsupportedPod", message });
    }
    Ok(())
}

fn check_container(field: &str, container: &Container) -> Result<(), Refusal> {
    let mut taken: Vec<PathBuf> = Vec::new();
    for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
        let refused = |why: &str| Refusal {
            reason: "UnsupportedPod",
            message: format!("{field}.volumeMounts[{index}].mountPath: {why}"),
        };
        let path = guest_path(&mount.mount_path);
        if path == Path::new("/") {
            return Err(refused("a volume cannot take the place of the guest's root"));
        }
        if mount.mount_path.split('/').any(|part| part == "..") {
            return Err(refused("must not contain `..`"));
        }
        let clash = taken.iter().find(|other| path.starts_with(other) || other.starts_with(&path));
        if let Some(other) = clash {
            return Err(refused(&format!(
                "a volume is linked into the guest, so that it cannot be inside another one, as with {}",
                other.display()
            )));
        }
        taken.push(path);
    }
    Ok(())
}

/// Where a mount is in the guest: absolute, and without doubled slashes.
pub(super) fn guest_path(mount_path: &str) -> PathBuf {
    let parts = Path::new(mount_path).components().filter(|part| matches!(part, Component::Normal(_)));
    Path::new("/").join(parts.collect::<PathBuf>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn refusal(paths: &[&str]) -> Option<String> {
        let mounts: Vec<_> = paths.iter().map(|path| json!({"name": "v", "mountPath": path})).collect();
        let spec = json!({"containers": [{"name": "main", "volumeMounts": mounts}]});
        check(&serde_json::from_value(spec).unwrap()).err().map(|refusal| refusal.message)
    }

    #[test]
    fn mounts_side_by_side_are_fine() {
        assert_eq!(refusal(&[]), None);
        assert_eq!(refusal(&["/data", "/data2", "/var/run/secrets/kubernetes.io/serviceaccount"]), None);
    }

    #[test]
    fn what_is_in_memory_takes_a_command_and_is_written_to() {
        let refusal = |command: &[&str], read_only: bool| {
            let mount = json!({"name": "v", "mountPath": "/v", "readOnly": read_only});
            let volumes = json!([{"name": "v", "emptyDir": {"medium": "Memory"}}]);
            let container = json!({"name": "main", "command": command, "volumeMounts": [mount]});
            let spec = json!({"containers": [container], "volumes": volumes});
            check(&serde_json::from_value(spec).unwrap()).err().map(|refusal| refusal.message)
        };
        assert_eq!(refusal(&["true"], false), None);
        for (command, read_only) in [(&["true"][..], true), (&[], false)] {
            let message = refusal(command, read_only).unwrap();
            assert!(message.starts_with("spec.volumes[0].emptyDir.medium: "), "{message}");
        }
    }

    #[test]
    fn what_cannot_be_linked_is_refused_in_words() {
        for (paths, index) in [
            (vec!["/"], 0),
            (vec!["//"], 0),
            (vec!["/a/../b"], 0),
            (vec!["/data", "/data/inner"], 1),
            (vec!["/data/inner", "/data/"], 1),
            (vec!["/data", "/x", "data//"], 2),
        ] {
            let message = refusal(&paths).unwrap();
            let field = format!("spec.containers[0].volumeMounts[{index}].mountPath: ");
            assert!(message.starts_with(&field), "{message}");
        }
    }
}
