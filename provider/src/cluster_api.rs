//! The kinds of Cluster API, as far as the provider reads them.

use std::time::Duration;

use kube::api::{ApiResource, DynamicObject};
use kube::{Api, Client, CustomResource, Resource, ResourceExt as _};
use serde::{Deserialize, Serialize};

use crate::apiserver::{ApiError, call};
use crate::crd::Condition;

/// The label by which objects name their Cluster.
pub(crate) const CLUSTER_NAME: &str = "cluster.x-k8s.io/cluster-name";
/// The annotation that stops the work on an object, whatever its value.
pub(crate) const PAUSED: &str = "cluster.x-k8s.io/paused";
/// Cluster API makes no machines before a Cluster has this condition.
pub(crate) const CONTROL_PLANE_INITIALIZED: &str = "ControlPlaneInitialized";

/// The annotation on a Machine whose Node is not drained.
const EXCLUDE_DRAIN: &str = "machine.cluster.x-k8s.io/exclude-node-draining";

/// What a Machine says about draining.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct DrainSettings {
    /// How long Pods may take.
    pub(crate) timeout: Option<Duration>,
    /// Whether they are not waited for at all.
    pub(crate) is_excluded: bool,
}

/// What the Machine says that an object belongs to. An object without one, or whose Machine is gone, has no settings.
pub(crate) async fn drain_settings<K: Resource>(
    client: &Client,
    owned: &K,
) -> Result<DrainSettings, ApiError> {
    let mut settings = DrainSettings::default();
    let owner = owned
        .owner_references()
        .iter()
        .find(|owner| owner.kind == "Machine" && owner.api_version.starts_with("cluster.x-k8s.io/"));
    let Some(owner) = owner else { return Ok(settings) };
    let resource = ApiResource {
        group: "cluster.x-k8s.io".to_owned(),
        version: "v1beta2".to_owned(),
        api_version: "cluster.x-k8s.io/v1beta2".to_owned(),
        kind: "Machine".to_owned(),
        plural: "machines".to_owned(),
    };
    let namespace = owned.namespace().unwrap_or_default();
    let api = Api::<DynamicObject>::namespaced_with(client.clone(), &namespace, &resource);
    if let Some(machine) = call("read the Machine", api.get_opt(&owner.name)).await? {
        settings.is_excluded = machine.annotations().contains_key(EXCLUDE_DRAIN);
        let seconds = machine.data["spec"]["deletion"]["nodeDrainTimeoutSeconds"].as_u64();
        // Zero is no limit to Cluster API; here something else limits it.
        settings.timeout = seconds.filter(|seconds| *seconds > 0).map(Duration::from_secs);
    }
    Ok(settings)
}

/// A Cluster.
#[derive(Debug, Clone, Default, Serialize, Deserialize, CustomResource)]
#[kube(
    group = "cluster.x-k8s.io",
    version = "v1beta2",
    kind = "Cluster",
    namespaced,
    schema = "disabled",
    status = "ClusterStatus"
)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ClusterSpec {
    /// Whether all work on the cluster stands still.
    #[serde(default)]
    pub(crate) paused: Option<bool>,
    /// The object of the provider that stands for the cluster.
    #[serde(default)]
    pub(crate) infrastructure_ref: Option<InfrastructureRef>,
}

/// An object of a provider.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct InfrastructureRef {
    /// Its kind.
    #[serde(default)]
    pub(crate) kind: String,
    /// Its name.
    #[serde(default)]
    pub(crate) name: String,
}

/// How a Cluster is.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct ClusterStatus {
    /// What is done once.
    #[serde(default)]
    pub(crate) initialization: Option<ClusterInitialization>,
    /// Its conditions.
    #[serde(default)]
    pub(crate) conditions: Vec<Condition>,
}

/// What is done once.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ClusterInitialization {
    /// The provider's object is ready.
    #[serde(default)]
    pub(crate) infrastructure_provisioned: Option<bool>,
    /// The control plane answers.
    #[serde(default)]
    pub(crate) control_plane_initialized: Option<bool>,
}

impl Cluster {
    /// Whether all work stands still.
    pub(crate) fn is_paused(&self) -> bool {
        self.spec.paused == Some(true)
    }

    /// Whether machines may be made.
    pub(crate) fn is_provisioned(&self) -> bool {
        let initialization = self.status.as_ref().and_then(|status| status.initialization.as_ref());
        initialization.and_then(|done| done.infrastructure_provisioned) == Some(true)
    }
}
