//! The cluster stub: there is nothing to make, and Cluster API has to be told so.

use std::time::Duration;

use jiff::Timestamp;
use kube::runtime::controller::Action;
use kube::runtime::reflector::Store;
use kube::{Api, Client, ResourceExt as _};

use crate::apiserver::{ApiError, change_status};
use crate::cluster_api::{CONTROL_PLANE_INITIALIZED, Cluster, ClusterInitialization};
use crate::crd::{ConditionStatus, Initialization, TuistCluster, find_condition, set_condition};

const REST: Duration = Duration::from_mins(10);

/// Reconciles cluster stubs.
pub(crate) struct ClusterReconciler {
    pub(crate) client: Client,
    pub(crate) clusters: Store<Cluster>,
}

impl ClusterReconciler {
    /// One pass over a stub: it is ready, and so is the control plane of its Cluster.
    pub(crate) async fn reconcile(&self, stub: &TuistCluster) -> Result<Action, ApiError> {
        if stub.metadata.deletion_timestamp.is_some() {
            return Ok(Action::await_change());
        }
        let (now, namespace) = (Timestamp::now(), stub.namespace().unwrap_or_default());
        let before = stub.status.clone().unwrap_or_default();
        let mut status = before.clone();
        status.ready = true;
        status.initialization = Some(Initialization { provisioned: Some(true) });
        set_condition(&mut status.conditions, "Ready", ConditionStatus::True, "Ready", "", now);
        if status != before {
            let api = Api::namespaced(self.client.clone(), &namespace);
            change_status("write the status of the cluster", &api, stub, &before, &status).await?;
        }
        // Without a Cluster yet, its creation brings the next pass.
        for cluster in self.clusters.state_filter(|cluster| is_of(cluster, stub)) {
            self.initialize(&cluster, now).await?;
        }
        Ok(Action::requeue(REST))
    }

    /// Cluster API waits for a control plane that it manages. There is none: the cluster that the provider runs in is the cluster.
    async fn initialize(&self, cluster: &Cluster, now: Timestamp) -> Result<(), ApiError> {
        let before = cluster.status.clone().unwrap_or_default();
        let known = find_condition(&before.conditions, CONTROL_PLANE_INITIALIZED);
        let is_done =
            before.initialization.as_ref().and_then(|done| done.control_plane_initialized) == Some(true);
        if is_done && known.is_some_and(|known| known.status == ConditionStatus::True) {
            return Ok(());
        }
        let mut status = before.clone();
        let initialization = status.initialization.get_or_insert_with(ClusterInitialization::default);
        initialization.control_plane_initialized = Some(true);
        let (reason, message) = ("ExternalControlPlane", "the control plane is not managed by Cluster API");
        set_condition(
            &mut status.conditions,
            CONTROL_PLANE_INITIALIZED,
            ConditionStatus::True,
            reason,
            message,
            now,
        );
        let api = Api::namespaced(self.client.clone(), &cluster.namespace().unwrap_or_default());
        change_status("write the status of the Cluster", &api, cluster, &before, &status).await.map(drop)
    }
}

/// Whether a Cluster names this stub.
pub(crate) fn is_of(cluster: &Cluster, stub: &TuistCluster) -> bool {
    let named = cluster.spec.infrastructure_ref.as_ref();
    named.is_some_and(|named| named.kind == "TuistCluster" && named.name == stub.name_any())
        && cluster.namespace() == stub.namespace()
}
