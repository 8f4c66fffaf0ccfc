//! The Node as a Pod that comes to it sees it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Taint};
use kube::Api;
use kube::ResourceExt;
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::warn;

use super::object::NodeConfig;
use crate::error_chain::chain;
use crate::quantity;

/// Pods wait for this answer, so it must not take long.
const LIMIT: Duration = Duration::from_secs(5);

/// What the Node has for Pods, and which of them it is for.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NodeInfo {
    /// Its name.
    pub(crate) name: String,
    /// Its labels.
    pub(crate) labels: BTreeMap<String, String>,
    /// Its taints.
    pub(crate) taints: Vec<Taint>,
    /// How many Pods it takes.
    pub(crate) pods: u64,
    /// Thousandths of a core.
    pub(crate) cpu_milli: u64,
    /// Bytes of memory.
    pub(crate) memory: u64,
    /// Bytes on disk, when they are known.
    pub(crate) storage: Option<u64>,
}

/// Where the offer comes from: amounts are the agent's own word, labels and taints are what the API server shows.
#[derive(Debug)]
pub(crate) struct NodeInfos {
    own: NodeInfo,
    api: Api<Node>,
    seen: watch::Receiver<Option<Arc<Node>>>,
}

impl NodeInfos {
    /// What a Node that is configured so offers; `seen` is what the API server shows of it.
    pub(crate) fn new(config: &NodeConfig, api: Api<Node>, seen: watch::Receiver<Option<Arc<Node>>>) -> Self {
        let amount =
            |name: &str, read: fn(&_) -> Option<u64>| config.resources.allocatable.get(name).and_then(read);
        let own = NodeInfo {
            name: config.name.to_string(),
            labels: config.lasting_labels(),
            taints: config.taints.0.clone(),
            pods: amount("pods", quantity::whole).unwrap_or(0),
            cpu_milli: amount("cpu", quantity::milli).unwrap_or(0),
            memory: amount("memory", quantity::whole).unwrap_or(0),
            storage: amount("ephemeral-storage", quantity::whole),
        };
        Self { own, api, seen }
    }

    /// The offer as far as it is known.
    pub(crate) fn known(&self) -> NodeInfo {
        let seen = self.seen.borrow().clone();
        seen.map_or_else(|| self.own.clone(), |node| self.with(&node))
    }

    /// The offer as the API server shows it now: somebody may have put a label on the Node a moment ago.
    pub(crate) async fn asked(&self) -> NodeInfo {
        match timeout(LIMIT, self.api.get(&self.own.name)).await {
            Ok(Ok(node)) => return self.with(&node),
            Ok(Err(error)) => {
                warn!(error = chain(&error), "cannot look at the Node; judging by what is known");
            }
            Err(_) => warn!("the API server does not show the Node in time; judging by what is known"),
        }
        self.known()
    }

    fn with(&self, node: &Node) -> NodeInfo {
        // Labels of ours that are not on the Node yet will be.
        let mut labels = node.labels().clone();
        labels.extend(self.own.labels.clone());
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
        NodeInfo { labels, taints, ..self.own.clone() }
    }
}
