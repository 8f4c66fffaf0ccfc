//! What the Node and its VMs use, as scrapers see it.

use anyhow::{Context, Result, ensure};
use http::Method;
use serde_json::Value;
use tart_kubelet_tests::kubeconfig::Credentials;
use tart_kubelet_tests::wait;

use crate::scene::{DEADLINE, PodView as _, Scene, ask, every_second, exec};

/// A figure of a page of metrics, by its name with labels.
fn figure(page: &str, name: &str) -> Result<f64> {
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    Ok(line.with_context(|| format!("no {name} in\n{page}"))?.parse()?)
}

#[tokio::test]
async fn figures_of_a_vm_grow_with_its_work_and_end_with_it() -> Result<()> {
    let (scene, _agent) = Scene::with_api("figures").await?;
    // As scrapers do: the API server is a proxy to no Node at a loopback address.
    let api_server = Credentials::Certificate(scene.control_plane.kubelet_client().clone());
    let client = scene.node_client(&api_server).await?;
    let raw = async |path: &str| {
        let (status, text) = ask(&client, Method::GET, path).await?;
        ensure!(status == 200, "{path}: {status} {text}");
        Ok::<_, anyhow::Error>(text)
    };
    let pod = scene.pod("busy").sh("while :; do :; done").create_until("Running").await?;
    let labels = format!("{{container=\"main\",namespace=\"{}\",pod=\"busy\"}}", scene.namespace());
    let cpu = format!("container_cpu_usage_seconds_total{labels}");
    let first = wait::eventually("processor time of a VM", DEADLINE, async || {
        let used = figure(&raw("/metrics/resource").await?, &cpu)?;
        ensure!(used > 0.0, "none yet");
        Ok(used)
    })
    .await?;
    wait::eventually("more processor time", DEADLINE, async || {
        let used = figure(&raw("/metrics/resource").await?, &cpu)?;
        ensure!(used > first, "{used} after {first}");
        Ok(())
    })
    .await?;
    let page = raw("/metrics/resource").await?;
    for name in ["node_cpu_usage_seconds_total", "node_memory_working_set_bytes"] {
        ensure!(figure(&page, name)? > 0.0, "{page}");
    }
    ensure!(figure(&page, &format!("container_memory_working_set_bytes{labels}"))? > 1e6, "{page}");
    ensure!(figure(&page, &format!("container_start_time_seconds{labels}"))? > 1.7e9, "{page}");

    let summary = wait::eventually("a rate", DEADLINE, async || {
        let summary: Value = serde_json::from_str(&raw("/stats/summary").await?)?;
        ensure!(summary["pods"][0]["cpu"]["usageNanoCores"].as_u64() > Some(0), "{summary}");
        Ok(summary)
    })
    .await?;
    assert_eq!(summary["node"]["nodeName"], scene.node.as_str());
    assert_eq!(summary["pods"][0]["podRef"]["uid"], pod.uid_of()?);
    assert_eq!(summary["pods"][0]["containers"][0]["name"], "main");
    ensure!(summary["node"]["fs"]["capacityBytes"].as_u64() > Some(0), "{summary}");

    let listed: Value = serde_json::from_str(&raw("/pods").await?)?;
    assert_eq!(listed["items"][0]["metadata"]["name"], "busy");
    let running: Value = serde_json::from_str(&raw("/runningpods/").await?)?;
    assert_eq!(running["items"][0]["metadata"]["name"], "busy");
    ensure!(raw("/metrics/cadvisor").await?.contains("container_memory_rss{container=\"main\""));
    ensure!(raw("/metrics").await?.contains("tart_kubelet_start_stage_duration_seconds"));
    assert_eq!(raw("/healthz").await?, "ok");
    let config: Value = serde_json::from_str(&raw("/configz").await?)?;
    assert_eq!(config["kubeletconfig"]["port"], scene.kubelet_port().await?);
    assert_eq!(config["kubeletconfig"]["authentication"]["anonymous"]["enabled"], false);

    scene.delete("busy").await?;
    let summary: Value = serde_json::from_str(&raw("/stats/summary").await?)?;
    wait::eventually("no figures of a VM that is gone", DEADLINE, async || {
        ensure!(!raw("/metrics/resource").await?.contains("busy"), "{summary}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn probes_are_counted_for_scrapers() -> Result<()> {
    let (scene, _agent) = Scene::with_api("counted").await?;
    let api_server = Credentials::Certificate(scene.control_plane.kubelet_client().clone());
    let client = scene.node_client(&api_server).await?;
    let probe = every_second(exec("true"));
    scene.pod("probed").command(crate::scene::SLEEP).liveness(probe).create().await?;
    scene.ready("probed").await?;
    wait::eventually("a counted probe", DEADLINE, async || {
        let (_, page) = ask(&client, Method::GET, "/metrics/probes").await?;
        let is_ours =
            |line: &&str| line.contains("pod=\"probed\"") && line.contains("probe_type=\"Liveness\"");
        ensure!(page.lines().any(|line| is_ours(&line) && line.contains("result=\"successful\"")), "{page}");
        Ok(())
    })
    .await
}
