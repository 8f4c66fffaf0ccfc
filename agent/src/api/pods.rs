//! The Pods of this Node: `/pods` and `/runningpods/`.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::names::PodUid;

/// All Pods, as the API server last showed them.
pub(super) fn all(pods: Vec<(PodUid, Arc<Pod>)>) -> Value {
    list(pods.into_iter().map(|(_, pod)| json!(*pod)))
}

/// The Pods of which something runs, with no more than what identifies them.
pub(super) fn running(pods: Vec<(PodUid, Arc<Pod>)>, is_running: impl Fn(&PodUid) -> bool) -> Value {
    let running = pods.into_iter().filter(|(uid, _)| is_running(uid));
    list(running.map(|(uid, pod)| {
        let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
        let containers: Vec<_> =
            containers.map(|one| json!({"name": one.name, "image": one.image, "resources": {}})).collect();
        json!({
            "metadata": {"name": pod.metadata.name, "namespace": pod.metadata.namespace, "uid": uid},
            "spec": {"containers": containers},
            "status": {},
        })
    }))
}

fn list(items: impl Iterator<Item = Value>) -> Value {
    json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items.collect::<Vec<_>>()})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_pods_show_their_names_and_images_only() {
        let pod = |name: &str| {
            let object = json!({
                "metadata": {"name": name, "namespace": "n"},
                "spec": {"containers": [{"name": "main", "image": "i", "env": [{"name": "A", "value": "secret"}]}]},
            });
            (name.parse::<PodUid>().unwrap(), Arc::new(serde_json::from_value::<Pod>(object).unwrap()))
        };
        let pods = vec![pod("a"), pod("b")];
        let shown = running(pods.clone(), |uid| uid.to_string() == "b");
        let names: Vec<_> =
            shown["items"].as_array().unwrap().iter().map(|pod| &pod["metadata"]["name"]).collect();
        assert_eq!(names, ["b"]);
        assert!(!shown.to_string().contains("secret"), "{shown}");
        assert_eq!(all(pods)["items"].as_array().unwrap().len(), 2);
    }
}
