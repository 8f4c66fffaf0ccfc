//! `kubectl top`, with the real metrics-server.

use std::net::{IpAddr, TcpListener, UdpSocket};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tart_kubelet_tests::process::Process;
use tart_kubelet_tests::{programs, skip, wait};

use crate::scene::{DEADLINE, Scene};

/// The address of this machine towards others. The API server connects to no loopback address on behalf of a Service.
fn outer_address() -> Result<Option<IpAddr>> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    // It sends nothing.
    let routed = socket.connect("192.0.2.1:9").and_then(|()| socket.local_addr());
    Ok(routed.ok().map(|address| address.ip()).filter(|address| !address.is_loopback()))
}

/// Starts metrics-server, and has the API server know it.
async fn metrics_server(scene: &Scene, address: IpAddr) -> Result<Process> {
    let control_plane = scene.control_plane;
    let program =
        programs::control_plane(control_plane.sandbox(), &["metrics-server"]).await?.join("metrics-server");
    let directory = control_plane.sandbox().directory("metrics-server")?;
    let authority = directory.join("ca.crt");
    std::fs::write(&authority, &control_plane.authority().pair().certificate)?;
    let port = TcpListener::bind("0.0.0.0:0")?.local_addr()?.port();
    let admin = control_plane.admin_kubeconfig().display();
    let mut command = control_plane.sandbox().command(&program);
    command
        .arg(format!("--kubeconfig={admin}"))
        .arg(format!("--authentication-kubeconfig={admin}"))
        .arg(format!("--authorization-kubeconfig={admin}"))
        .arg(format!("--secure-port={port}"))
        .arg(format!("--cert-dir={}", directory.display()))
        // Serving certificates are really checked.
        .arg(format!("--kubelet-certificate-authority={}", authority.display()))
        .args(["--kubelet-use-node-status-port", "--kubelet-preferred-address-types=InternalIP"])
        .args(["--metric-resolution=10s", "--kubelet-request-timeout=5s"]);
    let server = Process::start("metrics-server", &mut command, &directory.join("log"))?;
    scene
        .apply(&json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "metrics-server"},
            "spec": {"ports": [{"port": 443, "targetPort": port}]},
        }))
        .await?;
    scene
        .apply(&json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": "metrics-server", "labels": {"kubernetes.io/service-name": "metrics-server"}},
            "endpoints": [{"addresses": [address.to_string()], "conditions": {"ready": true}}],
            "ports": [{"port": port, "protocol": "TCP"}],
        }))
        .await?;
    scene
        .apply(&json!({
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {"name": "v1beta1.metrics.k8s.io"},
            "spec": {
                "group": "metrics.k8s.io", "version": "v1beta1", "groupPriorityMinimum": 100, "versionPriority": 100,
                "insecureSkipTLSVerify": true,
                "service": {"name": "metrics-server", "namespace": scene.namespace(), "port": 443},
            },
        }))
        .await?;
    Ok(server)
}

/// When the figures that `kubectl top` shows were measured.
async fn measured_at(scene: &Scene) -> Result<jiff::Timestamp> {
    let path = format!("/apis/metrics.k8s.io/v1beta1/namespaces/{}/pods/busy", scene.namespace());
    let metrics: serde_json::Value =
        serde_json::from_str(&scene.kubectl.run(["get", "--raw", &path]).await?)?;
    Ok(metrics["timestamp"].as_str().context("no time")?.parse()?)
}

#[tokio::test]
async fn kubectl_top_shows_what_a_vm_uses_also_after_a_restart_of_the_agent() -> Result<()> {
    let Some(address) = outer_address()? else {
        return skip::say("this machine has no address that a Service could have");
    };
    let (scene, agent) = Scene::with_api("top").await?;
    scene.pod("busy").sh("while :; do :; done").create_until("Running").await?;
    let shown = async {
        let server = metrics_server(&scene, address).await?;
        let pod = wait::eventually("`kubectl top pod`", DEADLINE, async || {
            server.ensure_running()?;
            scene.kubectl.run(["top", "pod", "busy", "--no-headers"]).await
        })
        .await
        .with_context(|| server.last_lines())?;
        let node = scene.kubectl.run(["top", "node", &scene.node, "--no-headers"]).await?;
        let _agent = agent.restart()?;
        let restarted = jiff::Timestamp::now();
        wait::eventually("figures of the next agent", DEADLINE, async || {
            let measured = measured_at(&scene).await?;
            ensure!(measured > restarted, "they are of {measured}, and the agent died before {restarted}");
            Ok(())
        })
        .await
        .with_context(|| server.last_lines())?;
        let again = scene.kubectl.run(["top", "pod", "busy", "--no-headers"]).await?;
        Ok::<_, anyhow::Error>((pod, node, again))
    }
    .await;
    // The cluster is that of other tests, too.
    scene.kubectl.run(["delete", "apiservice", "v1beta1.metrics.k8s.io", "--ignore-not-found"]).await?;
    let (pod, node, again) = shown?;
    for line in [pod, again] {
        // `busy   998m   3Mi`
        let columns: Vec<&str> = line.split_whitespace().collect();
        let cores = columns.get(1).and_then(|column| column.strip_suffix('m')?.parse::<u32>().ok());
        ensure!(cores > Some(0) && columns.get(2).is_some_and(|column| column.ends_with("Mi")), "{line}");
    }
    ensure!(node.contains('%'), "{node}");
    Ok(())
}
