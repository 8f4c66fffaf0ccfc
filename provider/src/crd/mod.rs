//! The kinds of the provider in the API server. The chart has them as YAML; `make crds` writes it from these types, and a test compares.
//!
//! Objects that the provider before this one has written are read as they are: every field keeps its name and its meaning.

#![allow(unreachable_pub, reason = "the derive macro of the schema repeats each type inside a function")]
#![allow(clippy::duplicated_attributes, reason = "each printed column has a type and a priority")]

mod cluster;
mod condition;
mod machine;
mod template;

pub use cluster::{ControlPlaneEndpoint, TuistCluster, TuistClusterSpec, TuistClusterStatus};
pub use condition::{Condition, ConditionStatus, find_condition, set_condition};
pub use machine::{
    AddressType, GhActionsRunner, Initialization, MachineAddress, Phase, ScalewayAppleSiliconMachine,
    ScalewayAppleSiliconMachineSpec, ScalewayAppleSiliconMachineStatus,
};
pub use template::{
    MachineTemplate, ScalewayAppleSiliconMachineTemplate, ScalewayAppleSiliconMachineTemplateSpec,
    TemplateMetadata,
};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

/// The API group of the kinds.
pub const GROUP: &str = "infrastructure.cluster.x-k8s.io";

/// All definitions, each with the name of its file.
pub fn all() -> Vec<(String, CustomResourceDefinition)> {
    let all =
        [ScalewayAppleSiliconMachine::crd(), ScalewayAppleSiliconMachineTemplate::crd(), TuistCluster::crd()];
    all.into_iter().map(|crd| (format!("{}_{}.yaml", crd.spec.group, crd.spec.names.plural), crd)).collect()
}

/// A definition as YAML.
pub fn to_yaml(crd: &CustomResourceDefinition) -> Result<String, serde_saphyr::ser::Error> {
    let yaml = serde_saphyr::to_string(crd)?;
    Ok(format!("# Written by `make crds` from provider/src/crd.\n{yaml}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::path::Path;

    /// `UPDATE_CRDS=1` writes them.
    #[test]
    fn the_chart_has_these_definitions() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/chart/crds");
        for (file, crd) in all() {
            let (path, wanted) = (directory.join(&file), to_yaml(&crd).unwrap());
            if std::env::var_os("UPDATE_CRDS").is_some() {
                std::fs::create_dir_all(&directory).unwrap();
                std::fs::write(&path, &wanted).unwrap();
            }
            let is = std::fs::read_to_string(&path).unwrap_or_default();
            assert!(is == wanted, "{file} is not what the types say; run `make crds`");
        }
        let files = std::fs::read_dir(&directory).unwrap().count();
        assert_eq!(files, all().len(), "the chart has a definition that no type makes");
    }

    #[test]
    fn cluster_api_finds_both_contracts() {
        for (file, crd) in all() {
            let labels = crd.metadata.labels.unwrap_or_default();
            for contract in ["cluster.x-k8s.io/v1beta1", "cluster.x-k8s.io/v1beta2"] {
                assert_eq!(labels.get(contract).map(String::as_str), Some("v1alpha1"), "{file} {contract}");
            }
            assert_eq!(crd.spec.names.categories.as_deref(), Some(&["cluster-api".to_owned()][..]), "{file}");
        }
    }

    /// As the Go provider has written it: every field of its spec and status.
    #[test]
    fn a_machine_of_the_go_provider_is_read_and_written_unchanged() {
        let object = json!({
            "apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1",
            "kind": "ScalewayAppleSiliconMachine",
            "metadata": {
                "name": "fleet-abc-1", "namespace": "tuist",
                "finalizers": ["scalewayapplesilicon.cluster.x-k8s.io/finalizer"],
            },
            "spec": {
                "providerID": "scw-applesilicon://fr-par-1/7f6b", "type": "M2-L", "zone": "fr-par-1", "os": "macos-tahoe-26.3",
                "fleetName": "fleet", "kubeletVersion": "v1.32.1", "hostCPU": 8, "hostMemoryMB": 14336,
                "adoptPoolPrefix": "tuist-pool-",
                "ghActionsRunner": {
                    "ghOrg": "tuist", "ghRunnerLabels": "self-hosted,macos", "ghRunnerVersion": "2.336.0",
                    "ghAppSecretName": "app",
                },
            },
            "status": {
                "ready": true, "serverID": "7f6b", "addresses": [{ "type": "ExternalIP", "address": "51.159.1.2" }],
                "phase": "Failed", "failureReason": "TartKubeletUpdateExceededRetries", "failureMessage": "words",
                "conditions": [{
                    "type": "Bootstrapped", "status": "False", "severity": "Warning", "reason": "NodeMissing",
                    "message": "words", "lastTransitionTime": "2026-08-01T10:00:00Z",
                }, { "type": "Provisioned", "status": "True", "lastTransitionTime": "2026-08-01T10:00:00Z" }],
                "tartKubeletBinarySHA": "aa", "hostConfigHash": "bb", "failedHostConfigHash": "cc",
                "tartKubeletUpdateAttempts": 3, "lastUpdateFailureTime": "2026-08-01T10:00:00Z",
                "bootstrapAttempts": 2, "bootstrapRebootIssued": true,
            },
        });
        let machine: ScalewayAppleSiliconMachine = serde_json::from_value(object.clone()).unwrap();
        assert_eq!(serde_json::to_value(machine).unwrap(), object);
    }

    #[test]
    fn a_machine_of_the_go_provider_before_the_prefix_is_read() {
        let object = json!({
            "apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1", "kind": "ScalewayAppleSiliconMachine",
            "metadata": { "name": "old" }, "spec": {},
        });
        let machine: ScalewayAppleSiliconMachine = serde_json::from_value(object).unwrap();
        let spec = machine.spec;
        assert_eq!(
            (spec.type_.as_str(), spec.zone.as_str(), spec.os.as_str()),
            ("M2-L", "fr-par-1", "Tahoe")
        );
        assert_eq!(spec.adopt_pool_prefix, None);
    }
}
