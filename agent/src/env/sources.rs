//! What Pods are made of that is not in the Pod: other objects, tokens, and facts of this Node.

use std::net::IpAddr;
use std::sync::Arc;

use kube::Client;
use tokio::sync::watch;

use super::services::Services;
use crate::apiserver::tokens::Tokens;
use crate::apiserver::watched_objects::Objects;
use crate::node::capacity::Amounts;
use crate::node::health::Health;

/// Where what a Pod brings along comes from. All Pods share it.
#[derive(Debug, Clone)]
pub(crate) struct World {
    /// `ConfigMaps` and Secrets.
    pub(crate) objects: Objects,
    /// Services.
    pub(crate) services: Services,
    /// Tokens of service accounts.
    pub(crate) tokens: Tokens,
    /// What Pods of this Node may have: the limit of a container that has none.
    pub(crate) allocatable: Arc<Amounts>,
    /// The host's health, which has the Node's address.
    pub(crate) health: watch::Receiver<Option<Health>>,
}

impl World {
    /// The world as this client sees it.
    pub(crate) fn new(client: &Client, allocatable: Arc<Amounts>, health: watch::Receiver<Option<Health>>) -> Self {
        Self {
            objects: Objects::new(client.clone()),
            services: Services::new(client.clone()),
            tokens: Tokens::new(client.clone()),
            allocatable,
            health,
        }
    }

    /// The Node's address, when it has one.
    pub(crate) fn host_ip(&self) -> Option<IpAddr> {
        self.health.borrow().as_ref().and_then(|health| health.address)
    }
}
