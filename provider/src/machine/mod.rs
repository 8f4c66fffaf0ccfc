//! Machines: a host is claimed for each, becomes a Node over SSH, is kept up to date, and is given back.
//!
//! ```text
//!   finalizer ─► claim ─► providerID ─► bootstrap ─► join ─► ready ◄─► roll           deletion, at any time: drained first
//!                  ▲                        │ fails
//!                  └────── quarantine ◄─────┴─► reboot          never on a host that may run VMs
//! ```
//!
//! A pass observes the machine, its Cluster and its Node, decides ([`decide`]) and takes one step. Each step is safe to repeat: what has been
//! done is in the status of the machine, in the name of the host and on the host itself.

mod bootstrap;
mod claim;
mod decide;
#[cfg(test)]
mod decide_tests;
mod delete;
mod drain;
mod host_roll;
mod host_work;
mod inputs;
mod observe;
mod reconciler;
mod release;
mod report;
mod roll;

pub(crate) use decide::Limits;
#[cfg(test)]
pub(crate) use decide::{ClusterSeen, Observed, Step, Vms, decide};
pub(crate) use inputs::fleet_config::{ApiServer, FleetConfig};
pub(crate) use inputs::join_token::{TOKEN_NAMESPACE, machine_of_token};
pub(crate) use reconciler::{Reconciler, Stores};
#[cfg(test)]
pub(crate) use roll::Turn;

use crate::names::{HostId, Zone};

/// Keeps a machine until its host is given back.
pub(crate) const FINALIZER: &str = "scalewayapplesilicon.cluster.x-k8s.io/finalizer";
/// An operator puts this annotation on a machine, with any value, to let rolls begin again that have failed.
pub(crate) const RETRY_ROLL: &str = "tuist.dev/retry-roll";

/// The identity of a host, for Machine and Node.
pub(crate) fn provider_id(zone: &Zone, id: &HostId) -> String {
    format!("scw-applesilicon://{zone}/{id}")
}
