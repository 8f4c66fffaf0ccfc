//! Probes: they say whether a container has started, is ready, and has to be restarted, with the kubelet's rules and words.

mod endpoints;
mod handler;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition};
use serde_json::{Value, json};
use tart_kubelet_tests::agent::RunningAgent;
use tart_kubelet_tests::{programs, wait};

use crate::scene::{DEADLINE, Scene};

/// An image with the test's own server in it.
const SERVER: &str = "registry.test/macos/server:15";

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

#[tokio::test]
async fn opinions_change_at_their_thresholds() -> Result<()> {
    let (scene, _agent) = scene("thresholds", &json!({})).await?;
    // It passes once, fails, passes once, and then does as it is told.
    let script = "cd /private/tmp; n=$(($(cat n)+1)); echo $n >n; case $n in 1|3) exit 0;; 2) exit 1;; esac; \
                  if [ -e miss ]; then mv miss missed; exit 1; fi; [ -e well ]";
    let readiness = json!({
        "exec": {"command": ["/bin/sh", "-c", script]}, "periodSeconds": 1, "timeoutSeconds": 20,
        "successThreshold": 2, "failureThreshold": 2,
    });
    let mut liveness = http("/alive");
    liveness["failureThreshold"] = json!(3);
    let mut container =
        container(&["up", "n=0"], &json!({"readinessProbe": readiness, "livenessProbe": liveness}));
    container["volumeMounts"] = json!([{"name": "kept", "mountPath": "/private/kept"}]);
    container["lifecycle"]["preStop"] =
        json!({"exec": {"command": ["/bin/cp", "/private/tmp/answered", "/private/kept/answered"]}});
    let spec = json!({"restartPolicy": "OnFailure", "volumes": [{"name": "kept", "emptyDir": {}}]});
    scene.create(&scene.pod("thresholds", &container, &spec)).await?;
    let since = |pod: &Pod| condition(pod, "Ready").and_then(|ready| ready.last_transition_time.clone());
    let running = scene.phase("thresholds", "Running").await?;
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
    assert_eq!((is_ready(&pod), since(&pod)), (false, since(&running)), "one that passed is not enough");
    scene.sh("thresholds", "touch well").await?;
    let ready = scene.until("thresholds", "ready", is_ready).await?;
    scene.sh("thresholds", "touch miss").await?;
    wait::eventually("a failure", DEADLINE, async || scene.sh("thresholds", "cat missed").await.map(drop))
        .await?;
    probed(12).await?;
    let pod = scene.pods.get("thresholds").await?;
    assert_eq!((is_ready(&pod), since(&pod)), (true, since(&ready)), "one that failed is not enough");
    scene.sh("thresholds", "rm well").await?;
    scene.until("thresholds", "unready", |pod| !is_ready(pod)).await?;

    scene.sh("thresholds", "echo 500 >alive").await?;
    let pod = scene.until("thresholds", "restarted", |pod| restarts(pod) == 1).await?;
    let uid = pod.metadata.uid.context("no UID")?;
    let answered = scene.agent.state_dir().join("volumes").join(uid).join("kept/answered");
    let answered = std::fs::read_to_string(answered)?;
    assert_eq!(answered.lines().filter(|one| *one == "/alive 500").count(), 3, "{answered}");
    Ok(())
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
    scene.told_as("liveness", "Unhealthy", words).await?;
    scene.told_as("liveness", "Killing", "Container main failed liveness probe, will be restarted").await
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
    scene
        .told_as("slow", "Unhealthy", "Startup probe failed: HTTP probe failed with statuscode: 500")
        .await?;
    scene.told_as("slow", "Killing", "Container main failed startup probe, will be restarted").await
}

#[tokio::test]
async fn the_grace_period_of_a_probe_comes_before_the_pods() -> Result<()> {
    let (scene, _agent) = scene("grace", &json!({})).await?;
    let mut probe = http("/health");
    probe["terminationGracePeriodSeconds"] = json!(1);
    let spec = json!({"restartPolicy": "OnFailure", "terminationGracePeriodSeconds": 3600});
    for (name, kind) in [("alive", "livenessProbe"), ("starts", "startupProbe")] {
        let pod = scene.pod(name, &stubborn(&["up", "health=500"], &json!({kind: probe})), &spec);
        scene.create(&pod).await?;
        let pod = scene.until(name, "restarted", |pod| restarts(pod) == 1).await?;
        let last = status(&pod).and_then(|status| status.last_state.as_ref()?.terminated.clone());
        assert_eq!(last.context("no last state")?.exit_code, 137, "{name}");
        scene.kubectl.run(["delete", "pod", name, "--grace-period=1"]).await?;
    }
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
    // The first of them may be the last of the agent that is gone.
    let probed_twice = async || {
        wait::eventually("probes by the new agent", DEADLINE, async || {
            let asked = scene.sh("flap", "cat asked").await?;
            ensure!(asked.lines().count() >= 2, "it has asked {asked:?}");
            Ok(())
        })
        .await
    };
    probed_twice().await?;
    let after = scene.looked_at("flap").await?;
    assert!(is_ready(&after) && status(&after).is_some_and(|status| status.started == Some(true)));
    assert_eq!(since(&after), since(&before), "it was ready all the time");
    assert_eq!(scene.sh("flap", "sort -u asked").await?.trim(), "/ready");

    // What was not ready stays so, too, for as long as nobody asks.
    scene.sh("flap", "echo 503 >ready").await?;
    let before = scene.until("flap", "unready", |pod| !is_ready(pod)).await?;
    agent.kill9()?;
    scene.sh("flap", ": >asked").await?;
    let _agent = scene.agent.start()?;
    probed_twice().await?;
    let after = scene.looked_at("flap").await?;
    assert!(!is_ready(&after));
    assert_eq!(since(&after), since(&before));
    Ok(())
}

#[tokio::test]
async fn the_agent_dies_while_it_stops_an_unhealthy_container() -> Result<()> {
    let (scene, agent) = scene("dies", &json!({})).await?;
    agent.kill9()?;
    for (index, point) in ["agent.stop-for.before", "agent.stop-for.after"].into_iter().enumerate() {
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
    scene.told("pod", "leaves", "stopping VM").await?;
    // It goes on until its grace period is over.
    scene.sh("leaves", "echo 500 >alive; echo 503 >ready").await?;
    scene.until("leaves", "unready while it goes", |pod| !is_ready(pod)).await?;
    let told = scene.kubectl.run(["describe", "pod", "leaves"]).await?;
    ensure!(!told.contains("Liveness probe failed"), "{told}");
    scene.kubectl.run(["delete", "pod", "leaves", "--wait=false", "--grace-period=1"]).await?;
    wait::until_gone(&scene.pods, "leaves", DEADLINE).await?;
    scene.nothing_left().await
}
