//! The reclaimer against the simulated Scaleway.

use std::sync::Arc;

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use scaleway_sim::{Call, NewServer};

use super::*;
use crate::pool::scaleway::scene::{Scene, prefix, request, zone};

const GATE: Option<&str> = Some("runner-");

fn reclaimer(scene: &Scene, gate: Option<&str>) -> Reclaimer {
    let settings =
        ReclaimSettings { prefix: prefix(), zones: vec![zone()], claim_name_prefix: gate.map(str::to_owned) };
    let machines = Arc::clone(&scene.cluster) as Arc<dyn Machines>;
    Reclaimer::new(scene.pool(), machines, settings, ReclaimMetrics::default())
}

fn metrics(reclaimer: &Reclaimer) -> String {
    let (mut registry, mut text) = (Registry::default(), String::new());
    reclaimer.metrics.register(&mut registry);
    encode(&mut text, &registry).unwrap();
    text
}

/// A host whose machine was deleted by force.
async fn stranded() -> (Scene, HostId) {
    let scene = Scene::new(&["tuist-pool-1"]).await;
    let id = scene.adopted(&scene.pool(), "runner-1").await;
    scene.cluster.remove("runner-1");
    (scene, id)
}

#[tokio::test]
async fn the_host_of_a_deleted_object_is_reported_and_left_alone_by_default() {
    let (scene, id) = stranded().await;
    let reclaimer = reclaimer(&scene, None);
    let writes = scene.writes();
    let cycle = reclaimer.cycle().await.unwrap();
    assert_eq!(cycle, Cycle { orphans: vec![(zone(), OrphanHost::NoMachine, id)], reclaimed: vec![] });
    assert_eq!(scene.writes(), writes);
    let text = metrics(&reclaimer);
    assert!(text.contains(r#"scaleway_orphan_servers{zone="fr-par-1",reason="no_machine"} 1"#), "{text}");
    assert!(text.contains("scaleway_orphan_servers_reclaimed_total 0"), "{text}");
}

#[tokio::test]
async fn the_host_of_a_deleted_object_is_given_back_within_the_gate() {
    let (scene, id) = stranded().await;
    let reclaimer = reclaimer(&scene, GATE);
    assert_eq!(reclaimer.cycle().await.unwrap().reclaimed, std::slice::from_ref(&id));
    assert!(scene.name(&id).starts_with(prefix().as_str()));
    scene.server(&id, |server| assert_eq!(server.installs, 2));
    assert_eq!(reclaimer.cycle().await.unwrap(), Cycle::default());
    let text = metrics(&reclaimer);
    assert!(text.contains(r#"scaleway_orphan_servers{zone="fr-par-1",reason="no_machine"} 0"#), "{text}");
    assert!(text.contains("scaleway_orphan_servers_reclaimed_total 1"), "{text}");
}

#[tokio::test]
async fn hosts_of_operators_other_pools_and_begun_claims_are_never_given_back() {
    let names = [
        "office",
        "other-runner-1",
        "builders-1",
        "tuist-claim-pending-1",
        "tuist-quarantined-a",
        "tuist-pool-1",
    ];
    let scene = Scene::new(&names).await;
    scene.cluster.add("runner-9");
    scene.cluster.with(|records| records[0].prefix = PoolPrefix::new("builders-"));
    let cycle = reclaimer(&scene, GATE).cycle().await.unwrap();
    let reasons: Vec<OrphanHost> = cycle.orphans.iter().map(|(_, orphan, _)| *orphan).collect();
    assert_eq!(reasons, [OrphanHost::Pending, OrphanHost::Quarantined]);
    assert_eq!((scene.writes(), scene.names()), (0, names.map(str::to_owned).to_vec()));
}

#[tokio::test]
async fn a_host_that_is_adopted_since_the_scan_is_left_alone() {
    let (scene, id) = stranded().await;
    let writes = scene.writes();
    let mut lists = 0;
    let adopted = id.clone();
    scene.cluster.on_list(move |records| {
        lists += 1;
        if lists == 2 {
            records.push(MachineRecord {
                machine: MachineRef { namespace: "default".to_owned(), name: "runner-2".to_owned() },
                zone: zone(),
                prefix: None,
                host: Some(adopted.clone()),
            });
        }
        true
    });
    assert_eq!(reclaimer(&scene, GATE).cycle().await.unwrap().reclaimed, []);
    assert_eq!((scene.writes(), scene.name(&id)), (writes, "runner-1".to_owned()));
}

#[tokio::test]
async fn a_host_that_is_claimed_after_the_last_check_is_left_alone() {
    let (scene, id) = stranded().await;
    let pool = scene.pool();
    let machines = Arc::clone(&scene.cluster) as Arc<dyn Machines>;
    let settings =
        ReclaimSettings { prefix: prefix(), zones: vec![zone()], claim_name_prefix: GATE.map(str::to_owned) };
    let reclaimer = Reclaimer::new(pool.clone(), machines, settings, ReclaimMetrics::default());
    // Between the check and the release, the machine comes back and finds its host; its status does not have it yet.
    scene.cluster.add("runner-1");
    assert_eq!(pool.claim(&request("runner-1")).await.unwrap().id, id);
    let mut cycle = Cycle::default();
    reclaimer.reclaim(&zone(), &id, "runner-1", &mut cycle).await;
    assert_eq!((cycle, scene.name(&id)), (Cycle::default(), "runner-1".to_owned()));
    scene.server(&id, |server| assert_eq!(server.installs, 1));
}

#[tokio::test]
async fn a_failed_check_ends_the_cycle() {
    let (scene, _) = stranded().await;
    let other = scene.scaleway.world().order(NewServer::named("runner-2"));
    let writes = scene.writes();
    let mut lists = 0;
    scene.cluster.on_list(move |_| {
        lists += 1;
        lists < 2
    });
    let error = reclaimer(&scene, GATE).cycle().await.unwrap_err();
    assert!(matches!(error, ReclaimError::Machines(_)), "{error}");
    assert_eq!(scene.writes(), writes);
    assert_eq!(scene.name(&HostId::parse(&other).unwrap()), "runner-2");
}

#[tokio::test]
async fn a_zone_that_fails_does_not_keep_the_others_from_being_looked_at() {
    let (scene, _) = stranded().await;
    let elsewhere = NewServer { zone: "fr-par-3".to_owned(), ..NewServer::named("runner-8") };
    let elsewhere = HostId::parse(&scene.scaleway.world().order(elsewhere)).unwrap();
    scene.cluster.add("runner-9");
    scene.cluster.with(|records| records[0].zone = Zone::parse("fr-par-3").unwrap());
    // The first zone fails in all of its tries; the second is only in a machine.
    scene.fault("list-servers 3 error 503");
    let error = reclaimer(&scene, GATE).cycle().await.unwrap_err();
    assert!(matches!(&error, ReclaimError::Zone { zone, .. } if zone.to_string() == "fr-par-1"), "{error}");
    assert!(scene.name(&elsewhere).starts_with(prefix().as_str()));
    assert_eq!(scene.scaleway.world().count(Call::DeleteServer), 0);
}

#[tokio::test]
async fn a_second_host_of_one_name_is_an_orphan() {
    let scene = Scene::new(&["tuist-pool-1", "runner-1"]).await;
    let duplicate = scene.id("runner-1");
    scene.cluster.add("runner-1");
    scene.cluster.record("runner-1", Some(&scene.id("tuist-pool-1")));
    let cycle = reclaimer(&scene, GATE).cycle().await.unwrap();
    assert_eq!(cycle.orphans, [(zone(), OrphanHost::Duplicate, duplicate.clone())]);
    assert_eq!(cycle.reclaimed, [duplicate]);
}

#[tokio::test]
async fn a_host_that_is_renamed_since_the_scan_is_left_alone() {
    let (scene, id) = stranded().await;
    scene.cluster.add("runner-2");
    for name in ["tuist-pool-9", "tuist-claim-pending-9", "runner-2", "office"] {
        scene.server(&id, |server| name.clone_into(&mut server.name));
        let mut cycle = Cycle::default();
        reclaimer(&scene, GATE).reclaim(&zone(), &id, "runner-1", &mut cycle).await;
        assert_eq!((cycle, scene.name(&id)), (Cycle::default(), name.to_owned()));
        scene.server(&id, |server| assert_eq!(server.installs, 1, "{name}"));
    }
}

#[tokio::test]
async fn all_hosts_are_counted_by_whose_they_are() {
    let scene =
        Scene::new(&["tuist-pool-1", "tuist-pool-2", "office", "runner-9", "tuist-claim-pending-1"]).await;
    scene.adopted(&scene.pool(), "runner-1").await;
    let reclaimer = reclaimer(&scene, GATE);
    reclaimer.cycle().await.unwrap();
    let text = metrics(&reclaimer);
    for (state, number) in [("owned", 1), ("free", 1), ("foreign", 1), ("orphan", 2)] {
        let line = format!(r#"tart_provider_pool_hosts{{zone="fr-par-1",state="{state}"}} {number}"#);
        assert!(text.contains(&line), "{line}: {text}");
    }
}
