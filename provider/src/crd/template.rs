//! What the machines of a `MachineDeployment` are made from.

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ScalewayAppleSiliconMachineSpec;

/// What a template holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[kube(
    group = "infrastructure.cluster.x-k8s.io",
    version = "v1alpha1",
    kind = "ScalewayAppleSiliconMachineTemplate",
    doc = "What the machines of a `MachineDeployment` are made from.",
    namespaced,
    derive = "PartialEq",
    shortname = "sammt",
    category = "cluster-api",
    label("cluster.x-k8s.io/v1beta1", "v1alpha1"),
    label("cluster.x-k8s.io/v1beta2", "v1alpha1")
)]
pub struct ScalewayAppleSiliconMachineTemplateSpec {
    /// The machines.
    pub template: MachineTemplate,
}

/// A machine to be made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MachineTemplate {
    /// What its metadata gets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<TemplateMetadata>,
    /// What it should be.
    pub spec: ScalewayAppleSiliconMachineSpec,
}

/// What the metadata of a machine gets.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TemplateMetadata {
    /// Labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}
