//! The list of Macs on a real API server.

use std::collections::BTreeSet;

use anyhow::Result;
use futures::future::join_all;
use tart_kubelet_tests::control_plane::ControlPlane;
use tart_kubelet_tests::kubectl::Kubectl;

use super::*;
use crate::pool::scaleway::scene::{self, Cluster};
use crate::reclaim::{OrphanHost, ReclaimMetrics, ReclaimSettings, Reclaimer};

const RELEASED: ReleaseOutcome = ReleaseOutcome::Released { wiped: false, os_unavailable: false };

/// A Secret with Macs, and the machines of a cluster.
struct Office {
    secrets: Api<Secret>,
    kubectl: Kubectl,
    cluster: Arc<Cluster>,
}

impl Office {
    async fn new(macs: &[&str]) -> Result<Self> {
        let control_plane = ControlPlane::shared().await?;
        let namespace = control_plane.namespace("macs").await?;
        let office = Self {
            secrets: Api::namespaced(control_plane.client().await?, &namespace),
            kubectl: control_plane.kubectl().namespace(&namespace),
            cluster: Arc::default(),
        };
        office.apply(macs).await?;
        Ok(office)
    }

    /// The owner applies the list; annotations of others stay.
    async fn apply(&self, macs: &[&str]) -> Result<()> {
        let entries: BTreeMap<&str, String> =
            macs.iter().map(|mac| (*mac, format!("ssh: admin@{mac}.office\npassword: canary"))).collect();
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "macs"}, "stringData": entries});
        self.kubectl.apply(&secret.to_string()).await.map(drop)
    }

    /// A pool as a new process has it.
    fn pool(&self) -> Arc<MacListPool> {
        let machines = Arc::clone(&self.cluster) as Arc<dyn Machines>;
        Arc::new(MacListPool::new(self.secrets.clone(), "macs", machines))
    }

    async fn annotations(&self) -> Result<Vec<String>> {
        let annotations = self.secrets.get("macs").await?.metadata.annotations.unwrap_or_default();
        let ours = annotations.into_iter().filter(|(key, _)| key.contains("tuist.dev/"));
        Ok(ours.map(|(key, value)| format!("{key}={value}")).collect())
    }
}

fn request(name: &str) -> ClaimRequest {
    ClaimRequest { zone: Zone::parse("local").unwrap(), ..scene::request(name) }
}

fn held(name: &str, id: &HostId) -> HeldHost {
    HeldHost { zone: Zone::parse("local").unwrap(), ..scene::held(name, id) }
}

#[tokio::test]
async fn a_claim_is_in_the_secret_and_survives_the_process() -> Result<()> {
    let office = Office::new(&["office-1", "tuist-pool-1", "tuist-pool-2"]).await?;
    office.cluster.add("runner-1");
    let host = office.pool().claim(&request("runner-1")).await?;
    assert_eq!((host.id.as_str(), host.name.as_str()), ("tuist-pool-1", "runner-1"));
    assert_eq!(host.ssh.map(|ssh| ssh.to_string()).as_deref(), Some("admin@tuist-pool-1.office"));
    assert_eq!(office.annotations().await?, ["claim.tuist.dev/tuist-pool-1=default/runner-1"]);
    // The owner's next apply keeps it, and a new process finds it.
    office.apply(&["office-1", "tuist-pool-0", "tuist-pool-1", "tuist-pool-2"]).await?;
    assert_eq!(office.pool().claim(&request("runner-1")).await?.id, host.id);
    let pool = office.pool();
    assert_eq!(pool.release(&held("runner-1", &host.id), Destination::Pool).await?, RELEASED);
    assert_eq!(pool.release(&held("runner-1", &host.id), Destination::Pool).await?, RELEASED);
    assert_eq!(office.annotations().await?, [""; 0]);
    Ok(())
}

#[tokio::test]
async fn processes_at_once_get_different_macs() -> Result<()> {
    let office = Office::new(&["tuist-pool-1", "tuist-pool-2", "tuist-pool-3"]).await?;
    let names = ["runner-1", "runner-2", "runner-3", "runner-4"];
    for name in names {
        office.cluster.add(name);
    }
    // Each is a process of its own: only the Secret's version keeps them apart.
    let claims = names.map(|name| (office.pool(), request(name)));
    let claimed = join_all(claims.iter().map(|(pool, request)| pool.claim(request))).await;
    let ids: BTreeSet<HostId> = claimed.iter().flatten().map(|host| host.id.clone()).collect();
    assert_eq!(ids.len(), 3);
    let refused: Vec<&ClaimError> = claimed.iter().filter_map(|claim| claim.as_ref().err()).collect();
    assert!(matches!(refused[..], [ClaimError::NoAvailableHost(_)]), "{refused:?}");
    assert!(!format!("{refused:?}").contains("canary"));
    Ok(())
}

#[tokio::test]
async fn a_secret_that_was_replaced_gives_no_mac_to_two_machines() -> Result<()> {
    let office = Office::new(&["tuist-pool-1"]).await?;
    office.cluster.add("runner-1");
    let id = office.pool().claim(&request("runner-1")).await?.id;
    office.cluster.record("runner-1", Some(&id));
    office.kubectl.run(["delete", "secret", "macs"]).await?;
    office.apply(&["tuist-pool-1"]).await?;
    office.cluster.add("runner-2");
    assert!(matches!(office.pool().claim(&request("runner-2")).await, Err(ClaimError::NoAvailableHost(_))));
    assert_eq!(office.pool().claim(&request("runner-1")).await?.id, id);
    assert_eq!(office.annotations().await?, ["claim.tuist.dev/tuist-pool-1=default/runner-1"]);
    Ok(())
}

#[tokio::test]
async fn a_mac_of_another_machine_or_none_is_not_released() -> Result<()> {
    let office = Office::new(&["tuist-pool-1"]).await?;
    office.cluster.add("runner-1");
    let id = office.pool().claim(&request("runner-1")).await?.id;
    let outcome = office.pool().release(&held("runner-2", &id), Destination::Pool).await?;
    assert_eq!(outcome, ReleaseOutcome::NotOurs { name: "runner-1".to_owned() });
    let gone = HostId::parse("tuist-pool-9")?;
    assert_eq!(
        office.pool().release(&held("runner-1", &gone), Destination::Pool).await?,
        ReleaseOutcome::Gone
    );
    assert_eq!(office.annotations().await?, ["claim.tuist.dev/tuist-pool-1=default/runner-1"]);
    Ok(())
}

#[tokio::test]
async fn a_bad_mac_waits_for_the_removal_of_its_annotation() -> Result<()> {
    let office = Office::new(&["tuist-pool-1"]).await?;
    office.cluster.add("runner-1");
    let pool = office.pool();
    let id = pool.claim(&request("runner-1")).await?.id;
    assert_eq!(pool.release(&held("runner-1", &id), Destination::Quarantine).await?, RELEASED);
    assert_eq!(office.annotations().await?, ["quarantine.tuist.dev/tuist-pool-1=default/runner-1"]);
    assert!(matches!(pool.claim(&request("runner-1")).await, Err(ClaimError::NoAvailableHost(_))));
    office.kubectl.run(["annotate", "secret", "macs", "quarantine.tuist.dev/tuist-pool-1-"]).await?;
    assert_eq!(pool.claim(&request("runner-1")).await?.id, id);
    Ok(())
}

#[tokio::test]
async fn the_mac_of_a_deleted_object_is_found_and_given_back() -> Result<()> {
    let office = Office::new(&["tuist-pool-1"]).await?;
    office.cluster.add("runner-1");
    let pool = office.pool();
    let id = pool.claim(&request("runner-1")).await?.id;
    office.cluster.remove("runner-1");
    let zone = Zone::parse("local")?;
    let settings = ReclaimSettings {
        prefix: scene::prefix(),
        zones: vec![zone.clone()],
        claim_name_prefix: Some("runner-".to_owned()),
    };
    let machines = Arc::clone(&office.cluster) as Arc<dyn Machines>;
    let cycle = Reclaimer::new(pool, machines, settings, ReclaimMetrics::default()).cycle().await?;
    assert_eq!((cycle.orphans, cycle.reclaimed), (vec![(zone, OrphanHost::NoMachine, id.clone())], vec![id]));
    assert_eq!(office.annotations().await?, [""; 0]);
    Ok(())
}

#[tokio::test]
async fn a_list_that_is_missing_or_wrong_is_told_without_its_secrets() -> Result<()> {
    let office = Office::new(&["tuist-pool-1"]).await?;
    office.cluster.add("runner-1");
    let wrong = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "macs"}, "stringData": {"tuist-pool-1": "canary"}});
    office.kubectl.apply(&wrong.to_string()).await?;
    let error = office.pool().claim(&request("runner-1")).await.unwrap_err();
    assert!(error.to_string().ends_with("these entries are not understood: tuist-pool-1"), "{error}");
    office.kubectl.run(["delete", "secret", "macs"]).await?;
    let error = office.pool().claim(&request("runner-1")).await.unwrap_err();
    assert!(matches!(error, ClaimError::Pool(PoolError::MacList(MacListError::Api { .. }))), "{error}");
    Ok(())
}
