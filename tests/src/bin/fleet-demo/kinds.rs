//! Kinds of Cluster API and of the provider, without types.

use kube::Api;
use kube::api::{ApiResource, DynamicObject};
use serde_json::Value;

/// A kind.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind {
    group: &'static str,
    version: &'static str,
    word: &'static str,
    plural: &'static str,
}

/// A machine of the provider.
pub(crate) const PROVIDER_MACHINE: Kind = Kind {
    group: "infrastructure.cluster.x-k8s.io",
    version: "v1alpha1",
    word: "ScalewayAppleSiliconMachine",
    plural: "scalewayapplesiliconmachines",
};
/// A machine of Cluster API.
pub(crate) const MACHINE: Kind =
    Kind { group: "cluster.x-k8s.io", version: "v1beta2", word: "Machine", plural: "machines" };

impl Kind {
    /// Its word.
    pub(crate) fn kind(self) -> &'static str {
        self.word
    }

    /// The objects of this kind in a namespace.
    pub(crate) fn api(self, client: &kube::Client, namespace: &str) -> Api<DynamicObject> {
        let resource = ApiResource {
            group: self.group.to_owned(),
            version: self.version.to_owned(),
            api_version: format!("{}/{}", self.group, self.version),
            kind: self.word.to_owned(),
            plural: self.plural.to_owned(),
        };
        Api::namespaced_with(client.clone(), namespace, &resource)
    }
}

/// The name of an object.
pub(crate) fn name(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}

/// The status and the reason of a condition.
pub(crate) fn condition<'a>(object: &'a Value, type_: &str) -> Option<(&'a str, &'a str)> {
    let all = object["status"]["conditions"].as_array()?;
    let known = all.iter().find(|known| known["type"] == type_)?;
    Some((known["status"].as_str()?, known["reason"].as_str().unwrap_or_default()))
}

/// Whether a condition is true.
pub(crate) fn is_true(object: &Value, type_: &str) -> bool {
    condition(object, type_).is_some_and(|(status, _)| status == "True")
}
