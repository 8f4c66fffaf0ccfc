//! Init containers: one after the other, in the VM of the main container.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::scene::{ContainerView, PodBuilder, PodView as _, Scene};

/// An init container's script, with the scratch volume at `/private/tmp/scratch`.
fn shell(script: &str) -> Value {
    let mounts = json!([{"name": "scratch", "mountPath": "/private/tmp/scratch"}]);
    json!({"command": ["/bin/sh", "-c", script], "volumeMounts": mounts})
}

/// An init container that writes a variable with this source to the trace.
fn printing(source: &Value) -> Value {
    let mut container = shell("echo $LATE >>/private/tmp/scratch/trace");
    container["env"] = json!([{"name": "LATE", "valueFrom": source}]);
    container
}

/// A Pod whose main container prints the trace of its init containers.
fn pod<'a>(scene: &'a Scene, name: &str, init: &[(&str, Value)]) -> PodBuilder<'a> {
    let pod = scene.pod(name).sh("cat /private/tmp/scratch/trace; hostname");
    let pod = pod.empty_dir("scratch", "/private/tmp/scratch");
    init.iter().fold(pod, |pod, (name, container)| pod.init_container(name, container.clone()))
}

/// Creates the file that some scripts wait for.
fn go(scene: &Scene, pod: &Pod) -> Result<()> {
    Ok(std::fs::write(scene.volumes_dir(pod.uid_of()?).join("scratch/go"), "")?)
}

fn initialized(pod: &Pod) -> String {
    let condition = pod.condition("Initialized");
    format!("{} {}", condition.status, condition.message.unwrap_or_default())
}

fn waiting_reasons(pod: &Pod) -> Vec<Option<&str>> {
    pod.init_containers().into_iter().map(ContainerView::waiting_reason).collect()
}

/// Waits until the first init container runs.
async fn first_runs(scene: &Scene, pod: &str) -> Result<Pod> {
    scene.until(pod, "its init container to run", |pod| pod.init().is_running()).await
}

#[tokio::test]
async fn init_containers_run_in_order_before_the_main_container() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("init").await?;
    let trace = |word: &str| shell(&format!("echo {word} >>/private/tmp/scratch/trace; echo {word} said"));
    let init = [("one", trace("first")), ("two", trace("second"))];
    let pod = pod(&scene, "turns", &init).create_until("Succeeded").await?;
    assert_eq!(scene.log(&pod, "main", 0)?, ["first", "second", "turns"]);
    assert_eq!(scene.log(&pod, "one", 0)?, ["first said"]);
    assert_eq!(scene.log(&pod, "two", 0)?, ["second said"]);
    let mut states = Vec::new();
    for one in pod.init_containers() {
        states.push((one.status()?.name.as_str(), one.is_ready(), one.exit_code()));
    }
    assert_eq!(states, [("one", true, Some(0)), ("two", true, Some(0))]);
    assert_eq!(initialized(&pod), "True ");
    Ok(())
}

#[tokio::test]
async fn failed_init_container_fails_its_pod() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("init-fails").await?;
    let init = [("one", shell("exit 3")), ("two", shell("true"))];
    let pod = pod(&scene, "fails", &init).create_until("Failed").await?;
    let all = pod.init_containers();
    let [one, two] = all.as_slice() else { anyhow::bail!("{all:?}") };
    assert_eq!(one.exit_code(), Some(3));
    ensure!(two.is_waiting(), "{two:?}");
    assert_eq!(pod.main().waiting_reason(), Some("PodInitializing"));
    assert_eq!(initialized(&pod), "False containers with incomplete status: [one two]");
    scene.no_vms().await
}

#[tokio::test]
async fn failed_init_container_is_restarted_in_the_same_vm() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("init-again").await?;
    let once =
        "echo tried >>/private/tmp/scratch/trace; [ $(grep -c tried /private/tmp/scratch/trace) -ge 2 ]";
    let later = "while [ ! -e /private/tmp/scratch/go ]; do sleep 0.1; done";
    let init = [("one", shell(once)), ("two", shell(later))];
    pod(&scene, "again", &init).restart_policy("OnFailure").create().await?;
    let second = scene.until(
        "again",
        "the second's turn",
        |pod| matches!(pod.init_containers().as_slice(), [_, two] if two.is_running()),
    );
    let pod = second.await?;
    assert_eq!((pod.init().restart_count(), pod.init().is_ready()), (Some(1), true));
    assert_eq!(pod.init().last_exit_code(), Some(1));
    assert_eq!(initialized(&pod), "False containers with incomplete status: [two]");
    assert_eq!(pod.main().waiting_reason(), Some("PodInitializing"));
    assert_eq!(scene.vms().await?.len(), 1);
    go(&scene, &pod)?;
    let pod = scene.phase("again", "Succeeded").await?;
    assert_eq!(scene.log(&pod, "main", 0)?, ["tried", "tried", "again"]);
    Ok(())
}

/// A script of the main container that fails in the first VM.
const FAILS_ONCE: &str = "cd /private/tmp/scratch; [ -e again ] || { touch again; exit 1; }";

#[tokio::test]
async fn init_container_restarts_are_counted_across_vms() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("init-count").await?;
    // The init container fails the first time. The main container fails once, too, and gets a new VM.
    let init = "cd /private/tmp/scratch; echo x >>tries; n=$(grep -c x tries); echo try $n; [ $n -ne 1 ]";
    let pod = pod(&scene, "count", &[("one", shell(init))]).sh(FAILS_ONCE).restart_policy("OnFailure");
    let pod = pod.create_until("Succeeded").await?;
    assert_eq!(pod.init_containers().len(), 1);
    assert_eq!((pod.init().restart_count(), pod.init().last_exit_code()), (Some(2), Some(0)));
    assert_eq!(scene.log(&pod, "one", 1)?, ["try 2"]);
    assert_eq!(scene.log(&pod, "one", 2)?, ["try 3"]);
    ensure!(scene.log(&pod, "one", 0).is_err(), "only the last two are kept");
    Ok(())
}

#[tokio::test]
async fn pod_status_is_published_while_init_containers_run_again() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("init-told").await?;
    // The init container succeeds at once, and in the second VM when the test lets it.
    let init = "cd /private/tmp/scratch; [ -e first ] || { touch first; exit; }; until [ -e go ]; do sleep 0.1; done";
    let pod = pod(&scene, "told", &[("one", shell(init))]).sh(FAILS_ONCE).restart_policy("OnFailure");
    pod.create().await?;
    // The API server takes no status in which an init container that has succeeded runs.
    let again = scene
        .until("told", "the second VM", |pod| pod.main().restart_count() == Some(1) && pod.ip().is_some());
    let found = again.await?;
    ensure!(found.init_containers().iter().all(|one| one.is_ready()), "{:?}", found.init_containers());
    go(&scene, &found)?;
    let pod = scene.phase("told", "Succeeded").await?;
    assert_eq!(pod.init().restart_count(), Some(1));
    Ok(())
}

#[tokio::test]
async fn failing_init_container_backs_off() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("init-loop").await?;
    let init = [("one", shell("exit 3")), ("two", shell("true"))];
    pod(&scene, "loop", &init).restart_policy("Always").create().await?;
    let waits =
        scene.until("loop", "a back-off", |pod| pod.init().waiting_reason() == Some("CrashLoopBackOff"));
    let pod = waits.await?;
    let (namespace, uid) = (scene.namespace(), pod.uid_of()?);
    let words = format!("Back-off restarting failed container one in pod loop_{namespace}({uid})");
    scene.event("loop", "BackOff", &words).await?;
    assert_eq!(initialized(&pod), "False containers with incomplete status: [one two]");
    assert_eq!(waiting_reasons(&pod), [Some("CrashLoopBackOff"), Some("PodInitializing")]);
    assert_eq!(pod.main().waiting_reason(), Some("PodInitializing"));
    scene.delete("loop").await?;
    scene.nothing_left().await
}

#[tokio::test]
async fn init_container_that_cannot_start_is_reported() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("init-why").await?;
    for (name, policy) in [("once", "Never"), ("again", "Always")] {
        let mut lost = shell("");
        lost["command"] = json!(["/no/such/program"]);
        pod(&scene, name, &[("one", lost)]).restart_policy(policy).create().await?;
        scene.event(name, "Failed", "Error: cannot start `/no/such/program` in the guest").await?;
        scene.delete(name).await?;
    }
    scene.nothing_left().await
}

#[tokio::test]
async fn init_container_waits_for_the_objects_of_its_variables() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("init-late").await?;
    let from_map = json!({"configMapKeyRef": {"name": "made", "key": "word"}});
    let from_secret = json!({"secretKeyRef": {"name": "made", "key": "word"}});
    let init = [
        ("one", shell("until [ -e /private/tmp/scratch/go ]; do sleep 0.1; done")),
        ("two", printing(&from_map)),
        ("three", printing(&from_secret)),
    ];
    pod(&scene, "late", &init)
        .label("word", "old")
        .env_field("LATE", "metadata.labels['word']")
        .sh("cat /private/tmp/scratch/trace; echo $LATE; echo $(LATE) again")
        .create()
        .await?;
    let init_reasons = async |what: &str, expected: [Option<&str>; 3]| {
        scene.until("late", what, |pod| waiting_reasons(pod) == expected).await
    };
    // The first one runs before the objects of the others exist.
    let (waits, lacks) = (Some("PodInitializing"), Some("CreateContainerConfigError"));
    let running = init_reasons("its first to run", [None, waits, waits]).await?;
    scene.kubectl.run(["label", "pod", "late", "word=new", "--overwrite"]).await?;
    go(&scene, &running)?;
    // Only the init container whose turn it is reports what it lacks.
    let lacking = init_reasons("the second to lack something", [None, lacks, waits]).await?;
    assert_eq!(initialized(&lacking), "False containers with incomplete status: [two three]");
    assert_eq!(lacking.main().waiting_reason(), waits);
    let shown = scene.kubectl.run(["get", "pod", "late", "--no-headers"]).await?;
    ensure!(shown.contains("Init:CreateContainerConfigError"), "{shown}");
    scene.described("late", "Error: configmap \"made\" not found").await?;
    scene.config_map("made", "word", "mapped").await?;
    init_reasons("the third to lack something", [None, None, lacks]).await?;
    scene.described("late", "Error: secret \"made\" not found").await?;
    scene.secret("made", "word", "sesame-in-turn").await?;
    let pod = scene.phase("late", "Succeeded").await?;
    assert_eq!(scene.log(&pod, "main", 0)?, ["mapped", "sesame-in-turn", "new", "new again"]);
    let restarts: Vec<_> = pod.init_containers().into_iter().map(ContainerView::restart_count).collect();
    assert_eq!(restarts, [Some(0); 3]);
    scene.delete("late").await?;
    scene.nothing_left().await?;
    scene.nowhere_on_disk("sesame-in-turn").await
}

#[tokio::test]
async fn restarted_init_container_gets_new_values() -> Result<()> {
    let (scene, agent) = Scene::with_agent("init-late-again").await?;
    scene.config_map("made", "word", "old").await?;
    let mut one = printing(&json!({"configMapKeyRef": {"name": "made", "key": "word"}}));
    // The first try ends after the ConfigMap has changed.
    let script = "cd /private/tmp/scratch; echo $LATE >>trace; [ $LATE = new ] && exit; until [ -e go ]; do sleep 0.1; done; exit 1";
    one["command"] = json!(["/bin/sh", "-c", script]);
    pod(&scene, "again", &[("one", one)]).restart_policy("OnFailure").create().await?;
    let running = first_runs(&scene, "again").await?;
    scene.config_map("made", "word", "new").await?;
    go(&scene, &running)?;
    let again = scene.phase("again", "Succeeded").await?;
    assert_eq!(scene.log(&again, "main", 0)?, ["old", "new", "again"]);

    let waits = pod(&scene, "waits", &[("one", shell("true"))]);
    waits.env_config_map("LATE", "never-made", "word").create().await?;
    let lacks = |pod: &Pod| {
        pod.main().waiting_reason() == Some("CreateContainerConfigError") && initialized(pod) == "True "
    };
    scene.until("waits", "its container to lack something", lacks).await?;
    // The next agent knows that the main container's turn has come.
    agent.kill9()?;
    let _agent = scene.agent.start()?;
    scene.until("waits", "the same after a restart", lacks).await?;
    scene.delete("waits").await?;
    scene.delete("again").await?;
    scene.nothing_left().await
}

#[tokio::test]
async fn init_container_runs_on_without_the_agent_and_can_be_deleted() -> Result<()> {
    let (scene, agent) = Scene::with_agent("init-deleted").await?;
    let deleted = pod(&scene, "deleted", &[("one", shell("sleep 1000"))]).restart_policy("Always");
    deleted.create().await?;
    first_runs(&scene, "deleted").await?;
    scene.delete("deleted").await?;
    scene.nothing_left().await?;
    let waits =
        "echo once >>/private/tmp/scratch/trace; until [ -e /private/tmp/scratch/go ]; do sleep 0.1; done";
    pod(&scene, "goes-on", &[("one", shell(waits))]).create().await?;
    let found = first_runs(&scene, "goes-on").await?;
    agent.kill9()?;
    go(&scene, &found)?;
    let _agent = scene.agent.start()?;
    let pod = scene.phase("goes-on", "Succeeded").await?;
    assert_eq!(scene.log(&pod, "main", 0)?, ["once", "goes-on"]);
    Ok(())
}
