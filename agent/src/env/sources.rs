//! Where environments and volumes come from: other objects, tokens, and facts of this Node.

use std::net::IpAddr;
use std::sync::Arc;

use kube::Client;
use tokio::sync::watch;

use super::services::Services;
use crate::apiserver::tokens::Tokens;
use crate::apiserver::watched_objects::WatchedObjects;
use crate::quantity::ResourceList;

/// The sources of environments and volumes. All Pods share them.
#[derive(Debug, Clone)]
pub(crate) struct InputSources {
    pub(crate) objects: WatchedObjects,
    pub(crate) services: Services,
    pub(crate) tokens: Tokens,
    /// The Node's allocatable amounts: the limit of a container that has none.
    pub(crate) allocatable: Arc<ResourceList>,
    pub(crate) address: watch::Receiver<Option<IpAddr>>,
}

impl InputSources {
    /// `object_client` is for `ConfigMaps` and Secrets alone.
    pub(crate) fn new(
        client: &Client,
        object_client: Client,
        allocatable: Arc<ResourceList>,
        address: watch::Receiver<Option<IpAddr>>,
    ) -> Self {
        Self {
            objects: WatchedObjects::new(object_client),
            services: Services::new(client.clone()),
            tokens: Tokens::new(client.clone()),
            allocatable,
            address,
        }
    }
}
