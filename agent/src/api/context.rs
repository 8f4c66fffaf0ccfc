//! What the handlers of the kubelet API answer from.

use crate::guest::connections::GuestConnections;
use crate::metrics::Metrics;
use crate::names::NodeName;
use crate::pod::registry::PodRegistry;
use crate::state::StateDir;
use crate::tart::Tart;

/// What all handlers share. A handler that goes on after its answer, as a stream does, keeps a clone.
#[derive(Debug, Clone)]
pub(crate) struct Context {
    pub(crate) node: NodeName,
    pub(crate) pods: PodRegistry,
    pub(crate) state: StateDir,
    pub(crate) tart: Tart,
    pub(crate) guests: GuestConnections,
    pub(crate) metrics: Metrics,
}
