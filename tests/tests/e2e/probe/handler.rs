//! How a probe asks, and what is told of the answer.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tart_kubelet_tests::wait;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::{condition, container, http, is_ready, quick, restarts, scene, status};
use crate::scene::{DEADLINE, phase_of};

const NOT_READY: &str = "containers with unready status: [main]";

/// A Pod whose readiness probe fails, passes and fails again, as the guest has it.
async fn both_ways(
    name: &str,
    files: &[&str],
    probe: &Value,
    bad: &str,
    good: &str,
    words: &str,
) -> Result<()> {
    let (scene, _agent) = scene(name, &json!({})).await?;
    scene.create(&scene.pod(name, &container(files, &json!({"readinessProbe": probe})), &json!({}))).await?;
    let pod = scene.phase(name, "Running").await?;
    ensure!(!is_ready(&pod), "ready before it was asked");
    scene.told("pod", name, words).await?;
    let pod = scene.pods.get(name).await?;
    for kind in ["Ready", "ContainersReady"] {
        let told = condition(&pod, kind).context("no condition")?;
        assert_eq!(told.status, "False");
        assert_eq!(
            (told.reason.as_deref(), told.message.as_deref()),
            (Some("ContainersNotReady"), Some(NOT_READY))
        );
    }
    scene.sh(name, good).await?;
    let pod = scene.until(name, "ready", is_ready).await?;
    let told = condition(&pod, "Ready").context("no condition")?;
    assert_eq!((&told.reason, &told.message), (&None, &None), "what is over is not told any more");
    assert!(status(&pod).is_some_and(|status| status.ready && status.started == Some(true)));
    scene.sh(name, bad).await?;
    let pod = scene.until(name, "unready", |pod| !is_ready(pod)).await?;
    assert!(status(&pod).is_some_and(|status| !status.ready && status.started == Some(true)));
    assert_eq!(restarts(&pod), 0, "readiness restarts nothing");
    Ok(())
}

#[tokio::test]
async fn http_says_whether_a_pod_is_ready() -> Result<()> {
    let words = "Readiness probe failed: HTTP probe failed with statuscode: 503";
    let files = ["up", "health=503"];
    Box::pin(both_ways("http", &files, &http("/health"), "echo 404 >health", "rm health", words)).await
}

#[tokio::test]
async fn tcp_says_whether_a_pod_is_ready() -> Result<()> {
    let probe = quick(&json!({"tcpSocket": {"port": "web"}}));
    let words = "connect: connection refused";
    Box::pin(both_ways("tcp", &[], &probe, "rm up", "touch up", words)).await
}

#[tokio::test]
async fn grpc_says_whether_a_pod_is_ready() -> Result<()> {
    let probe = quick(&json!({"grpc": {"port": 8080, "service": "builds"}}));
    let words = "Readiness probe failed: service unhealthy (responded with \"NOT_SERVING\")";
    Box::pin(both_ways("grpc", &["up", "grpc=2"], &probe, "echo 2 >grpc", "echo 1 >grpc", words)).await
}

#[tokio::test]
async fn servers_are_asked_as_the_pod_says() -> Result<()> {
    let (scene, _agent) = scene("asked", &json!({})).await?;
    let headers = json!([{"name": "Host", "value": "app.test"}, {"name": "X-Key", "value": "one"}, {"name": "X-Key", "value": "two"}]);
    let get =
        json!({"httpGet": {"path": "/ready?a=b", "port": 8443, "scheme": "HTTPS", "httpHeaders": headers}});
    let grpc = quick(&json!({"grpc": {"port": 8080, "service": "builds"}}));
    // Nobody vouches for the server's certificate, and nobody is asked to.
    let probes = json!({"startupProbe": grpc, "readinessProbe": quick(&get)});
    scene.create(&scene.pod("asked", &container(&["up"], &probes), &json!({}))).await?;
    scene.until("asked", "ready", is_ready).await?;
    let asked = scene.sh("asked", "sort -u asked").await?;
    assert_eq!(asked.lines().collect::<Vec<_>>(), ["/grpc.health.v1.Health/Check builds", "/ready"]);
    let headers = scene.sh("asked", "sort headers").await?;
    let told: Vec<&str> = headers.lines().collect();
    assert_eq!(
        told,
        [
            "accept: */*",
            "connection: close",
            "host: app.test",
            "user-agent: kube-probe/1.36",
            "x-key: one",
            "x-key: two"
        ]
    );
    Ok(())
}

#[tokio::test]
async fn a_server_that_does_not_answer_in_time_is_told() -> Result<()> {
    let (scene, _agent) = scene("late", &json!({})).await?;
    let probe =
        json!({"httpGet": {"path": "/ready", "port": "web"}, "timeoutSeconds": 1, "periodSeconds": 1});
    scene
        .create(&scene.pod(
            "late",
            &container(&["up", "ready=hang"], &json!({"readinessProbe": probe})),
            &json!({}),
        ))
        .await?;
    scene
        .told(
            "pod",
            "late",
            "/ready\": context deadline exceeded (Client.Timeout exceeded while awaiting headers)",
        )
        .await?;
    scene.sh("late", "rm ready").await?;
    scene.until("late", "ready", is_ready).await.map(drop)
}

#[tokio::test]
async fn a_command_says_whether_a_pod_is_ready() -> Result<()> {
    let script = "cat /private/tmp/well";
    let probe = quick(&json!({"exec": {"command": ["/bin/sh", "-c", script]}}));
    Box::pin(both_ways("exec", &[], &probe, "rm well", "touch well", "No such file or directory")).await
}

#[tokio::test]
async fn a_command_that_hangs_and_a_port_without_a_number_are_told() -> Result<()> {
    let (scene, _agent) = scene("hangs", &json!({})).await?;
    let hanging =
        json!({"exec": {"command": ["/bin/sleep", "1000"]}, "timeoutSeconds": 1, "periodSeconds": 1});
    let nameless = json!({"tcpSocket": {"port": "gopher"}, "periodSeconds": 1, "failureThreshold": 1});
    let probes = json!({"readinessProbe": hanging, "livenessProbe": nameless});
    scene.create(&scene.pod("hangs", &container(&[], &probes), &json!({}))).await?;
    let late = "Readiness probe failed: command timed out: \"/bin/sleep 1000\" timed out after 1s";
    scene.told("pod", "hangs", late).await?;
    let unknown = "Liveness probe errored and resulted in unknown state: port gopher not found";
    scene.told("pod", "hangs", unknown).await?;
    let pod = scene.pods.get("hangs").await?;
    ensure!(phase_of(&pod) == "Running" && !is_ready(&pod), "a probe that is broken counts for nothing");
    Ok(())
}

#[tokio::test]
async fn a_redirect_to_another_host_is_good_enough_but_told() -> Result<()> {
    let (scene, _agent) = scene("redirect", &json!({})).await?;
    let files = ["up", "there=302 /500", "500=500", "away=302 http://elsewhere.test/"];
    let probes = json!({"readinessProbe": http("/away"), "livenessProbe": http("/there")});
    let pod = scene.pod("redirect", &container(&files, &probes), &json!({"restartPolicy": "OnFailure"}));
    scene.create(&pod).await?;
    scene.told_as("redirect", "ProbeWarning", "Readiness probe warning: Probe terminated redirects").await?;
    scene.told("pod", "redirect", "Response body: words from the guest").await?;
    // A redirect on the same host is as good as the place that it leads to.
    scene
        .told_as("redirect", "Unhealthy", "Liveness probe failed: HTTP probe failed with statuscode: 500")
        .await
}

#[tokio::test]
async fn a_host_that_the_pod_names_is_asked_in_its_place() -> Result<()> {
    let (scene, _agent) = scene("host", &json!({})).await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    // Nobody listens there at the Pod's own address.
    let port = listener.local_addr()?.port();
    let server = tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            if matches!(connection.read(&mut [0; 1024]).await, Ok(1..)) {
                let _ = connection.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
            }
        }
    });
    for (name, probe) in [
        ("by-http", json!({"httpGet": {"host": "127.0.0.1", "port": port}})),
        ("by-tcp", json!({"tcpSocket": {"host": "127.0.0.1", "port": port}})),
    ] {
        let probes = json!({"readinessProbe": quick(&probe)});
        scene.create(&scene.pod(name, &container(&["up"], &probes), &json!({}))).await?;
        scene.until(name, "ready", is_ready).await?;
    }
    server.abort();
    Ok(())
}

#[tokio::test]
async fn a_probe_with_a_delay_waits_for_it() -> Result<()> {
    let (scene, _agent) = scene("delay", &json!({})).await?;
    let note =
        |file: &str| json!({"exec": {"command": ["/bin/sh", "-c", format!("echo x >>/private/tmp/{file}")]}});
    let mut late = quick(&note("late"));
    late["initialDelaySeconds"] = json!(3600);
    let probes = json!({"readinessProbe": late, "livenessProbe": quick(&note("soon"))});
    scene.create(&scene.pod("delay", &container(&["up"], &probes), &json!({}))).await?;
    scene.phase("delay", "Running").await?;
    wait::eventually("three probes", DEADLINE, async || {
        let asked = scene.sh("delay", "cat soon").await?;
        ensure!(asked.lines().count() >= 3, "{asked}");
        Ok(())
    })
    .await?;
    assert_eq!(scene.sh("delay", "ls late 2>/dev/null || true").await?, "");
    ensure!(!is_ready(&scene.pods.get("delay").await?), "it is ready though nobody has asked");
    Ok(())
}
