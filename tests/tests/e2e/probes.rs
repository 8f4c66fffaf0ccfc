//! Probes: they say whether a container has started, is ready, and has to be restarted, with the kubelet's rules and words.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition};
use kube::Api;
use kube::api::ListParams;
use serde_json::{Value, json};
use tart_kubelet_tests::agent::RunningAgent;
use tart_kubelet_tests::{programs, wait};

use crate::scene::{DEADLINE, Scene, phase_of};

/// An image with the test's own server in it.
const SERVER: &str = "registry.test/macos/server:15";
const NOT_READY: &str = "containers with unready status: [main]";

/// A scene whose Mac knows the server's image, which `image` describes.
async fn scene(name: &str, image: &Value) -> Result<(Scene, RunningAgent)> {
    let scene = Scene::new(name).await?;
    let directory = scene.mac.add_image(SERVER, image)?.join("rootfs/usr/local/bin");
    std::fs::create_dir_all(&directory)?;
    std::fs::copy(programs::find("guest-server")?, directory.join("guest-server"))?;
    let agent = scene.agent.start()?;
    scene.node_ready(&agent).await?;
    Ok((scene, agent))
}

/// A container that serves, with these files to start with, and more fields.
fn container(files: &[&str], more: &Value) -> Value {
    let command: Vec<&str> = [&["/usr/local/bin/guest-server"], files].concat();
    let mut container = json!({
        "image": SERVER, "command": command, "ports": [{"name": "web", "containerPort": 8080}],
    });
    if files.contains(&"up") {
        // A probe that fails once is enough for these tests, so none may come before the server listens.
        let listens = "until (: <\"/dev/tcp/$TART_SIM_ADDRESS/8080\") 2>/dev/null; do sleep 0.05; done";
        container["lifecycle"] = json!({"postStart": {"exec": {"command": ["/bin/bash", "-c", listens]}}});
    }
    if let (Some(container), Some(more)) = (container.as_object_mut(), more.as_object()) {
        container.extend(more.clone());
    }
    container
}

/// The same, but one that takes no notice of SIGTERM.
fn stubborn(files: &[&str], more: &Value) -> Value {
    let mut container = container(files, more);
    let script = "trap '' TERM; exec /usr/local/bin/guest-server \"$@\"";
    let command = [&["/bin/sh", "-c", script, "sh"], files].concat();
    container["command"] = json!(command);
    container
}

/// A probe that is made every second and changes its mind at once; `fields` come on top.
fn quick(fields: &Value) -> Value {
    let mut probe = json!({"periodSeconds": 1, "failureThreshold": 1, "timeoutSeconds": 20});
    if let (Some(probe), Some(fields)) = (probe.as_object_mut(), fields.as_object()) {
        probe.extend(fields.clone());
    }
    probe
}

fn http(path: &str) -> Value {
    quick(&json!({"httpGet": {"path": path, "port": "web"}}))
}

fn status(pod: &Pod) -> Option<&ContainerStatus> {
    pod.status.as_ref()?.container_statuses.as_ref()?.first()
}

fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.as_ref()?.iter().find(|condition| condition.type_ == kind)
}

fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|condition| condition.status == "True")
}

fn restarts(pod: &Pod) -> i32 {
    status(pod).map_or(0, |status| status.restart_count)
}

impl Scene {
    async fn until(&self, pod: &str, what: &str, holds: impl Fn(&Pod) -> bool) -> Result<Pod> {
        let found = wait::until(&self.pods, pod, what, DEADLINE, holds).await;
        found.with_context(|| format!("the agent says: {}", self.agent_log()))
    }

    /// Runs a script in a Pod's current VM.
    async fn sh(&self, pod: &str, script: &str) -> Result<String> {
        let vm = Self::vm_of(&self.pods.get(pod).await?)?;
        self.mac.tart(["exec", &vm, "/bin/sh", "-c", &format!("cd /private/tmp && {script}")]).await
    }
}

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
    scene.told("pod", "redirect", "Readiness probe warning: Probe terminated redirects").await?;
    scene.told("pod", "redirect", "Response body: words from the guest").await?;
    // A redirect on the same host is as good as the place that it leads to.
    scene.told("pod", "redirect", "Liveness probe failed: HTTP probe failed with statuscode: 500").await
}

/// Waits until another VM has taken over from the first.
async fn restarted(scene: &Scene, name: &str) -> Result<Pod> {
    scene.until(name, "restarted", |pod| restarts(pod) == 1 && is_ready(pod)).await
}

#[tokio::test]
async fn a_failing_liveness_probe_restarts_the_container() -> Result<()> {
    let (scene, _agent) = scene("liveness", &json!({})).await?;
    let liveness = json!({"livenessProbe": quick(&json!({
        "httpGet": {"path": "/health", "port": 8080, "httpHeaders": [{"name": "Host", "value": "app.test"}]},
    }))});
    let pod = scene.pod("liveness", &container(&["up"], &liveness), &json!({"restartPolicy": "OnFailure"}));
    scene.create(&pod).await?;
    scene.until("liveness", "ready", is_ready).await?;
    scene.sh("liveness", "echo 500 >health").await?;
    let pod = restarted(&scene, "liveness").await?;
    let last = status(&pod).and_then(|status| status.last_state.as_ref()?.terminated.clone());
    let last = last.context("no last state")?;
    assert_eq!((last.exit_code, last.reason.as_deref()), (143, Some("Error")));
    assert_eq!(last.message.as_deref(), Some("the container failed liveness probe and was stopped"));
    let words = "Liveness probe failed: HTTP probe failed with statuscode: 500";
    scene.told("pod", "liveness", words).await?;
    scene.told("pod", "liveness", "Container main failed liveness probe, will be restarted").await
}

#[tokio::test]
async fn a_failing_liveness_probe_fails_a_pod_that_is_not_restarted() -> Result<()> {
    let (scene, _agent) = scene("never", &json!({})).await?;
    let liveness = json!({"livenessProbe": http("/health")});
    scene.create(&scene.pod("never", &container(&["up", "health=500"], &liveness), &json!({}))).await?;
    let pod = scene.phase("never", "Failed").await?;
    assert_eq!(restarts(&pod), 0);
    scene.told("pod", "never", "Container main failed liveness probe").await?;
    scene.no_vms().await
}

#[tokio::test]
async fn nothing_else_is_asked_until_the_startup_probe_passes() -> Result<()> {
    let (scene, _agent) = scene("startup", &json!({})).await?;
    let startup = quick(&json!({"httpGet": {"path": "/started", "port": 8080}, "failureThreshold": 1000}));
    let probes =
        json!({"startupProbe": startup, "livenessProbe": http("/alive"), "readinessProbe": http("/ready")});
    let files = ["up", "started=503", "alive=500", "ready=503"];
    let pod = scene.pod("startup", &container(&files, &probes), &json!({"restartPolicy": "OnFailure"}));
    scene.create(&pod).await?;
    scene.told("pod", "startup", "Startup probe failed: HTTP probe failed with statuscode: 503").await?;
    let pod = scene.pods.get("startup").await?;
    assert_eq!(status(&pod).and_then(|status| status.started), Some(false));
    let asked = scene.sh("startup", "sort -u asked").await?;
    assert_eq!(asked.trim(), "/started", "liveness would have failed at once");
    scene.sh("startup", "rm alive ready started").await?;
    let pod = scene.until("startup", "ready", is_ready).await?;
    assert_eq!(status(&pod).and_then(|status| status.started), Some(true));
    assert_eq!(restarts(&pod), 0);
    // From now on liveness counts, and startup is not asked any more.
    scene.sh("startup", "echo 503 >started; echo 500 >alive").await?;
    scene.told("pod", "startup", "Container main failed liveness probe, will be restarted").await
}

#[tokio::test]
async fn a_failing_startup_probe_restarts_the_container() -> Result<()> {
    let (scene, _agent) = scene("slow", &json!({})).await?;
    let probes = json!({"startupProbe": http("/started")});
    let spec = json!({"restartPolicy": "Always"});
    scene.create(&scene.pod("slow", &container(&["up", "started=500"], &probes), &spec)).await?;
    scene.until("slow", "restarted", |pod| restarts(pod) == 1).await?;
    scene.told("pod", "slow", "Container main failed startup probe, will be restarted").await
}

/// Services go by the same condition, but no `EndpointSlice` takes the loopback addresses that simulated guests have.
#[tokio::test]
async fn controllers_count_a_pod_only_while_its_readiness_probe_passes() -> Result<()> {
    let (scene, _agent) = scene("counted", &json!({})).await?;
    let probes = json!({"readinessProbe": http("/ready")});
    let pod = scene.pod("counted", &container(&["up"], &probes), &json!({"restartPolicy": "Always"}));
    let set = json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "counted"},
        "spec": {
            "selector": {"matchLabels": {"app": "counted"}},
            "template": {"metadata": {"labels": {"app": "counted"}}, "spec": pod["spec"]},
        },
    });
    scene.kubectl.apply(&set.to_string()).await?;
    let namespace = scene.pods.namespace().context("no namespace")?;
    let sets: Api<ReplicaSet> = Api::namespaced(scene.control_plane.client().await?, namespace);
    let counted = async |count: i32| {
        let ready = |set: &ReplicaSet| set.status.as_ref().map(|status| status.ready_replicas.unwrap_or(0));
        wait::until(&sets, "counted", &format!("{count} ready"), DEADLINE, |set| ready(set) == Some(count))
            .await
    };
    counted(1).await?;
    let pods = scene.pods.list(&ListParams::default().labels("app=counted")).await?;
    let name = pods.items.first().and_then(|pod| pod.metadata.name.clone()).context("no Pod")?;
    scene.sh(&name, "echo 503 >ready").await?;
    counted(0).await?;
    scene.sh(&name, "rm ready").await?;
    counted(1).await.map(drop)
}

#[tokio::test]
async fn the_grace_period_of_a_probe_comes_before_the_pods() -> Result<()> {
    let (scene, _agent) = scene("grace", &json!({})).await?;
    let mut liveness = http("/health");
    liveness["terminationGracePeriodSeconds"] = json!(1);
    let spec = json!({"restartPolicy": "OnFailure", "terminationGracePeriodSeconds": 3600});
    let probes = json!({"livenessProbe": liveness});
    scene.create(&scene.pod("grace", &stubborn(&["up"], &probes), &spec)).await?;
    scene.until("grace", "ready", is_ready).await?;
    scene.sh("grace", "echo 500 >health").await?;
    let pod = restarted(&scene, "grace").await?;
    let last = status(&pod).and_then(|status| status.last_state.as_ref()?.terminated.clone());
    assert_eq!(last.context("no last state")?.exit_code, 137);
    Ok(())
}

#[tokio::test]
async fn a_restarted_agent_changes_nothing_that_its_probes_do_not_say() -> Result<()> {
    let (scene, agent) = scene("flap", &json!({})).await?;
    let probes = json!({"startupProbe": http("/started"), "readinessProbe": http("/ready")});
    scene.create(&scene.pod("flap", &container(&["up"], &probes), &json!({}))).await?;
    let since = |pod: &Pod| condition(pod, "Ready").and_then(|ready| ready.last_transition_time.clone());
    let before = scene.until("flap", "ready", is_ready).await?;

    agent.kill9()?;
    // Were the startup probe asked again, the container would not have started.
    scene.sh("flap", "echo 500 >started; : >asked").await?;
    let agent = scene.agent.start()?;
    wait::eventually("probes by the new agent", DEADLINE, async || {
        let asked = scene.sh("flap", "cat asked").await?;
        ensure!(asked.lines().count() >= 2, "it has asked {asked:?}");
        Ok(())
    })
    .await?;
    let after = scene.pods.get("flap").await?;
    assert!(is_ready(&after) && status(&after).is_some_and(|status| status.started == Some(true)));
    assert_eq!(since(&after), since(&before), "it was ready all the time");
    assert_eq!(scene.sh("flap", "sort -u asked").await?.trim(), "/ready");

    // What was not ready stays so, too, for as long as nobody asks.
    scene.sh("flap", "echo 503 >ready").await?;
    let before = scene.until("flap", "unready", |pod| !is_ready(pod)).await?;
    agent.kill9()?;
    scene.sh("flap", ": >asked").await?;
    let _agent = scene.agent.start()?;
    wait::eventually("probes by the new agent", DEADLINE, async || {
        ensure!(!scene.sh("flap", "cat asked").await?.is_empty());
        Ok(())
    })
    .await?;
    assert_eq!(since(&scene.pods.get("flap").await?), since(&before));
    Ok(())
}

#[tokio::test]
async fn the_agent_dies_while_it_stops_an_unhealthy_container() -> Result<()> {
    let (scene, agent) = scene("dies", &json!({})).await?;
    agent.kill9()?;
    for (index, point) in
        ["agent.stop-unhealthy.before", "agent.stop-unhealthy.after"].into_iter().enumerate()
    {
        let name = format!("dies-{index}");
        let step = async {
            let dying = scene.agent.clone().env("TART_KUBELET_CRASH", point).start()?;
            let probes = json!({"livenessProbe": http("/health")});
            // A VM that shuts down when it is asked to has succeeded, for this policy, unless it is known why.
            let spec = json!({"restartPolicy": "OnFailure"});
            scene.create(&scene.pod(&name, &container(&["up"], &probes), &spec)).await?;
            scene.until(&name, "ready", is_ready).await?;
            scene.sh(&name, "echo 500 >health").await?;
            dying.wait_for_exit(DEADLINE).await?;
            let agent = scene.agent.start()?;
            restarted(&scene, &name).await?;
            scene.kubectl.run(["delete", "pod", &name, "--wait=false", "--grace-period=1"]).await?;
            wait::until_gone(&scene.pods, &name, DEADLINE).await?;
            agent.kill9().map(drop)
        };
        step.await.with_context(|| format!("after a crash at {point}"))?;
    }
    Ok(())
}

#[tokio::test]
async fn a_pod_that_is_deleted_is_asked_for_its_readiness_only() -> Result<()> {
    let (scene, _agent) = scene("leaves", &json!({})).await?;
    let probes = json!({"livenessProbe": http("/alive"), "readinessProbe": http("/ready")});
    let spec = json!({"restartPolicy": "Always", "terminationGracePeriodSeconds": 3600});
    scene.create(&scene.pod("leaves", &stubborn(&["up"], &probes), &spec)).await?;
    scene.until("leaves", "ready", is_ready).await?;
    scene.kubectl.run(["delete", "pod", "leaves", "--wait=false"]).await?;
    // It goes on until its grace period is over.
    scene.sh("leaves", "echo 500 >alive; echo 503 >ready").await?;
    scene.until("leaves", "unready while it goes", |pod| !is_ready(pod)).await?;
    let told = scene.kubectl.run(["describe", "pod", "leaves"]).await?;
    ensure!(!told.contains("Liveness probe failed"), "{told}");
    scene.kubectl.run(["delete", "pod", "leaves", "--wait=false", "--grace-period=1"]).await?;
    wait::until_gone(&scene.pods, "leaves", DEADLINE).await?;
    scene.nothing_left().await
}
