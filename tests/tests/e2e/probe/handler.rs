//! The handlers of probes (exec, httpGet, tcpSocket, grpc), and the Events about their results.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tart_kubelet_tests::wait;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::{http, quick, scene, server};
use crate::scene::{DEADLINE, PodView, exec};

const NOT_READY: &str = "containers with unready status: [main]";

/// A Pod whose readiness probe fails, passes after the script `good`, and fails again after the script `bad`.
async fn both_ways(
    name: &str,
    files: &[&str],
    probe: &Value,
    bad: &str,
    good: &str,
    words: &str,
) -> Result<()> {
    let (scene, _agent) = scene(name).await?;
    let pod = server(&scene, name, files).readiness(probe.clone()).create_until("Running").await?;
    ensure!(!pod.is_ready(), "ready before the first probe");
    scene.described(name, words).await?;
    let pod = scene.pods.get(name).await?;
    for kind in ["Ready", "ContainersReady"] {
        let found = pod.condition(kind);
        assert_eq!(found.status, "False");
        assert_eq!(
            (found.reason.as_deref(), found.message.as_deref()),
            (Some("ContainersNotReady"), Some(NOT_READY))
        );
    }
    scene.sh(name, good).await?;
    let pod = scene.until(name, "ready", PodView::is_ready).await?;
    let ready = pod.condition("Ready");
    assert_eq!((ready.reason, ready.message), (None, None), "the old message is gone");
    assert!(pod.main().is_ready() && pod.main().started() == Some(true));
    scene.sh(name, bad).await?;
    let pod = scene.until(name, "unready", |pod| !pod.is_ready()).await?;
    assert!(!pod.main().is_ready() && pod.main().started() == Some(true));
    assert_eq!(pod.main().restart_count(), Some(0), "readiness restarts nothing");
    Ok(())
}

#[tokio::test]
async fn http_probe_sets_readiness() -> Result<()> {
    let words = "Readiness probe failed: HTTP probe failed with statuscode: 503";
    let files = ["up", "health=503"];
    Box::pin(both_ways("http", &files, &http("/health"), "echo 404 >health", "rm health", words)).await
}

#[tokio::test]
async fn tcp_probe_sets_readiness() -> Result<()> {
    let probe = quick(&json!({"tcpSocket": {"port": "web"}}));
    let words = "connect: connection refused";
    Box::pin(both_ways("tcp", &[], &probe, "rm up", "touch up", words)).await
}

#[tokio::test]
async fn grpc_probe_sets_readiness() -> Result<()> {
    let probe = quick(&json!({"grpc": {"port": 8080, "service": "builds"}}));
    let words = "Readiness probe failed: service unhealthy (responded with \"NOT_SERVING\")";
    Box::pin(both_ways("grpc", &["up", "grpc=2"], &probe, "echo 2 >grpc", "echo 1 >grpc", words)).await
}

#[tokio::test]
async fn probe_request_has_the_fields_of_the_pod_spec() -> Result<()> {
    let (scene, _agent) = scene("asked").await?;
    let headers = json!([{"name": "Host", "value": "app.test"}, {"name": "X-Key", "value": "one"}, {"name": "X-Key", "value": "two"}]);
    let get =
        json!({"httpGet": {"path": "/ready?a=b", "port": 8443, "scheme": "HTTPS", "httpHeaders": headers}});
    let grpc = quick(&json!({"grpc": {"port": 8080, "service": "builds"}}));
    // The server's certificate is self-signed, and the agent does not verify it.
    server(&scene, "asked", &["up"]).startup(grpc).readiness(quick(&get)).create().await?;
    scene.until("asked", "ready", PodView::is_ready).await?;
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
async fn http_probe_time_out_is_reported() -> Result<()> {
    let (scene, _agent) = scene("late").await?;
    let probe =
        json!({"httpGet": {"path": "/ready", "port": "web"}, "timeoutSeconds": 1, "periodSeconds": 1});
    server(&scene, "late", &["up", "ready=hang"]).readiness(probe).create().await?;
    let words = "/ready\": context deadline exceeded (Client.Timeout exceeded while awaiting headers)";
    scene.described("late", words).await?;
    scene.sh("late", "rm ready").await?;
    scene.until("late", "ready", PodView::is_ready).await.map(drop)
}

#[tokio::test]
async fn exec_probe_sets_readiness() -> Result<()> {
    let probe = quick(&exec("cat /private/tmp/well"));
    Box::pin(both_ways("exec", &[], &probe, "rm well", "touch well", "No such file or directory")).await
}

#[tokio::test]
async fn exec_probe_time_out_and_unknown_port_are_reported() -> Result<()> {
    let (scene, _agent) = scene("hangs").await?;
    let hanging =
        json!({"exec": {"command": ["/bin/sleep", "1000"]}, "timeoutSeconds": 1, "periodSeconds": 1});
    let nameless = json!({"tcpSocket": {"port": "gopher"}, "periodSeconds": 1, "failureThreshold": 1});
    server(&scene, "hangs", &[]).readiness(hanging).liveness(nameless).create().await?;
    let late = "Readiness probe failed: command timed out: \"/bin/sleep 1000\" timed out after 1s";
    scene.described("hangs", late).await?;
    let unknown = "Liveness probe errored and resulted in unknown state: port gopher not found";
    scene.described("hangs", unknown).await?;
    let pod = scene.pods.get("hangs").await?;
    ensure!(pod.phase() == "Running" && !pod.is_ready(), "an unknown result changes nothing");
    Ok(())
}

#[tokio::test]
async fn redirect_to_another_host_passes_with_a_warning() -> Result<()> {
    let (scene, _agent) = scene("redirect").await?;
    let files = ["up", "there=302 /500", "500=500", "away=302 http://elsewhere.test/"];
    let pod = server(&scene, "redirect", &files).readiness(http("/away")).liveness(http("/there"));
    pod.restart_policy("OnFailure").create().await?;
    scene.event("redirect", "ProbeWarning", "Readiness probe warning: Probe terminated redirects").await?;
    scene.described("redirect", "Response body: words from the guest").await?;
    // The agent follows a redirect on the same host.
    scene
        .event("redirect", "Unhealthy", "Liveness probe failed: HTTP probe failed with statuscode: 500")
        .await
}

#[tokio::test]
async fn probe_calls_the_host_of_the_pod_spec() -> Result<()> {
    let (scene, agent) = scene("host").await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    // No server listens on this port at the Pod's own address.
    let port = listener.local_addr()?.port();
    let host = tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            if matches!(connection.read(&mut [0; 1024]).await, Ok(1..)) {
                let _ = connection.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
            }
        }
    });
    let probes = [
        ("by-http", json!({"httpGet": {"host": "127.0.0.1", "port": port}})),
        ("by-tcp", json!({"tcpSocket": {"host": "127.0.0.1", "port": port}})),
    ];
    for (name, probe) in &probes {
        server(&scene, name, &["up"]).readiness(quick(probe)).create().await?;
        let words = format!(
            "Readiness probe failed: {}dial tcp 127.0.0.1:{port}: 127.0.0.1 is a loopback address",
            match *name {
                "by-http" => format!("Get \"http://127.0.0.1:{port}/\": "),
                _ => String::new(),
            }
        );
        scene.event(name, "Unhealthy", &words).await?;
        ensure!(!scene.pods.get(name).await?.is_ready(), "{name} has reached this machine");
    }
    agent.kill9()?;
    let _agent = scene.start(&scene.agent.clone().switch("--allow-local-probe-hosts")).await?;
    for (name, _) in &probes {
        scene.until(name, "ready", PodView::is_ready).await?;
    }
    host.abort();
    Ok(())
}

#[tokio::test]
async fn probe_waits_for_its_initial_delay() -> Result<()> {
    let (scene, _agent) = scene("delay").await?;
    let note = |file: &str| exec(format!("echo x >>/private/tmp/{file}"));
    let mut late = quick(&note("late"));
    late["initialDelaySeconds"] = json!(3600);
    let pod = server(&scene, "delay", &["up"]).readiness(late).liveness(quick(&note("soon")));
    pod.create_until("Running").await?;
    wait::eventually("three probes", DEADLINE, async || {
        let asked = scene.sh("delay", "cat soon").await?;
        ensure!(asked.lines().count() >= 3, "{asked}");
        Ok(())
    })
    .await?;
    assert_eq!(scene.sh("delay", "ls late 2>/dev/null || true").await?, "");
    ensure!(!scene.pods.get("delay").await?.is_ready(), "it is ready without a readiness probe");
    Ok(())
}
