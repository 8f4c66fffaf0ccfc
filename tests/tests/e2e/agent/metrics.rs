//! Health and metrics on the agent's local port.

use std::time::Instant;

use anyhow::{Result, ensure};
use serde_json::json;
use tart_kubelet_tests::mac::Fault;
use tart_kubelet_tests::wait;

use super::startup::exit_line;
use crate::scene::{DEADLINE, Scene};

#[tokio::test]
async fn health_and_metrics_are_served_on_the_host() -> Result<()> {
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
    scene.pod("waiting").image(slow).create().await?;
    wait::eventually("a Pod that waits", DEADLINE, async || {
        ensure!((agent.metric("tart_kubelet_pods_waiting").await? - 1.0).abs() < f64::EPSILON);
        ensure!(agent.metric("tart_kubelet_oldest_waiting_pod_age_seconds").await? > 0.0);
        Ok(())
    })
    .await?;
    scene.delete("waiting").await?;
    // A Pod that restarts and never runs counts as waiting, too.
    scene.mac.set_fault(Fault::NoSpace, "run")?;
    scene.pod("hopeless").restart_policy("Always").create().await?;
    scene.described("hopeless", "Back-off restarting failed container").await?;
    ensure!((agent.metric("tart_kubelet_pods_waiting").await? - 1.0).abs() < f64::EPSILON);
    scene.delete("hopeless").await?;
    wait::eventually("no Pod that waits", DEADLINE, async || {
        ensure!(agent.metric("tart_kubelet_pods_waiting").await?.abs() < f64::EPSILON);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn metrics_count_pods_and_failures() -> Result<()> {
    let (scene, agent) = Scene::with_agent("figures").await?;
    scene.pod("far").spec(json!({"nodeSelector": {"planet": "mars"}})).bound().create_until("Failed").await?;
    scene.pod("fails").sh("exit 3").restart_policy("OnFailure").create().await?;
    scene.pod("missing").image("registry.test/macos/none:1").create().await?;
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
async fn readyz_names_the_failed_check() -> Result<()> {
    let scene = Scene::new("readyz").await?;
    let agent = scene.agent.clone().flag("--tart-binary", "/nowhere/tart").start()?;
    wait::eventually("an agent that is not ready", DEADLINE, async || {
        let (status, text) = agent.ask("/readyz").await?;
        ensure!(status == 500 && text.contains("[-]vms failed: TartMissing"), "{status}: {text}");
        ensure!(text.contains("[+]heartbeat ok"), "the heartbeat is well: {text}");
        Ok(())
    })
    .await?;
    assert_eq!(agent.ask("/healthz").await?.0, 200);
    Ok(())
}

#[tokio::test]
async fn taken_metrics_port_ends_the_agent_with_one_line() -> Result<()> {
    let scene = Scene::new("port").await?;
    let taken = std::net::TcpListener::bind("127.0.0.1:0")?;
    let address = taken.local_addr()?.to_string();
    let agent = scene.agent.clone().flag("--metrics-bind-address", &address).start()?;
    let line = exit_line(&agent).await?;
    ensure!(line.contains(&address) && line.contains("--metrics-bind-address"), "{line}");
    Ok(())
}
