//! What all hosts of the provider should be like, and what one of them should.

use std::net::IpAddr;

use crate::artifact::Artifact;
use crate::crd::ScalewayAppleSiliconMachine;
use crate::host::firewall::FirewallConfig;
use crate::host::{ActionsRunner, AgentSettings, Credential, HostConfig, NodeExporter, Tailscale, Tart};
use kube::ResourceExt as _;

/// Where organizations are.
const GITHUB: &str = "https://github.com";

/// What all hosts have in common.
#[derive(Debug, Clone)]
pub(crate) struct FleetConfig {
    pub(crate) agent: Artifact,
    pub(crate) tart: Tart,
    pub(crate) firewall: FirewallConfig,
    pub(crate) dhcp_lease_seconds: u32,
    pub(crate) node_exporter: Option<NodeExporter>,
    /// The place of all hosts in a tailnet. Their Nodes have their addresses there.
    pub(crate) tailscale: Option<Tailscale>,
    /// The archive of the Actions runner for builders.
    pub(crate) actions_runner: Option<Artifact>,
    /// What Nodes offer, where their machines do not say.
    pub(crate) host_cpu: Option<u32>,
    pub(crate) host_memory_mb: Option<u32>,
    pub(crate) max_pods: Option<u32>,
    /// Any other flags of the agents.
    pub(crate) agent_flags: Vec<String>,
}

/// Where agents reach the API server, and the authority that they trust.
#[derive(Debug, Clone)]
pub(crate) struct ApiServer {
    pub(crate) url: String,
    /// In PEM.
    pub(crate) authority: String,
}

impl FleetConfig {
    /// What the host of a machine should be like. The token is no part of the hash.
    pub(in crate::machine) fn of(
        &self,
        machine: &ScalewayAppleSiliconMachine,
        user: &str,
        credential: Credential,
    ) -> HostConfig {
        let spec = &machine.spec;
        let own = |own: Option<i32>| own.and_then(|own| u32::try_from(own).ok()).filter(|own| *own > 0);
        let cpu = own(spec.host_cpu).or(self.host_cpu);
        let memory = own(spec.host_memory_mb).or(self.host_memory_mb);
        let mut further = Vec::new();
        if self.tailscale.is_none() {
            further.extend(address(machine).map(|address| format!("--node-ip={address}")));
        }
        further.extend(cpu.map(|cpu| format!("--host-cpu={cpu}")));
        further.extend(memory.map(|memory| format!("--host-memory-mb={memory}")));
        further.extend(self.agent_flags.iter().cloned());
        HostConfig {
            user: user.to_owned(),
            node_name: machine.name_any(),
            credential,
            agent: self.agent.clone(),
            settings: AgentSettings {
                provider_id: spec.provider_id.clone(),
                node_labels: spec.fleet_name.as_ref().map(|fleet| format!("tuist.dev/fleet={fleet}")),
                max_pods: self.max_pods,
                is_builder: spec.gh_actions_runner.is_some(),
                further,
            },
            tart: self.tart.clone(),
            firewall: self.firewall.clone(),
            dhcp_lease_seconds: self.dhcp_lease_seconds,
            node_exporter: self.node_exporter.clone(),
            tailscale: self.tailscale.clone(),
            actions_runner: self.runner(machine),
        }
    }

    /// The runner of a builder, where the provider has an archive to install and the machine names an App that registers it.
    fn runner(&self, machine: &ScalewayAppleSiliconMachine) -> Option<ActionsRunner> {
        let (archive, wanted) = (self.actions_runner.as_ref()?, machine.spec.gh_actions_runner.as_ref()?);
        if wanted.gh_app_secret_name.is_empty() {
            return None;
        }
        let labels = wanted.gh_runner_labels.split(',').map(str::trim).filter(|label| !label.is_empty());
        Some(ActionsRunner {
            archive: archive.clone(),
            url: format!("{GITHUB}/{}", wanted.gh_org),
            labels: labels.map(str::to_owned).collect(),
        })
    }
}

/// The address of a machine's host, which is that of its Node.
pub(in crate::machine) fn address(machine: &ScalewayAppleSiliconMachine) -> Option<IpAddr> {
    machine.status.as_ref()?.addresses.iter().find_map(|known| known.address.parse().ok())
}
