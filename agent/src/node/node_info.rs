//! The Node as admission sees it: its resources, labels and taints.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Taint};
use kube::{Api, ResourceExt};
use tokio::sync::watch;
use tracing::warn;

use super::object::{NodeConfig, OwnPorts};
use crate::apiserver::call::call;
use crate::error_chain::chain;
use crate::quantity;

/// Short, because a Pod's admission waits for the answer.
const DEADLINE: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NodeInfo {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) taints: Vec<Taint>,
    /// The number of Pods that the Node takes.
    pub(crate) pods: u64,
    pub(crate) cpu_milli: u64,
    /// In bytes.
    pub(crate) memory: u64,
    /// In bytes; `None` if unknown.
    pub(crate) storage: Option<u64>,
    /// The agent's own ports, which no Pod can have.
    pub(crate) own_ports: OwnPorts,
}

/// Provides [`NodeInfo`]: resources from the agent's configuration, labels and taints from the API server.
#[derive(Debug)]
pub(crate) struct NodeInfos {
    own: NodeInfo,
    api: Api<Node>,
    seen: watch::Receiver<Option<Arc<Node>>>,
}

impl NodeInfos {
    /// `seen` is the Node as the watch last showed it.
    pub(crate) fn new(config: &NodeConfig, api: Api<Node>, seen: watch::Receiver<Option<Arc<Node>>>) -> Self {
        let amount =
            |name: &str, read: fn(&_) -> Option<u64>| config.resources.allocatable.get(name).and_then(read);
        let own = NodeInfo {
            name: config.name.to_string(),
            labels: config.fixed_labels(),
            taints: config.taints.0.clone(),
            pods: amount("pods", quantity::whole).unwrap_or(0),
            cpu_milli: amount("cpu", quantity::milli).unwrap_or(0),
            memory: amount("memory", quantity::whole).unwrap_or(0),
            storage: amount("ephemeral-storage", quantity::whole),
            own_ports: config.ports,
        };
        Self { own, api, seen }
    }

    /// From the last Node that the watch showed.
    pub(crate) fn cached(&self) -> NodeInfo {
        let seen = self.seen.borrow().clone();
        seen.map_or_else(|| self.own.clone(), |node| self.with(&node))
    }

    /// From the Node that the API server shows now: a user may have labelled it a moment ago.
    pub(crate) async fn fresh(&self) -> NodeInfo {
        match call(DEADLINE, self.api.get(&self.own.name)).await {
            Ok(node) => self.with(&node),
            Err(error) => {
                warn!(error = chain(&error), "cannot read the Node; judging by what is known");
                self.cached()
            }
        }
    }

    fn with(&self, node: &Node) -> NodeInfo {
        // The controller will set the agent's own labels that are not on the Node yet.
        let mut labels = node.labels().clone();
        labels.extend(self.own.labels.clone());
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
        NodeInfo { labels, taints, ..self.own.clone() }
    }
}
