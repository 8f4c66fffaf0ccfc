//! What the agent tells on its local port.

use std::time::Instant;

use anyhow::{Result, ensure};
use serde_json::json;
use tart_kubelet_tests::mac::Fault;
use tart_kubelet_tests::wait;

use crate::scene::{DEADLINE, Scene};

#[tokio::test]
async fn health_and_figures_are_served_on_the_host() -> Result<()> {
    let begun = Instant::now();
    let (scene, agent) = Scene::with_agent("metrics").await?;
    wait::eventually("a ready agent", DEADLINE, async || {
        let (status, text) = agent.ask("/readyz").await?;
        ensure!(
            status == 200 && text.contains("[+]heartbeat ok") && text.contains("[+]vms ok"),
            "{status}: {text}"
        );
        Ok(())
    })
    .await?;
    assert_eq!(agent.ask("/healthz").await?.0, 200);
    assert_eq!(agent.ask("/").await?.0, 404);
    let version = format!("tart_kubelet_build_info{{version=\"{}\"}}", env!("CARGO_PKG_VERSION"));
    let at_least_one = [
        version.as_str(),
        "tart_kubelet_node_condition{condition=\"Ready\",status=\"True\"}",
        "rest_client_requests_total{code=\"201\",method=\"POST\"}",
        "rest_client_request_duration_seconds_count{verb=\"PATCH\"}",
    ];
    for name in at_least_one {
        ensure!(agent.metric(name).await? >= 1.0, "{name}: {}", agent.ask("/metrics").await?.1);
    }
    let age = agent.metric("tart_kubelet_heartbeat_age_seconds").await?;
    let longest = begun.elapsed().as_secs_f64();
    ensure!(age > 0.0 && age < longest, "{age} s, though the agent is there for {longest} s at most");

    let slow = "registry.test/macos/slow:1";
    scene.mac.add_image(slow, &json!({"pullSeconds": 600}))?;
    scene.create(&scene.pod("waiting", &json!({"image": slow}), &json!({}))).await?;
    wait::eventually("a Pod that waits", DEADLINE, async || {
        ensure!((agent.metric("tart_kubelet_pods_waiting").await? - 1.0).abs() < f64::EPSILON);
        ensure!(agent.metric("tart_kubelet_oldest_waiting_pod_age_seconds").await? > 0.0);
        Ok(())
    })
    .await?;
    scene.kubectl.run(["delete", "pod", "waiting"]).await?;
    // One that starts again and again, and never runs, waits as well.
    scene.mac.set_fault(Fault::NoSpace, "run")?;
    scene.create(&scene.pod("hopeless", &json!({}), &json!({"restartPolicy": "Always"}))).await?;
    scene.told("pod", "hopeless", "Back-off restarting failed container").await?;
    ensure!((agent.metric("tart_kubelet_pods_waiting").await? - 1.0).abs() < f64::EPSILON);
    scene.kubectl.run(["delete", "pod", "hopeless"]).await?;
    wait::eventually("no Pod that waits", DEADLINE, async || {
        ensure!(agent.metric("tart_kubelet_pods_waiting").await?.abs() < f64::EPSILON);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn figures_tell_what_became_of_pods() -> Result<()> {
    let (scene, agent) = Scene::with_agent("figures").await?;
    let fails = json!({"command": ["/bin/sh", "-c", "exit 3"]});
    let mut far = scene.pod("far", &json!({}), &json!({"nodeSelector": {"planet": "mars"}}));
    far["spec"]["nodeName"] = json!(scene.node);
    scene.create(&far).await?;
    scene.phase("far", "Failed").await?;
    scene.create(&scene.pod("fails", &fails, &json!({"restartPolicy": "OnFailure"}))).await?;
    scene.create(&scene.pod("missing", &json!({"image": "registry.test/macos/none:1"}), &json!({}))).await?;
    wait::eventually("figures", DEADLINE, async || {
        let wanted = [
            "tart_kubelet_image_pulls_total{result=\"success\"}",
            "tart_kubelet_image_pulls_total{result=\"ErrImagePull\"}",
            "tart_kubelet_image_pull_duration_seconds_count",
            "tart_kubelet_container_restarts_total",
            "tart_kubelet_failures_total{reason=\"Error\"}",
            "tart_kubelet_failures_total{reason=\"ErrImagePull\"}",
            "tart_kubelet_failures_total{reason=\"NodeAffinity\"}",
        ];
        for name in wanted {
            ensure!(agent.metric(name).await? >= 1.0, "{name}");
        }
        for stage in ["pull", "clone", "configure", "boot", "command"] {
            let count = format!("tart_kubelet_start_stage_duration_seconds_count{{stage=\"{stage}\"}}");
            ensure!(agent.metric(&count).await? >= 1.0, "{stage}");
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn readiness_names_the_check_that_fails() -> Result<()> {
    let scene = Scene::new("readyz").await?;
    let agent = scene.agent.clone().flag("--tart-binary", "/nowhere/tart").start()?;
    wait::eventually("an agent that is not ready", DEADLINE, async || {
        let (status, text) = agent.ask("/readyz").await?;
        ensure!(status == 500 && text.contains("[-]vms failed: TartMissing"), "{status}: {text}");
        ensure!(text.contains("[+]heartbeat ok"), "the Lease does not care: {text}");
        Ok(())
    })
    .await?;
    assert_eq!(agent.ask("/healthz").await?.0, 200);
    Ok(())
}

#[tokio::test]
async fn a_port_that_is_taken_is_one_line() -> Result<()> {
    let scene = Scene::new("port").await?;
    let taken = std::net::TcpListener::bind("127.0.0.1:0")?;
    let address = taken.local_addr()?.to_string();
    let agent = scene.agent.clone().flag("--metrics-bind-address", &address).start()?;
    let words = crate::broken_input::last_words(&agent).await?;
    let [line] = words.as_slice() else { anyhow::bail!("not one line: {words:#?}") };
    ensure!(line.contains(&address) && line.contains("--metrics-bind-address"), "{line}");
    Ok(())
}
