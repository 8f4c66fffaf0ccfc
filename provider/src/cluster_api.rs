//! The kinds of Cluster API, as far as the provider reads them.

use kube::CustomResource;
use serde::{Deserialize, Serialize};

use crate::crd::Condition;

/// The label by which objects name their Cluster.
pub(crate) const CLUSTER_NAME: &str = "cluster.x-k8s.io/cluster-name";
/// The annotation that stops the work on an object, whatever its value.
pub(crate) const PAUSED: &str = "cluster.x-k8s.io/paused";
/// Cluster API makes no machines before a Cluster has this condition.
pub(crate) const CONTROL_PLANE_INITIALIZED: &str = "ControlPlaneInitialized";

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
