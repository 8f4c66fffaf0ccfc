//! Which mount paths a VM can have. Fields that are refused whatever their value are in the table of fields.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{Container, PodSpec};

use super::{Refusal, RefusalReason, field};
use crate::state::Segment;
use crate::volume::guest_path;

/// Where the guest keeps the files of the set-up script.
const SCRATCH: &str = "/private/var/tmp";

/// A mounted path. macOS ignores case, so several spellings are one place.
struct Taken {
    place: PathBuf,
    /// The Pod's spelling.
    path: String,
}

/// Refuses mount paths that the guest cannot have.
pub(crate) fn check(spec: &PodSpec) -> Result<(), Refusal> {
    for segment in Segment::all(spec) {
        let mut elsewhere = Vec::new();
        for container in segment.containers(spec) {
            let own = check_container(&field(spec, container), container, &elsewhere)?;
            elsewhere.extend(own);
        }
    }
    Ok(())
}

/// The containers of a segment run in one guest, and a mount is a link that stays for the next container. The same path is linked again, but a
/// path inside another container's volume would change that volume. `elsewhere` are the mounts of the containers before.
fn check_container(field: &str, container: &Container, elsewhere: &[Taken]) -> Result<Vec<Taken>, Refusal> {
    let mut taken: Vec<Taken> = Vec::new();
    for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
        let refused = |why: &str| Refusal {
            reason: RefusalReason::UnsupportedPod,
            message: format!("{field}.volumeMounts[{index}].mountPath: {why}"),
        };
        let place = without_links(guest_path(&mount.mount_path.to_lowercase()));
        if place == Path::new("/") {
            return Err(refused("a volume cannot take the place of the guest's root"));
        }
        if mount.mount_path.split('/').any(|part| part == "..") {
            return Err(refused("must not contain `..`"));
        }
        if Path::new(SCRATCH).starts_with(&place) {
            return Err(refused(&format!("the guest needs {SCRATCH} itself; choose a path inside of it")));
        }
        if let Some(other) = taken.iter().find(|other| other.place == place) {
            return Err(refused(&format!(
                "in the guest it is the same place as {}: macOS does not tell upper from lower case, and /tmp, /var and /etc are in /private",
                other.path
            )));
        }
        let nested = |other: &&Taken| place.starts_with(&other.place) || other.place.starts_with(&place);
        let others = elsewhere.iter().filter(|other| other.place != place);
        if let Some(other) = taken.iter().chain(others).find(nested) {
            return Err(refused(&format!(
                "a volume is linked into the guest that all containers of the Pod share, so that it cannot be inside another one, as with {}",
                other.path
            )));
        }
        taken.push(Taken { place, path: mount.mount_path.clone() });
    }
    Ok(taken)
}

/// A path with macOS' own links resolved: `/tmp`, `/var` and `/etc` lead to `/private`.
fn without_links(path: PathBuf) -> PathBuf {
    let is_link = ["/tmp", "/var", "/etc"].iter().any(|link| path.starts_with(link));
    match path.strip_prefix("/") {
        Ok(inside) if is_link => Path::new("/private").join(inside),
        _ => path,
    }
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
    fn mounts_side_by_side_are_admitted() {
        assert_eq!(refusal(&[]), None);
        assert_eq!(refusal(&["/data", "/data2", "/var/run/secrets/kubernetes.io/serviceaccount"]), None);
    }

    #[test]
    fn containers_share_paths_but_not_parts_of_them() {
        let refusal = |first: &str, second: &str| refusal_with("i", first, second);
        assert_eq!(refusal("/work", "/work"), None);
        assert_eq!(refusal("/tmp", "/private/tmp/"), None);
        assert_eq!(refusal("/work", "/var/tmp/work"), None);
        assert_eq!(refusal("/Work", "/work"), None, "one place, linked anew");
        for (first, second) in [("/work", "/work/src"), ("/work/src", "/work"), ("/private/tmp", "/tmp/x")] {
            let message = refusal(first, second).unwrap();
            assert!(message.starts_with("spec.containers[0].volumeMounts[0].mountPath: "), "{message}");
            assert_eq!(refusal_with("other", first, second), None, "in another VM");
        }
    }

    /// The refusal of a Pod with an init container of this image.
    fn refusal_with(image: &str, first: &str, second: &str) -> Option<String> {
        let with = |name, image, path| json!({"name": name, "image": image, "volumeMounts": [{"name": "v", "mountPath": path}]});
        let spec =
            json!({"initContainers": [with("a", image, first)], "containers": [with("b", "i", second)]});
        check(&serde_json::from_value(spec).unwrap()).err().map(|refusal| refusal.message)
    }

    #[test]
    fn a_path_that_cannot_be_linked_is_refused_with_its_field() {
        for (paths, index) in [
            (vec!["/"], 0),
            (vec!["//"], 0),
            (vec!["/a/../b"], 0),
            (vec!["/data", "/data/inner"], 1),
            (vec!["/data/inner", "/data/"], 1),
            (vec!["/data", "/x", "data//"], 2),
            (vec!["/tmp", "/private/tmp/inner"], 1),
            (vec!["/x", "/var/tmp"], 1),
            (vec!["/private/var"], 0),
            (vec!["/Private/VAR"], 0),
            (vec!["/Users/admin/Work", "/Users/admin/work"], 1),
            (vec!["/Users/admin/Work/src", "/users/admin/work"], 1),
            (vec!["/TMP", "/private/tmp/inner"], 1),
        ] {
            let message = refusal(&paths).unwrap();
            let field = format!("spec.containers[0].volumeMounts[{index}].mountPath: ");
            assert!(message.starts_with(&field), "{message}");
        }
        let message = refusal(&["/Users/admin/Work", "/Users/admin/work"]).unwrap();
        assert!(message.contains("the same place as /Users/admin/Work"), "{message}");
    }
}
