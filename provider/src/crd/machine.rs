//! A machine: one Mac of a pool, and the Node on it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Condition;

/// What a machine should be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[kube(
    group = "infrastructure.cluster.x-k8s.io",
    version = "v1alpha1",
    kind = "ScalewayAppleSiliconMachine",
    doc = "A Mac of a pool, and the Node on it.",
    namespaced,
    status = "ScalewayAppleSiliconMachineStatus",
    derive = "PartialEq",
    shortname = "samm",
    category = "cluster-api",
    label("cluster.x-k8s.io/v1beta1", "v1alpha1"),
    label("cluster.x-k8s.io/v1beta2", "v1alpha1"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "ProviderID", type_ = "string", json_path = ".spec.providerID"),
    printcolumn(name = "Ready", type_ = "boolean", json_path = ".status.ready"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Address",
        type_ = "string",
        json_path = ".status.addresses[0].address",
        priority = 1
    ),
    printcolumn(name = "Config", type_ = "string", json_path = ".status.hostConfigHash", priority = 1),
    printcolumn(
        name = "Wanted",
        type_ = "string",
        json_path = ".status.desiredHostConfigHash",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new(
    "!has(oldSelf.providerID) || oldSelf.providerID == '' || self.zone == oldSelf.zone"
).message("zone cannot be changed while the machine has a host: it is a part of the host's identity"))]
#[x_kube(validation = Rule::new(
    "!has(oldSelf.providerID) || oldSelf.providerID == '' || !has(self.providerID) || self.providerID == '' || self.providerID == oldSelf.providerID"
).message("providerID may be set and removed, but not changed: it is the identity of the Node"))]
pub struct ScalewayAppleSiliconMachineSpec {
    /// The identity of the host, `scw-applesilicon://ZONE/ID`. The provider sets it.
    #[serde(default, rename = "providerID", skip_serializing_if = "Option::is_none")]
    pub provider_id: Option<String>,
    /// The type of host, such as M2-L.
    #[serde(default = "default_type", rename = "type")]
    pub type_: String,
    /// The zone of the pool.
    #[serde(default = "default_zone")]
    #[schemars(regex(pattern = "^[A-Za-z0-9_-][A-Za-z0-9_.-]*$"))]
    pub zone: String,
    /// The release of macOS, by its name and without a version, such as Tahoe.
    #[serde(default = "default_os")]
    pub os: String,
    /// The fleet. Its machines share an SSH key, and their Nodes carry the label tuist.dev/fleet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fleet_name: Option<String>,
    /// Not used. Machines of the provider before this one may have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubelet_version: Option<String>,
    /// How many CPUs the Node offers, in place of the provider's --tartkubelet-host-cpu. 0 is as if absent.
    #[serde(default, rename = "hostCPU", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub host_cpu: Option<i32>,
    /// How much memory the Node offers, in MiB, in place of the provider's --tartkubelet-host-memory-mb. 0 is as if absent.
    #[serde(default, rename = "hostMemoryMB", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub host_memory_mb: Option<i32>,
    /// What the names of free hosts begin with, in place of the provider's --default-adopt-pool-prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adopt_pool_prefix: Option<String>,
    /// The host builds images: it runs a runner of GitHub Actions, and the agent deletes no VMs but its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gh_actions_runner: Option<GhActionsRunner>,
}

fn default_type() -> String {
    "M2-L".to_owned()
}

fn default_zone() -> String {
    "fr-par-1".to_owned()
}

fn default_os() -> String {
    "Tahoe".to_owned()
}

impl Default for ScalewayAppleSiliconMachineSpec {
    fn default() -> Self {
        Self {
            provider_id: None,
            type_: default_type(),
            zone: default_zone(),
            os: default_os(),
            fleet_name: None,
            kubelet_version: None,
            host_cpu: None,
            host_memory_mb: None,
            adopt_pool_prefix: None,
            gh_actions_runner: None,
        }
    }
}

/// A runner of GitHub Actions on a host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GhActionsRunner {
    /// The organization that the runner belongs to.
    #[serde(default = "default_gh_org")]
    pub gh_org: String,
    /// The labels of the runner, with commas between them.
    #[serde(default = "default_gh_runner_labels")]
    pub gh_runner_labels: String,
    /// The version that is installed first; the runner updates itself.
    #[schemars(length(min = 1))]
    pub gh_runner_version: String,
    /// The Secret with `app-id`, `installation-id` and `private-key` of the GitHub App that registers the runner.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub gh_app_secret_name: String,
}

fn default_gh_org() -> String {
    "tuist".to_owned()
}

fn default_gh_runner_labels() -> String {
    "self-hosted,macos,bare-metal,vm-image-builder".to_owned()
}

/// How a machine is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScalewayAppleSiliconMachineStatus {
    /// The host has been bootstrapped, for the contract v1beta1.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ready: bool,
    /// The same for the contract v1beta2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initialization: Option<Initialization>,
    /// The id of the host that the machine holds.
    #[serde(default, rename = "serverID", skip_serializing_if = "Option::is_none")]
    pub server_id: Option<String>,
    /// Where the host is reached.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<MachineAddress>,
    /// What the provider is doing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// Why rolls have ended, in one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_reason: Option<String>,
    /// Why rolls have ended, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_message: Option<String>,
    /// `Provisioned`, `Bootstrapped`, `HostUpToDate`, `Ready`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// The SHA-256 hash of the agent's binary on the host.
    #[serde(default, rename = "tartKubeletBinarySHA", skip_serializing_if = "Option::is_none")]
    pub tart_kubelet_binary_sha: Option<String>,
    /// The hash of the configuration that the host has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_config_hash: Option<String>,
    /// The hash of the configuration that the host should have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired_host_config_hash: Option<String>,
    /// The hash of the configuration that the host could not be given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_host_config_hash: Option<String>,
    /// How many rolls have failed one after another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tart_kubelet_update_attempts: Option<i32>,
    /// When a roll last failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_update_failure_time: Option<Time>,
    /// How many bootstraps of this host have failed one after another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap_attempts: Option<i32>,
    /// When a bootstrap last failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_bootstrap_failure_time: Option<Time>,
    /// Whether this host was restarted because of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap_reboot_issued: Option<bool>,
}

/// What is done once.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Initialization {
    /// Whether it is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provisioned: Option<bool>,
}

/// An address of a host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MachineAddress {
    /// What the address is.
    #[serde(rename = "type")]
    pub type_: AddressType,
    /// The address.
    pub address: String,
}

/// What an address is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "the words of Cluster API")]
pub enum AddressType {
    Hostname,
    ExternalIP,
    InternalIP,
    ExternalDNS,
    InternalDNS,
}

/// What the provider is doing with a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Phase {
    /// It has no host.
    Pending,
    /// A host is claimed for it.
    Adopting,
    /// The host becomes a Node.
    Bootstrapping,
    /// The host is a Node.
    Ready,
    /// The host is given back.
    Deleting,
    /// The host could not be given its configuration.
    Failed,
    /// A word that this provider does not know.
    #[serde(other)]
    Unknown,
}

impl Phase {
    /// All phases.
    pub const ALL: [Self; 7] = [
        Self::Pending,
        Self::Adopting,
        Self::Bootstrapping,
        Self::Ready,
        Self::Deleting,
        Self::Failed,
        Self::Unknown,
    ];

    /// The word in the status.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Adopting => "Adopting",
            Self::Bootstrapping => "Bootstrapping",
            Self::Ready => "Ready",
            Self::Deleting => "Deleting",
            Self::Failed => "Failed",
            Self::Unknown => "Unknown",
        }
    }
}
