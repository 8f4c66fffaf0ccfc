//! Init containers: one after the other, in the VM of the main one.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use serde_json::{Value, json};
use tart_kubelet_tests::wait;

use crate::scene::{DEADLINE, IMAGE, Scene, state_of};

fn shell(name: &str, script: &str) -> Value {
    let mounts = json!([{"name": "scratch", "mountPath": "/private/tmp/scratch"}]);
    json!({"name": name, "image": IMAGE, "command": ["/bin/sh", "-c", script], "volumeMounts": mounts})
}

fn pod(scene: &Scene, name: &str, init: &[Value], policy: &str) -> Value {
    let main = shell("main", "cat /private/tmp/scratch/trace; hostname");
    let spec = json!({
        "initContainers": init, "restartPolicy": policy, "volumes": [{"name": "scratch", "emptyDir": {}}],
    });
    scene.pod(name, &main, &spec)
}

fn init_statuses(pod: &Pod) -> &[ContainerStatus] {
    pod.status.as_ref().and_then(|status| status.init_container_statuses.as_deref()).unwrap_or_default()
}

fn initialized(pod: &Pod) -> String {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let mut found = conditions
        .filter(|one| one.type_ == "Initialized")
        .map(|one| format!("{} {}", one.status, one.message.as_deref().unwrap_or_default()));
    found.next().unwrap_or_default()
}

#[tokio::test]
async fn they_run_in_turn_before_the_main_container() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("init").await?;
    let trace = |word: &str| format!("echo {word} >>/private/tmp/scratch/trace; echo {word} said");
    let init = [shell("one", &trace("first")), shell("two", &trace("second"))];
    scene.create(&pod(&scene, "turns", &init, "Never")).await?;
    let pod = scene.phase("turns", "Succeeded").await?;
    assert_eq!(scene.log(&pod, "main", 0)?, ["first", "second", "turns"]);
    assert_eq!(scene.log(&pod, "one", 0)?, ["first said"]);
    assert_eq!(scene.log(&pod, "two", 0)?, ["second said"]);
    let states: Vec<(String, bool, Option<i32>)> = init_statuses(&pod)
        .iter()
        .map(|one| {
            let end = one.state.as_ref().and_then(|state| state.terminated.as_ref());
            (one.name.clone(), one.ready, end.map(|end| end.exit_code))
        })
        .collect();
    assert_eq!(states, [("one".into(), true, Some(0)), ("two".into(), true, Some(0))]);
    assert_eq!(initialized(&pod), "True ");
    Ok(())
}

#[tokio::test]
async fn one_that_fails_fails_its_pod() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("init-fails").await?;
    let init = [shell("one", "exit 3"), shell("two", "true")];
    scene.create(&pod(&scene, "fails", &init, "Never")).await?;
    let pod = scene.phase("fails", "Failed").await?;
    let [one, two] = init_statuses(&pod) else { anyhow::bail!("{:?}", init_statuses(&pod)) };
    let end = one.state.as_ref().and_then(|state| state.terminated.as_ref()).context("it has not ended")?;
    assert_eq!(end.exit_code, 3);
    ensure!(two.state.as_ref().is_some_and(|state| state.waiting.is_some()), "{two:?}");
    let main = state_of(&pod).and_then(|state| state.waiting).and_then(|waiting| waiting.reason);
    assert_eq!(main.as_deref(), Some("PodInitializing"));
    assert_eq!(initialized(&pod), "False containers with incomplete status: [one two]");
    scene.no_vms().await
}

#[tokio::test]
async fn one_that_fails_is_tried_again_in_the_same_vm() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("init-again").await?;
    let once =
        "echo tried >>/private/tmp/scratch/trace; [ $(grep -c tried /private/tmp/scratch/trace) -ge 2 ]";
    let later = "while [ ! -e /private/tmp/scratch/go ]; do sleep 0.1; done";
    let init = [shell("one", once), shell("two", later)];
    scene.create(&pod(&scene, "again", &init, "OnFailure")).await?;
    let second = wait::until(&scene.pods, "again", "the second's turn", DEADLINE, |pod| {
        let states = init_statuses(pod);
        states.len() == 2 && states[1].state.as_ref().is_some_and(|state| state.running.is_some())
    });
    let pod = second.await?;
    let one = &init_statuses(&pod)[0];
    assert_eq!((one.restart_count, one.ready), (1, true));
    let last = one.last_state.as_ref().and_then(|last| last.terminated.as_ref());
    assert_eq!(last.map(|end| end.exit_code), Some(1));
    assert_eq!(initialized(&pod), "False containers with incomplete status: [two]");
    let main = state_of(&pod).and_then(|state| state.waiting).and_then(|waiting| waiting.reason);
    assert_eq!(main.as_deref(), Some("PodInitializing"));
    assert_eq!(scene.vms().await?.len(), 1);
    let uid = pod.metadata.uid.context("no UID")?;
    std::fs::write(scene.agent.state_dir().join("volumes").join(uid).join("scratch/go"), "")?;
    let pod = scene.phase("again", "Succeeded").await?;
    assert_eq!(scene.log(&pod, "main", 0)?, ["tried", "tried", "again"]);
    Ok(())
}

#[tokio::test]
async fn their_restarts_are_counted_and_told_apart_whatever_vm_they_run_in() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("init-count").await?;
    // Fails the first time; the main container fails once, too, and has a new VM then.
    let init = "cd /private/tmp/scratch; echo x >>tries; n=$(grep -c x tries); echo try $n; [ $n -ne 1 ]";
    let mut pod = pod(&scene, "count", &[shell("one", init)], "OnFailure");
    let main = "cd /private/tmp/scratch; [ -e again ] || { touch again; exit 1; }";
    pod["spec"]["containers"][0]["command"] = json!(["/bin/sh", "-c", main]);
    scene.create(&pod).await?;
    let pod = scene.phase("count", "Succeeded").await?;
    let [one] = init_statuses(&pod) else { anyhow::bail!("{:?}", init_statuses(&pod)) };
    assert_eq!(one.restart_count, 2);
    let last = one.last_state.as_ref().and_then(|last| last.terminated.as_ref());
    assert_eq!(last.map(|end| end.exit_code), Some(0));
    assert_eq!(scene.log(&pod, "one", 1)?, ["try 2"]);
    assert_eq!(scene.log(&pod, "one", 2)?, ["try 3"]);
    ensure!(scene.log(&pod, "one", 0).is_err(), "only the last two are kept");
    Ok(())
}

#[tokio::test]
async fn while_they_run_again_the_rest_of_the_pod_is_told() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("init-told").await?;
    // Succeeds at once, and in the second VM when it may.
    let init = "cd /private/tmp/scratch; [ -e first ] || { touch first; exit; }; until [ -e go ]; do sleep 0.1; done";
    let mut pod = pod(&scene, "told", &[shell("one", init)], "OnFailure");
    let main = "cd /private/tmp/scratch; [ -e again ] || { touch again; exit 1; }";
    pod["spec"]["containers"][0]["command"] = json!(["/bin/sh", "-c", main]);
    scene.create(&pod).await?;
    // The API server takes no status in which an init container that has succeeded runs.
    let again = wait::until(&scene.pods, "told", "the second VM", DEADLINE, |pod| {
        let status = pod.status.clone().unwrap_or_default();
        let main = status.container_statuses.unwrap_or_default();
        main.first().is_some_and(|main| main.restart_count == 1) && status.pod_ip.is_some()
    });
    let found = again.await?;
    let uid = found.metadata.uid.clone().context("no UID")?;
    ensure!(init_statuses(&found).iter().all(|one| one.ready), "{:?}", init_statuses(&found));
    std::fs::write(scene.agent.state_dir().join("volumes").join(uid).join("scratch/go"), "")?;
    let pod = scene.phase("told", "Succeeded").await?;
    assert_eq!(init_statuses(&pod)[0].restart_count, 1);
    Ok(())
}

#[tokio::test]
async fn one_that_keeps_failing_backs_off_and_says_so() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("init-loop").await?;
    scene.create(&pod(&scene, "loop", &[shell("one", "exit 3"), shell("two", "true")], "Always")).await?;
    let waits = wait::until(&scene.pods, "loop", "a back-off", DEADLINE, |pod| {
        let one =
            init_statuses(pod).first().and_then(|one| one.state.as_ref()?.waiting.as_ref()?.reason.clone());
        one.as_deref() == Some("CrashLoopBackOff")
    });
    let pod = waits.await?;
    let uid = pod.metadata.uid.clone().context("no UID")?;
    let words = format!("Back-off restarting failed container one in pod loop_{}({uid})", scene.namespace());
    scene.told_as("loop", "BackOff", &words).await?;
    assert_eq!(initialized(&pod), "False containers with incomplete status: [one two]");
    let waiting = Some("PodInitializing".to_owned());
    assert_eq!(reasons(init_statuses(&pod)), [Some("CrashLoopBackOff".to_owned()), waiting.clone()]);
    let main =
        pod.status.as_ref().and_then(|status| status.container_statuses.as_deref()).unwrap_or_default();
    assert_eq!(reasons(main), [waiting]);
    scene.kubectl.run(["delete", "pod", "loop"]).await?;
    scene.nothing_left().await
}

#[tokio::test]
async fn one_that_cannot_be_started_says_why() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("init-why").await?;
    let mut lost = shell("one", "");
    lost["command"] = json!(["/no/such/program"]);
    for (name, policy) in [("once", "Never"), ("again", "Always")] {
        scene.create(&pod(&scene, name, std::slice::from_ref(&lost), policy)).await?;
        scene.told_as(name, "Failed", "Error: cannot start `/no/such/program` in the guest").await?;
        scene.kubectl.run(["delete", "pod", name]).await?;
    }
    scene.nothing_left().await
}

/// A container that prints a variable out of an object.
fn printing(name: &str, source: &Value) -> Value {
    let mut container = shell(name, "echo $LATE >>/private/tmp/scratch/trace");
    container["env"] = json!([{"name": "LATE", "valueFrom": source}]);
    container
}

fn reasons(all: &[ContainerStatus]) -> Vec<Option<String>> {
    all.iter().map(|one| one.state.as_ref()?.waiting.as_ref()?.reason.clone()).collect()
}

#[tokio::test]
async fn what_others_have_made_meanwhile_is_in_the_variables_of_the_next() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("init-late").await?;
    let go = "until [ -e /private/tmp/scratch/go ]; do sleep 0.1; done";
    let from_map = json!({"configMapKeyRef": {"name": "made", "key": "word"}});
    let from_secret = json!({"secretKeyRef": {"name": "made", "key": "word"}});
    let init = [shell("one", go), printing("two", &from_map), printing("three", &from_secret)];
    let mut pod = pod(&scene, "late", &init, "Never");
    pod["metadata"]["labels"] = json!({"word": "old"});
    let label = json!({"fieldRef": {"fieldPath": "metadata.labels['word']"}});
    pod["spec"]["containers"][0]["env"] = json!([{"name": "LATE", "valueFrom": label}]);
    let command = json!(["/bin/sh", "-c", "cat /private/tmp/scratch/trace; echo $LATE; echo $(LATE) again"]);
    pod["spec"]["containers"][0]["command"] = command;
    scene.create(&pod).await?;
    let init_reasons = async |what: &str, expected: [Option<&str>; 3]| {
        wait::until(&scene.pods, "late", what, DEADLINE, |pod| {
            reasons(init_statuses(pod)) == expected.map(|reason| reason.map(str::to_owned))
        })
        .await
    };
    // Nothing that a later one needs keeps the first from running.
    let (waits, lacks) = (Some("PodInitializing"), Some("CreateContainerConfigError"));
    let running = init_reasons("its first to run", [None, waits, waits]).await?;
    let uid = running.metadata.uid.context("no UID")?;
    scene.kubectl.run(["label", "pod", "late", "word=new", "--overwrite"]).await?;
    std::fs::write(scene.agent.state_dir().join("volumes").join(uid).join("scratch/go"), "")?;
    // Only the one whose turn it is says what it lacks.
    let lacking = init_reasons("the second to lack something", [None, lacks, waits]).await?;
    assert_eq!(initialized(&lacking), "False containers with incomplete status: [two three]");
    let status = lacking.status.clone().context("no status")?;
    assert_eq!(reasons(&status.container_statuses.unwrap_or_default()), [waits.map(str::to_owned)]);
    let shown = scene.kubectl.run(["get", "pod", "late", "--no-headers"]).await?;
    ensure!(shown.contains("Init:CreateContainerConfigError"), "{shown}");
    scene.told("pod", "late", "Error: configmap \"made\" not found").await?;
    scene.kubectl.run(["create", "configmap", "made", "--from-literal=word=mapped"]).await?;
    init_reasons("the third to lack something", [None, None, lacks]).await?;
    scene.told("pod", "late", "Error: secret \"made\" not found").await?;
    scene.kubectl.run(["create", "secret", "generic", "made", "--from-literal=word=sesame-in-turn"]).await?;
    let pod = scene.phase("late", "Succeeded").await?;
    assert_eq!(scene.log(&pod, "main", 0)?, ["mapped", "sesame-in-turn", "new", "new again"]);
    ensure!(init_statuses(&pod).iter().all(|one| one.restart_count == 0), "{:?}", init_statuses(&pod));
    scene.kubectl.run(["delete", "pod", "late"]).await?;
    scene.nothing_left().await?;
    scene.nowhere_on_disk("sesame-in-turn").await
}

#[tokio::test]
async fn one_that_is_tried_again_has_what_is_new_and_one_that_waits_can_be_deleted() -> Result<()> {
    let (scene, agent) = Scene::with_agent("init-late-again").await?;
    scene.kubectl.run(["create", "configmap", "made", "--from-literal=word=old"]).await?;
    let source = json!({"configMapKeyRef": {"name": "made", "key": "word"}});
    let mut one = printing("one", &source);
    // The first try ends when its ConfigMap is another one.
    let script = "cd /private/tmp/scratch; echo $LATE >>trace; [ $LATE = new ] && exit; until [ -e go ]; do sleep 0.1; done; exit 1";
    one["command"] = json!(["/bin/sh", "-c", script]);
    scene.create(&pod(&scene, "again", &[one], "OnFailure")).await?;
    let running = wait::until(&scene.pods, "again", "the first try", DEADLINE, |pod| {
        init_statuses(pod).iter().any(|one| one.state.as_ref().is_some_and(|state| state.running.is_some()))
    });
    let uid = running.await?.metadata.uid.context("no UID")?;
    let newer = r#"{"data":{"word":"new"}}"#;
    scene.kubectl.run(["patch", "configmap", "made", "--type=merge", "--patch", newer]).await?;
    std::fs::write(scene.agent.state_dir().join("volumes").join(uid).join("scratch/go"), "")?;
    let pod_again = scene.phase("again", "Succeeded").await?;
    assert_eq!(scene.log(&pod_again, "main", 0)?, ["old", "new", "again"]);

    let lost = json!({"configMapKeyRef": {"name": "never-made", "key": "word"}});
    let mut waits = pod(&scene, "waits", &[shell("one", "true")], "Never");
    waits["spec"]["containers"][0]["env"] = json!([{"name": "LATE", "valueFrom": lost}]);
    scene.create(&waits).await?;
    let lacks = |pod: &Pod| {
        let main = pod.status.as_ref().and_then(|status| status.container_statuses.clone());
        reasons(&main.unwrap_or_default()) == [Some("CreateContainerConfigError".to_owned())]
            && initialized(pod) == "True "
    };
    wait::until(&scene.pods, "waits", "its container to lack something", DEADLINE, lacks).await?;
    // Nor does an agent that comes back forget what is asked of it.
    agent.kill9()?;
    let _agent = scene.agent.start()?;
    wait::until(&scene.pods, "waits", "the same after a restart", DEADLINE, lacks).await?;
    scene.kubectl.run(["delete", "pod", "waits"]).await?;
    scene.kubectl.run(["delete", "pod", "again"]).await?;
    scene.nothing_left().await
}

#[tokio::test]
async fn one_with_another_image_is_refused() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("init-image").await?;
    let mut other = shell("one", "true");
    other["image"] = json!("registry.test/linux/busybox:1");
    scene.create(&pod(&scene, "other", &[other], "Never")).await?;
    scene.phase("other", "Failed").await?;
    scene.told("pod", "other", "spec.initContainers[0].image: an init container runs in the Pod's VM").await
}

#[tokio::test]
async fn a_pod_that_is_deleted_meanwhile_goes_at_once_and_one_without_its_agent_goes_on() -> Result<()> {
    let (scene, agent) = Scene::with_agent("init-deleted").await?;
    let begun = async |name: &str| {
        wait::until(&scene.pods, name, "its init container to run", DEADLINE, |pod| {
            init_statuses(pod)
                .first()
                .and_then(|one| one.state.as_ref())
                .is_some_and(|state| state.running.is_some())
        })
        .await
    };
    scene.create(&pod(&scene, "deleted", &[shell("one", "sleep 1000")], "Always")).await?;
    begun("deleted").await?;
    scene.kubectl.run(["delete", "pod", "deleted"]).await?;
    scene.nothing_left().await?;
    let waits =
        "echo once >>/private/tmp/scratch/trace; until [ -e /private/tmp/scratch/go ]; do sleep 0.1; done";
    scene.create(&pod(&scene, "goes-on", &[shell("one", waits)], "Never")).await?;
    let found = begun("goes-on").await?;
    agent.kill9()?;
    let uid = found.metadata.uid.context("no UID")?;
    std::fs::write(scene.agent.state_dir().join("volumes").join(uid).join("scratch/go"), "")?;
    let _agent = scene.agent.start()?;
    let pod = scene.phase("goes-on", "Succeeded").await?;
    assert_eq!(scene.log(&pod, "main", 0)?, ["once", "goes-on"]);
    Ok(())
}
