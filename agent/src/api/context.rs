//! What the handlers of the kubelet API answer from.

use super::configz::KubeletSettings;
use super::http::connections::ForwardPlaces;
use super::local::Source;
use super::stats::Sampler;
use crate::guest::connections::GuestConnections;
use crate::names::NodeName;
use crate::os::host::HostFacts;
use crate::pod::registry::PodRegistry;
use crate::state::StateDir;
use crate::tart::Tart;

/// What all handlers share. A handler that goes on after its answer, as a stream does, keeps a clone.
#[derive(Debug, Clone)]
pub(crate) struct ApiContext {
    pub(crate) node: NodeName,
    pub(crate) facts: HostFacts,
    pub(crate) settings: KubeletSettings,
    pub(crate) pods: PodRegistry,
    pub(crate) state: StateDir,
    pub(crate) tart: Tart,
    pub(crate) guests: GuestConnections,
    /// The agent's own health and metrics.
    pub(crate) local: Source,
    pub(crate) sampler: Sampler,
    pub(crate) forward_places: ForwardPlaces,
}
