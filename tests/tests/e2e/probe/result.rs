//! What the results of probes do: the Pod's readiness, and restarts of its container.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use tart_kubelet_tests::mac::Fault;
use tart_kubelet_tests::wait;

use super::{http, quick, scene, server, stubborn};
use crate::scene::{DEADLINE, PodView, Scene};

#[tokio::test]
async fn probe_results_change_at_their_thresholds() -> Result<()> {
    let (scene, _agent) = scene("thresholds").await?;
    // The probe passes once, fails, passes once, and then does what the files say.
    let script = "cd /private/tmp; n=$(($(cat n)+1)); echo $n >n; case $n in 1|3) exit 0;; 2) exit 1;; esac; \
                  if [ -e miss ]; then mv miss missed; exit 1; fi; [ -e well ]";
    let readiness = json!({
        "exec": {"command": ["/bin/sh", "-c", script]}, "periodSeconds": 1, "timeoutSeconds": 20,
        "successThreshold": 2, "failureThreshold": 2,
    });
    let mut liveness = http("/alive");
    liveness["failureThreshold"] = json!(3);
    let running = server(&scene, "thresholds", &["up", "n=0"])
        .readiness(readiness)
        .liveness(liveness)
        .empty_dir("kept", "/private/kept")
        .pre_stop(
            json!({"exec": {"command": ["/bin/cp", "/private/tmp/answered", "/private/kept/answered"]}}),
        )
        .restart_policy("OnFailure")
        .create_until("Running")
        .await?;
    let probed = async |times: u32| {
        wait::eventually("more probes", DEADLINE, async || {
            let made: u32 = scene.sh("thresholds", "cat n").await?.trim().parse()?;
            ensure!(made >= times, "it was {made}");
            Ok(())
        })
        .await
    };
    probed(6).await?;
    let pod = scene.pods.get("thresholds").await?;
    assert_eq!(
        (pod.is_ready(), pod.ready_since()),
        (false, running.ready_since()),
        "one success is not enough"
    );
    scene.sh("thresholds", "touch well").await?;
    let ready = scene.until("thresholds", "ready", PodView::is_ready).await?;
    scene.sh("thresholds", "touch miss").await?;
    wait::eventually("a failure", DEADLINE, async || scene.sh("thresholds", "cat missed").await.map(drop))
        .await?;
    probed(12).await?;
    let pod = scene.pods.get("thresholds").await?;
    assert_eq!((pod.is_ready(), pod.ready_since()), (true, ready.ready_since()), "one failure is not enough");
    scene.sh("thresholds", "rm well").await?;
    scene.until("thresholds", "unready", |pod| !pod.is_ready()).await?;

    scene.sh("thresholds", "echo 500 >alive").await?;
    let pod = restarted(&scene, "thresholds").await?;
    let answered = std::fs::read_to_string(scene.volumes_dir(pod.uid_of()?).join("kept/answered"))?;
    assert_eq!(answered.lines().filter(|one| *one == "/alive 500").count(), 3, "{answered}");
    Ok(())
}

/// Waits until the container was restarted once.
async fn restarted(scene: &Scene, name: &str) -> Result<Pod> {
    scene.until(name, "restarted", |pod| pod.main().restart_count() == Some(1)).await
}

/// Waits until the container was restarted once, and its Pod is ready.
async fn ready_again(scene: &Scene, name: &str) -> Result<Pod> {
    let again = |pod: &Pod| pod.main().restart_count() == Some(1) && pod.is_ready();
    scene.until(name, "restarted and ready", again).await
}

#[tokio::test]
async fn failed_liveness_probe_restarts_the_container() -> Result<()> {
    let (scene, _agent) = scene("liveness").await?;
    let liveness = quick(&json!({
        "httpGet": {"path": "/health", "port": 8080, "httpHeaders": [{"name": "Host", "value": "app.test"}]},
    }));
    let pod = server(&scene, "liveness", &["up"]).liveness(liveness).restart_policy("OnFailure");
    pod.create().await?;
    scene.until("liveness", "ready", PodView::is_ready).await?;
    scene.sh("liveness", "echo 500 >health").await?;
    let last = ready_again(&scene, "liveness").await?.main().last_end()?;
    assert_eq!((last.exit_code, last.reason.as_deref()), (143, Some("Error")));
    assert_eq!(last.message.as_deref(), Some("the container failed liveness probe and was stopped"));
    let words = "Liveness probe failed: HTTP probe failed with statuscode: 500";
    scene.event("liveness", "Unhealthy", words).await?;
    scene.event("liveness", "Killing", "Container main failed liveness probe, will be restarted").await
}

#[tokio::test]
async fn probes_reach_the_next_vm_of_a_pod_whose_mac_keeps_old_leases() -> Result<()> {
    let (scene, _agent) = scene("leases").await?;
    scene.mac.set_fault(Fault::StaleLease, "")?;
    let pod = server(&scene, "leases", &["up"]).liveness(http("/alive")).restart_policy("Always");
    pod.create().await?;
    scene.until("leases", "ready", PodView::is_ready).await?;
    scene.sh("leases", "echo 500 >alive").await?;
    let pod = ready_again(&scene, "leases").await?;
    let address = scene.sh("leases", "echo $TART_SIM_ADDRESS").await?;
    assert_eq!(pod.ip(), Some(address.trim()));
    Ok(())
}

#[tokio::test]
async fn failed_liveness_probe_fails_a_pod_with_policy_never() -> Result<()> {
    let (scene, _agent) = scene("never").await?;
    let pod = server(&scene, "never", &["up", "health=500"]).liveness(http("/health"));
    assert_eq!(pod.create_until("Failed").await?.main().restart_count(), Some(0));
    scene.described("never", "Container main failed liveness probe").await?;
    scene.no_vms().await
}

#[tokio::test]
async fn startup_probe_comes_before_other_probes() -> Result<()> {
    let (scene, _agent) = scene("startup").await?;
    let startup = quick(&json!({"httpGet": {"path": "/started", "port": 8080}, "failureThreshold": 1000}));
    server(&scene, "startup", &["up", "started=503", "alive=500", "ready=503"])
        .startup(startup)
        .liveness(http("/alive"))
        .readiness(http("/ready"))
        .restart_policy("OnFailure")
        .create()
        .await?;
    scene.described("startup", "Startup probe failed: HTTP probe failed with statuscode: 503").await?;
    assert_eq!(scene.pods.get("startup").await?.main().started(), Some(false));
    let asked = scene.sh("startup", "sort -u asked").await?;
    assert_eq!(asked.trim(), "/started", "liveness would have failed at once");
    scene.sh("startup", "rm alive ready started").await?;
    let pod = scene.until("startup", "ready", PodView::is_ready).await?;
    assert_eq!((pod.main().started(), pod.main().restart_count()), (Some(true), Some(0)));
    // From now on the agent makes the liveness probe, and no startup probe any more.
    scene.sh("startup", "echo 503 >started; echo 500 >alive").await?;
    scene.described("startup", "Container main failed liveness probe, will be restarted").await
}

#[tokio::test]
async fn failed_startup_probe_restarts_the_container() -> Result<()> {
    let (scene, _agent) = scene("slow").await?;
    let pod = server(&scene, "slow", &["up", "started=500"]).startup(http("/started"));
    pod.restart_policy("Always").create().await?;
    restarted(&scene, "slow").await?;
    scene.event("slow", "Unhealthy", "Startup probe failed: HTTP probe failed with statuscode: 500").await?;
    scene.event("slow", "Killing", "Container main failed startup probe, will be restarted").await
}

#[tokio::test]
async fn grace_period_of_a_probe_replaces_the_pods() -> Result<()> {
    let (scene, _agent) = scene("grace").await?;
    let mut probe = http("/health");
    probe["terminationGracePeriodSeconds"] = json!(1);
    for (name, kind) in [("alive", "livenessProbe"), ("starts", "startupProbe")] {
        let pod = stubborn(&scene, name, &["up", "health=500"]).container(json!({kind: probe}));
        pod.restart_policy("OnFailure").grace(3600).create().await?;
        assert_eq!(restarted(&scene, name).await?.main().last_exit_code(), Some(137), "{name}");
        scene.kubectl.run(["delete", "pod", name, "--grace-period=1"]).await?;
    }
    Ok(())
}

#[tokio::test]
async fn agent_restart_keeps_readiness_and_started() -> Result<()> {
    let (scene, agent) = scene("flap").await?;
    let pod = server(&scene, "flap", &["up"]).startup(http("/started")).readiness(http("/ready"));
    pod.create().await?;
    let before = scene.until("flap", "ready", PodView::is_ready).await?;

    agent.kill9()?;
    // A second startup probe would fail, and the container would not count as started.
    scene.sh("flap", "echo 500 >started; : >asked").await?;
    let agent = scene.agent.start()?;
    // The first request may be the last one of the killed agent.
    let probed_twice = async || {
        wait::eventually("probes by the new agent", DEADLINE, async || {
            let asked = scene.sh("flap", "cat asked").await?;
            ensure!(asked.lines().count() >= 2, "it has asked {asked:?}");
            Ok(())
        })
        .await
    };
    probed_twice().await?;
    let after = scene.observed("flap").await?;
    assert!(after.is_ready() && after.main().started() == Some(true));
    assert_eq!(after.ready_since(), before.ready_since(), "it was ready all the time");
    assert_eq!(scene.sh("flap", "sort -u asked").await?.trim(), "/ready");

    // A Pod that is not ready stays so, too.
    scene.sh("flap", "echo 503 >ready").await?;
    let before = scene.until("flap", "unready", |pod| !pod.is_ready()).await?;
    agent.kill9()?;
    scene.sh("flap", ": >asked").await?;
    let _agent = scene.agent.start()?;
    probed_twice().await?;
    let after = scene.observed("flap").await?;
    assert!(!after.is_ready());
    assert_eq!(after.ready_since(), before.ready_since());
    Ok(())
}

#[tokio::test]
async fn agent_crash_while_it_stops_an_unhealthy_container_restarts_it_once() -> Result<()> {
    let (scene, agent) = scene("dies").await?;
    agent.kill9()?;
    for (index, point) in ["agent.stop-for.before", "agent.stop-for.after"].into_iter().enumerate() {
        let name = format!("dies-{index}");
        let step = async {
            let dying = scene.agent.clone().env("TART_KUBELET_CRASH", point).start()?;
            // With this policy a VM that shuts down when asked counts as a success, unless the agent knows why it was asked.
            let pod = server(&scene, &name, &["up"]).liveness(http("/health"));
            pod.restart_policy("OnFailure").create().await?;
            scene.until(&name, "ready", PodView::is_ready).await?;
            scene.sh(&name, "echo 500 >health").await?;
            dying.wait_for_exit(DEADLINE).await?;
            let agent = scene.agent.start()?;
            ready_again(&scene, &name).await?;
            scene.begin_delete_within(&name, 1).await?;
            scene.until_gone(&name).await?;
            agent.kill9().map(drop)
        };
        step.await.with_context(|| format!("after a crash at {point}"))?;
    }
    Ok(())
}

#[tokio::test]
async fn deleted_pod_has_readiness_probes_only() -> Result<()> {
    let (scene, _agent) = scene("leaves").await?;
    let pod = stubborn(&scene, "leaves", &["up"]).liveness(http("/alive")).readiness(http("/ready"));
    pod.restart_policy("Always").grace(3600).create().await?;
    scene.until("leaves", "ready", PodView::is_ready).await?;
    scene.begin_delete("leaves").await?;
    scene.described("leaves", "stopping VM").await?;
    // The server runs on until the grace period is over.
    scene.sh("leaves", "echo 500 >alive; echo 503 >ready").await?;
    scene.until("leaves", "unready while it goes", |pod| !pod.is_ready()).await?;
    let told = scene.kubectl.run(["describe", "pod", "leaves"]).await?;
    ensure!(!told.contains("Liveness probe failed"), "{told}");
    scene.begin_delete_within("leaves", 1).await?;
    scene.until_gone("leaves").await?;
    scene.nothing_left().await
}
