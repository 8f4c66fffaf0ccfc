//! The pool against the simulated Scaleway: each test is an incident.

use std::collections::BTreeSet;

use futures::future::join_all;
use scaleway_sim::{Call, Install, NewServer, PasswordView, Settings, Status};

use super::scene::{self, SECRET, Scene, held, machine, prefix, request, zone};
use crate::names::HostId;
use crate::pool::{
    ClaimError, Destination, HostState, OsFamily, Password, Pool as _, PoolError, PoolPrefix, ReleaseOutcome,
};

const WIPED: ReleaseOutcome = ReleaseOutcome::Released { wiped: true, os_unavailable: false };

fn is_shortage<T>(result: &Result<T, ClaimError>) -> bool {
    matches!(result, Err(ClaimError::NoAvailableHost(_)))
}

#[tokio::test]
async fn a_claim_marks_a_server_and_then_gives_it_the_machines_name() {
    let scene = Scene::new(&["tuist-pool-1", "tuist-pool-2"]).await;
    scene.cluster.add("runner-1");
    let host = scene.pool().claim(&request("runner-1")).await.unwrap();
    assert_eq!((host.name.as_str(), host.state), ("runner-1", HostState::Ready));
    let names: Vec<String> = scene.scaleway.world().writes().iter().map(|write| write.name.clone()).collect();
    assert!(names[0].starts_with("tuist-claim-pending-"), "{names:?}");
    assert_eq!(names[1..], ["runner-1"]);
    assert_eq!(scene.names(), ["runner-1", "tuist-pool-2"]);
}

#[tokio::test]
async fn a_claim_that_was_not_recorded_is_found_again() {
    let scene = Scene::new(&["tuist-pool-1", "tuist-pool-2"]).await;
    scene.cluster.add("runner-1");
    let first = scene.pool().claim(&request("runner-1")).await.unwrap();
    let again = scene.pool().claim(&request("runner-1")).await.unwrap();
    assert_eq!(first.id, again.id);
    assert_eq!(scene.names(), ["runner-1", "tuist-pool-2"]);
}

#[tokio::test]
async fn a_claim_that_died_half_way_leaves_a_server_that_the_next_one_takes() {
    let scene = Scene::new(&["tuist-pool-1"]).await;
    scene.cluster.add("runner-1");
    let pool = scene.pool();
    scene.fault("get-server error 500");
    assert!(matches!(pool.claim(&request("runner-1")).await, Err(ClaimError::Pool(_))));
    assert!(scene.names()[0].starts_with("tuist-claim-pending-"));
    scene.scaleway.world().clear_rules();
    assert_eq!(scene.pool().claim(&request("runner-1")).await.unwrap().name, "runner-1");
}

#[tokio::test]
async fn claims_at_once_get_different_servers() {
    let scene = Scene::new(&["tuist-pool-1", "tuist-pool-2", "tuist-pool-3", "tuist-pool-4"]).await;
    let names = ["runner-1", "runner-2", "runner-3", "runner-4", "runner-5"];
    for name in names {
        scene.cluster.add(name);
    }
    let pool = scene.pool();
    let requests = names.map(request);
    let claimed = join_all(requests.iter().map(|request| pool.claim(request))).await;
    let ids: BTreeSet<HostId> = claimed.iter().flatten().map(|host| host.id.clone()).collect();
    assert_eq!(ids.len(), 4);
    assert_eq!(claimed.into_iter().filter(Result::is_err).count(), 1);
}

#[tokio::test]
async fn a_server_that_is_renamed_during_a_claim_is_left_alone() {
    let scene = Scene::new(&["tuist-pool-1", "tuist-pool-2"]).await;
    scene.cluster.add("runner-1");
    let (pool, taken) = (scene.pool(), scene.id("tuist-pool-1"));
    scene.fault("get-server 1 slow 100");
    let rename = async {
        scene.arrived(Call::GetServer, 1).await;
        scene.server(&taken, |server| server.name = "office".to_owned());
    };
    let request = request("runner-1");
    let (claimed, ()) = tokio::join!(pool.claim(&request), rename);
    assert_ne!(claimed.unwrap().id, taken);
    assert_eq!(scene.names(), ["office", "runner-1"]);
}

#[tokio::test]
async fn a_server_that_is_gone_is_passed_over() {
    let scene = Scene::new(&["tuist-pool-1", "tuist-pool-2"]).await;
    scene.cluster.add("runner-1");
    scene.fault("update-server 1 error 404");
    assert_eq!(scene.pool().claim(&request("runner-1")).await.unwrap().id, scene.id("runner-1"));
    assert_eq!(scene.names(), ["tuist-pool-1", "runner-1"]);
}

#[tokio::test]
async fn a_refusal_is_no_shortage() {
    let scene = Scene::new(&["tuist-pool-1"]).await;
    scene.cluster.add("runner-1");
    for status in [403, 500] {
        scene.fault(&format!("update-server error {status}"));
        let error = scene.pool().claim(&request("runner-1")).await.unwrap_err();
        assert!(matches!(error, ClaimError::Pool(PoolError::Scaleway(_))), "{error}");
        assert!(!format!("{error:?} {error}").contains(SECRET));
        scene.scaleway.world().clear_rules();
    }
    assert_eq!(scene.names(), ["tuist-pool-1"]);
}

#[tokio::test]
async fn servers_outside_the_pool_are_never_touched() {
    let scene = Scene::new(&["office", "other-pool-1"]).await;
    scene.cluster.add("runner-1");
    assert!(is_shortage(&scene.pool().claim(&request("runner-1")).await));
    assert_eq!(scene.writes(), 0);
}

#[tokio::test]
async fn servers_of_other_projects_are_not_seen_and_all_pages_are_read() {
    let scene = Scene::new(&[]).await;
    scene.cluster.add("runner-1");
    for number in 0..230 {
        scene.scaleway.world().order(NewServer::named(&format!("office-{number}")));
    }
    let id = scene.scaleway.world().order(NewServer::named("tuist-pool-1"));
    let foreign = scene.scaleway.world().order(NewServer::named("tuist-pool-2"));
    scene.scaleway.world().server(&foreign).unwrap().project_id = "another".to_owned();
    assert_eq!(scene.pool().claim(&request("runner-1")).await.unwrap().id.as_str(), id);
    assert_eq!(scene.scaleway.world().count(Call::ListServers), 3);
    scene.cluster.add("runner-2");
    assert!(is_shortage(&scene.pool().claim(&request("runner-2")).await));
}

#[tokio::test]
async fn a_machine_that_is_named_like_a_free_host_or_is_gone_gets_none() {
    let scene = Scene::new(&["tuist-pool-1"]).await;
    scene.cluster.add("tuist-pool-x");
    let error = scene.pool().claim(&request("tuist-pool-x")).await.unwrap_err();
    assert!(matches!(error, ClaimError::ReservedName { .. }), "{error}");
    let error = scene.pool().claim(&request("deleted")).await.unwrap_err();
    assert!(matches!(error, ClaimError::NoSuchMachine(_)), "{error}");
    assert_eq!(scene.writes(), 0);
}

#[tokio::test]
async fn a_late_call_of_a_former_leader_gives_no_host_to_two_machines() {
    let scene = Scene::new(&["tuist-pool-1", "tuist-pool-2"]).await;
    scene.cluster.add("runner-1");
    let former = scene.pool();
    // The former leader marks the server, and dies when it gives it its name; that call is on its way.
    let first_request = request("runner-1");
    scene.fault("get-server 1 slow 50");
    let hold = async {
        scene.arrived(Call::GetServer, 1).await;
        scene.fault("update-server hold");
    };
    let (died, ()) = tokio::join!(former.claim(&first_request), hold);
    assert!(died.is_err());
    scene.scaleway.world().clear_rules();
    let marked = scene.names().iter().position(|name| name.starts_with("tuist-claim-pending-")).unwrap();
    scene.server(&scene.id("tuist-pool-2"), |server| server.status = Status::Busy);
    // The new leader gives the server to another machine, and only then the call arrives.
    let leader = scene.pool();
    let second = scene.adopted(&leader, "runner-2").await;
    assert!(scene.scaleway.world().deliver_held() > 0);
    assert_eq!(scene.names()[marked], "runner-1");
    assert!(is_shortage(&leader.claim(&first_request).await));
    assert!(is_shortage(&scene.pool().claim(&first_request).await));
    // It is still the second machine's to give back, and the first finds nothing of what the second has left.
    assert_eq!(leader.release(&held("runner-2", &second), Destination::Pool).await.unwrap(), WIPED);
    assert!(scene.names()[marked].starts_with(prefix().as_str()));
}

#[tokio::test]
async fn a_release_wipes_the_server_and_gives_it_a_free_name() {
    let scene = Scene::new(&["tuist-pool-1"]).await;
    let pool = scene.pool();
    let id = scene.adopted(&pool, "runner-1").await;
    assert_eq!(pool.release(&held("runner-1", &id), Destination::Pool).await.unwrap(), WIPED);
    assert!(scene.name(&id).starts_with(prefix().as_str()));
    scene.server(&id, |server| {
        assert_eq!((server.status, server.installs), (Status::Reinstalling, 2));
        assert_eq!(server.image.name, "macos-tahoe-26.6.1");
    });
    // No machine gets it before it is installed.
    scene.cluster.record("runner-1", None);
    scene.cluster.add("runner-2");
    assert!(is_shortage(&pool.claim(&request("runner-2")).await));
    scene.scaleway.world().finish_changes();
    assert_eq!(pool.claim(&request("runner-2")).await.unwrap().id, id);
    assert_eq!(scene.scaleway.world().count(Call::DeleteServer), 0);
}

#[tokio::test]
async fn a_server_is_wiped_once_though_it_cannot_be_renamed_meanwhile() {
    let settings =
        Settings { secret_key: SECRET.to_owned(), install: Install::ByHand, ..Settings::default() };
    let scene = Scene::with(settings, &["tuist-pool-1"]).await;
    let pool = scene.pool();
    let id = scene.adopted(&pool, "runner-1").await;
    for _ in 0..3 {
        let error = pool.release(&held("runner-1", &id), Destination::Pool).await.unwrap_err();
        assert!(matches!(error, PoolError::Busy(HostState::Changing(_))), "{error}");
        assert_eq!(scene.name(&id), "runner-1");
    }
    scene.scaleway.world().finish_changes();
    assert_eq!(pool.release(&held("runner-1", &id), Destination::Pool).await.unwrap(), WIPED);
    scene.server(&id, |server| assert_eq!(server.installs, 2));
    assert!(scene.name(&id).starts_with(prefix().as_str()));
}

#[tokio::test]
async fn a_release_that_fails_half_way_leaves_nothing_that_could_be_claimed() {
    for rule in ["reinstall-server error 503", "reinstall-server error 412", "update-server error 503"] {
        let scene = Scene::new(&["tuist-pool-1"]).await;
        let pool = scene.pool();
        let id = scene.adopted(&pool, "runner-1").await;
        scene.cluster.add("runner-2");
        scene.fault(rule);
        assert!(pool.release(&held("runner-1", &id), Destination::Pool).await.is_err());
        assert_eq!(scene.name(&id), "runner-1");
        scene.scaleway.world().clear_rules();
        assert!(is_shortage(&pool.claim(&request("runner-2")).await), "{rule}");
        // A new process finishes it.
        assert_eq!(scene.pool().release(&held("runner-1", &id), Destination::Pool).await.unwrap(), WIPED);
        scene.server(&id, |server| assert_eq!(server.installs, 2, "{rule}"));
    }
}

#[tokio::test]
async fn a_release_whose_answers_are_lost_is_repeated_without_harm() {
    let scene = Scene::new(&["tuist-pool-1"]).await;
    let pool = scene.pool();
    let id = scene.adopted(&pool, "runner-1").await;
    scene.fault("reinstall-server 1 cut");
    scene.fault("update-server 1 cut");
    assert_eq!(pool.release(&held("runner-1", &id), Destination::Pool).await.unwrap(), WIPED);
    assert_eq!(pool.release(&held("runner-1", &id), Destination::Pool).await.unwrap(), WIPED);
    scene.server(&id, |server| assert_eq!(server.installs, 2));
}

#[tokio::test]
async fn a_server_that_is_gone_is_released() {
    let scene = Scene::new(&["tuist-pool-1"]).await;
    let pool = scene.pool();
    let id = scene.adopted(&pool, "runner-1").await;
    scene.fault("reinstall-server error 404");
    assert_eq!(pool.release(&held("runner-1", &id), Destination::Pool).await.unwrap(), ReleaseOutcome::Gone);
    scene.scaleway.world().remove(id.as_str());
    assert_eq!(pool.release(&held("runner-1", &id), Destination::Pool).await.unwrap(), ReleaseOutcome::Gone);
    assert!(pool.host(&zone(), &id).await.unwrap().is_none());
    assert!(matches!(pool.reboot(&zone(), &id).await, Err(PoolError::NoSuchHost(_))));
}

#[tokio::test]
async fn a_server_that_an_operator_or_another_machine_has_is_not_released() {
    let scene = Scene::new(&["tuist-pool-1", "tuist-pool-2"]).await;
    let pool = scene.pool();
    let id = scene.adopted(&pool, "runner-1").await;
    scene.server(&id, |server| server.name = "office".to_owned());
    let writes = scene.writes();
    let outcome = pool.release(&held("runner-1", &id), Destination::Pool).await.unwrap();
    assert_eq!(outcome, ReleaseOutcome::NotOurs { name: "office".to_owned() });
    // The name is right, but another machine's status has the id.
    scene.server(&id, |server| server.name = "runner-1".to_owned());
    scene.cluster.add("runner-2");
    scene.cluster.record("runner-2", Some(&id));
    let outcome = pool.release(&held("runner-1", &id), Destination::Pool).await.unwrap();
    assert_eq!(outcome, ReleaseOutcome::NotOurs { name: "runner-1".to_owned() });
    assert_eq!(scene.writes(), writes);
}

#[tokio::test]
async fn the_host_of_an_object_without_a_prefix_goes_to_the_default_pool() {
    let scene = Scene::new(&["legacy-1"]).await;
    scene.cluster.add("legacy-1");
    let id = scene.id("legacy-1");
    scene.cluster.record("legacy-1", Some(&id));
    let chosen = PoolPrefix::choose(Some(""), Some(&prefix())).unwrap();
    let held = crate::pool::HeldHost { prefix: chosen, ..held("legacy-1", &id) };
    assert_eq!(scene.pool().release(&held, Destination::Pool).await.unwrap(), WIPED);
    assert!(scene.name(&id).starts_with(prefix().as_str()));
}

#[tokio::test]
async fn claims_and_releases_at_once_hand_over_only_wiped_servers() {
    let settings = Settings {
        secret_key: SECRET.to_owned(),
        install: Install::After(std::time::Duration::ZERO),
        renames_while_changing: true,
        ..Settings::default()
    };
    let scene = Scene::with(settings, &["tuist-pool-1", "tuist-pool-2"]).await;
    let pool = scene.pool();
    let ids = [scene.adopted(&pool, "runner-1").await, scene.adopted(&pool, "runner-2").await];
    // The machines are about to go; what the pool remembers keeps their hosts from others until they are released.
    for (gone, new) in [("runner-1", "runner-3"), ("runner-2", "runner-4")] {
        scene.cluster.record(gone, None);
        scene.cluster.add(new);
    }
    let (first, second) = (held("runner-1", &ids[0]), held("runner-2", &ids[1]));
    let requests = [request("runner-3"), request("runner-4")];
    let (one, two, three, four) = tokio::join!(
        pool.claim(&requests[0]),
        pool.release(&first, Destination::Pool),
        pool.release(&second, Destination::Pool),
        pool.claim(&requests[1]),
    );
    assert_eq!((two.unwrap(), three.unwrap()), (WIPED, WIPED));
    assert!(is_shortage(&one));
    assert!(ids.contains(&four.unwrap().id));
    for id in ids {
        scene.server(&id, |server| assert_eq!(server.installs, 2));
    }
}

#[tokio::test]
async fn an_image_that_is_retired_is_replaced_by_the_default() {
    let scene = Scene::new(&["tuist-pool-1"]).await;
    let pool = scene.pool();
    let id = scene.adopted(&pool, "runner-1").await;
    scene.scaleway.world().images().retain(|image| image.family == "Sequoia");
    let outcome = pool.release(&held("runner-1", &id), Destination::Pool).await.unwrap();
    assert_eq!(outcome, ReleaseOutcome::Released { wiped: true, os_unavailable: true });
    scene.server(&id, |server| assert_eq!(server.image.family, "Sequoia"));
}

#[tokio::test]
async fn a_bad_host_is_out_of_the_pool_until_an_operator_renames_it() {
    let scene = Scene::new(&["tuist-pool-1"]).await;
    let pool = scene.pool();
    let id = scene.adopted(&pool, "runner-1").await;
    assert_eq!(pool.release(&held("runner-1", &id), Destination::Quarantine).await.unwrap(), WIPED);
    assert_eq!(scene.name(&id), "tuist-quarantined-runner-1");
    scene.cluster.record("runner-1", None);
    scene.scaleway.world().finish_changes();
    assert!(is_shortage(&pool.claim(&request("runner-1")).await));
    scene.server(&id, |server| server.name = "tuist-pool-repaired".to_owned());
    assert_eq!(pool.claim(&request("runner-1")).await.unwrap().id, id);
}

#[tokio::test]
async fn a_host_that_is_too_broken_to_be_wiped_is_quarantined_all_the_same() {
    let scene = Scene::new(&["tuist-pool-1"]).await;
    let pool = scene.pool();
    let id = scene.adopted(&pool, "runner-1").await;
    scene.server(&id, |server| server.status = Status::Locked);
    let outcome = pool.release(&held("runner-1", &id), Destination::Quarantine).await.unwrap();
    assert_eq!(outcome, ReleaseOutcome::Released { wiped: false, os_unavailable: false });
    assert_eq!(scene.name(&id), "tuist-quarantined-runner-1");
}

#[tokio::test]
async fn a_sealed_password_is_told_from_none_and_is_found_later() {
    let scene = Scene::new(&["tuist-pool-1"]).await;
    let pool = scene.pool();
    let id = scene.id("tuist-pool-1");
    for (view, is_known) in [
        (PasswordView::Sealed, false),
        (PasswordView::AllSealed, false),
        (PasswordView::InVncUrl, true),
        (PasswordView::Shown, true),
    ] {
        scene.server(&id, |server| server.password_view = view);
        let host = pool.host(&zone(), &id).await.unwrap().unwrap();
        match host.password {
            Password::Known(password) => {
                assert_eq!((password.expose(), is_known), (&b"correct horse"[..], true));
            }
            password => assert_eq!((password, is_known), (Password::Sealed, false)),
        }
    }
}

#[tokio::test]
async fn a_reboot_is_asked_for_once_and_a_busy_host_says_so() {
    let scene = Scene::new(&["tuist-pool-1"]).await;
    let (pool, id) = (scene.pool(), scene.id("tuist-pool-1"));
    scene.fault("reboot-server 1 cut");
    pool.reboot(&zone(), &id).await.unwrap();
    assert_eq!(scene.writes(), 1);
    scene.server(&id, |server| server.status = Status::Reinstalling);
    assert!(matches!(pool.reboot(&zone(), &id).await, Err(PoolError::Busy(_))));
}

#[tokio::test]
async fn a_key_is_added_once_and_replaced_when_it_differs() {
    let scene = Scene::new(&[]).await;
    let pool = scene.pool();
    let keys = || {
        let world = scene.scaleway.world();
        world.ssh_keys().iter().map(|key| (key.name.clone(), key.public_key.clone())).collect::<Vec<_>>()
    };
    let key = |name: &str, key: &str| (name.to_owned(), key.to_owned());
    pool.ensure_ssh_key("fleet-2", "ssh-ed25519 B").await.unwrap();
    pool.ensure_ssh_key("fleet", "ssh-ed25519 A").await.unwrap();
    pool.ensure_ssh_key("fleet", "ssh-ed25519 A comment").await.unwrap();
    assert_eq!(keys(), [key("fleet-2", "ssh-ed25519 B"), key("fleet", "ssh-ed25519 A")]);
    let both = join_all(["fleet", "fleet"].map(|name| pool.ensure_ssh_key(name, "ssh-ed25519 C"))).await;
    assert!(both.iter().all(Result::is_ok));
    assert_eq!(keys(), [key("fleet-2", "ssh-ed25519 B"), key("fleet", "ssh-ed25519 C")]);
}

#[tokio::test]
async fn a_versioned_pin_is_refused_for_a_claim_and_understood_for_a_release() {
    assert!(OsFamily::pin("macos-tahoe-26.3").is_err());
    let scene = Scene::new(&["tuist-pool-1"]).await;
    let pool = scene.pool();
    let id = scene.adopted(&pool, "runner-1").await;
    let held = crate::pool::HeldHost { os: OsFamily::of_image("macos-tahoe-26.3"), ..held("runner-1", &id) };
    assert_eq!(pool.release(&held, Destination::Pool).await.unwrap(), WIPED);
    scene.server(&id, |server| assert_eq!(server.image.name, "macos-tahoe-26.6.1"));
}

#[tokio::test]
async fn calls_are_repeated_after_failures_that_pass_and_only_then() {
    let scene = Scene::new(&["tuist-pool-1"]).await;
    let client = scene.client(scene::RETRY);
    for rule in [
        "list-servers 1 throttle 0",
        "list-servers 2 error 503",
        "list-servers 1 gateway",
        "list-servers 1 lose",
    ] {
        scene.fault(rule);
        assert_eq!(client.servers(&zone()).await.unwrap().len(), 1, "{rule}");
        assert!(scene.scaleway.world().rules().is_empty(), "{rule}");
    }
    for (rule, calls) in
        [("list-servers error 403", 1), ("list-servers error 500", 3), ("list-servers throttle 60", 1)]
    {
        let before = scene.scaleway.world().count(Call::ListServers);
        scene.fault(rule);
        let error = client.servers(&zone()).await.unwrap_err();
        assert!(!format!("{error} {error:?}").contains(SECRET), "{error:?}");
        assert_eq!(scene.scaleway.world().count(Call::ListServers) - before, calls, "{rule}: {error}");
        scene.scaleway.world().clear_rules();
    }
}

#[tokio::test]
async fn a_call_that_is_not_answered_ends() {
    let scene = Scene::new(&["tuist-pool-1"]).await;
    let timeout = std::time::Duration::from_millis(50);
    let client = scene.client(crate::scaleway::RetryPolicy { tries: 2, timeout, ..scene::RETRY });
    scene.fault("list-servers slow 600000");
    let error = client.servers(&zone()).await.unwrap_err();
    assert!(error.to_string().contains("does not answer in time"), "{error}");
}

#[tokio::test]
async fn a_wrong_key_is_told_without_being_shown() {
    let scene = Scene::with(Settings::default(), &[]).await;
    let error = scene.client(scene::RETRY).servers(&zone()).await.unwrap_err();
    assert!(error.to_string().contains("denied_authentication"), "{error}");
    assert!(!format!("{error:?}").contains(SECRET));
}

#[tokio::test]
async fn a_host_has_an_address_for_ssh() {
    let scene = Scene::new(&["tuist-pool-1"]).await;
    let pool = scene.pool();
    let id = scene.adopted(&pool, machine("runner-1").name.as_str()).await;
    let ssh = pool.host(&zone(), &id).await.unwrap().unwrap().ssh.unwrap();
    assert_eq!((ssh.user.as_str(), ssh.port), ("m1", 22));
}
