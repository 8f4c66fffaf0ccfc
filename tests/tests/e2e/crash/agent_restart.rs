//! The agent dies and comes back; Pods do not notice.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use nix::sys::signal::Signal;
use serde_json::json;
use tart_kubelet_tests::wait;

use super::{boots, container};
use crate::scene::{DEADLINE, Scene, phase_of};

/// The process of the one VM that runs on the scene's Mac: another boot would be another process.
fn vm_process(scene: &Scene) -> Result<String> {
    let names = std::fs::read_dir(scene.mac.host().join("running"))?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<Result<Vec<_>>>()?;
    let [name] = names.as_slice() else { anyhow::bail!("not one VM, but {names:?}") };
    Ok(name.clone())
}

/// Waits until an agent that was started again has said something to the API: the Lease is its first word.
pub(crate) async fn agent_is_back(scene: &Scene, since: jiff::Timestamp) -> Result<()> {
    let leases: Api<Lease> = Api::namespaced(scene.control_plane.client().await?, "kube-node-lease");
    let renewed =
        |lease: &Lease| lease.spec.as_ref().and_then(|spec| spec.renew_time.as_ref()).map(|time| time.0);
    wait::until(&leases, &scene.node, "renewed", DEADLINE, |lease| renewed(lease) > Some(since))
        .await
        .map(drop)
}

#[tokio::test]
async fn a_vm_outlives_its_agent_and_is_adopted_again() -> Result<()> {
    let (scene, agent) = Scene::with_agent("adopt").await?;
    scene.create(&scene.pod("adopt", &json!({}), &json!({}))).await?;
    let pod = wait::until(&scene.pods, "adopt", "ready", DEADLINE, |pod| {
        pod.status
            .as_ref()
            .and_then(|status| status.container_statuses.as_ref()?.first())
            .is_some_and(|one| one.ready)
    })
    .await?;
    let vm = Scene::vm_of(&pod)?;
    let before = vm_process(&scene)?;

    agent.kill9()?;
    assert_eq!(vm_process(&scene)?, before, "the VM runs on");
    let restart = jiff::Timestamp::now();
    let _agent = scene.agent.start()?;
    agent_is_back(&scene, restart).await?;
    // What it does at last shows that it knows the VM; that it did not start it again, its process shows.
    assert_eq!(vm_process(&scene)?, before);
    assert_eq!(scene.vms().await?, std::slice::from_ref(&vm));
    // When it has seen another Pod through its start, it has looked at this one, too.
    scene.create(&scene.pod("next", &json!({}), &json!({}))).await?;
    scene.phase("next", "Running").await?;
    let after = scene.pods.get("adopt").await?;
    assert_eq!(phase_of(&after), "Running");
    assert_eq!(after.metadata.resource_version, pod.metadata.resource_version, "{:?}", after.status);

    scene.shut_down(&vm).await;
    scene.phase("adopt", "Succeeded").await?;
    scene.kubectl.run(["delete", "pod", "next"]).await?;
    scene.no_vms().await
}

#[tokio::test]
async fn an_exit_code_that_nobody_saw_is_not_lost() -> Result<()> {
    let (scene, agent) = Scene::with_agent("unseen").await?;
    let script = "touch /private/tmp/up; while [ ! -e /private/tmp/go ]; do sleep 0.05; done; exit 7";
    scene.create(&scene.pod("unseen", &json!({"command": ["/bin/sh", "-c", script]}), &json!({}))).await?;
    let vm = Scene::vm_of(&scene.phase("unseen", "Running").await?)?;

    agent.kill9()?;
    scene.let_go(&vm).await;
    wait::eventually("a VM that has ended", DEADLINE, async || {
        let running = scene.running_vms().await?;
        ensure!(running.is_empty(), "{running:?} still run");
        Ok(())
    })
    .await?;
    let _agent = scene.agent.start()?;
    let pod = scene.phase("unseen", "Failed").await?;
    let statuses = pod.status.and_then(|status| status.container_statuses).context("no container status")?;
    let end =
        statuses[0].state.as_ref().and_then(|state| state.terminated.as_ref()).context("not terminated")?;
    assert_eq!(end.exit_code, 7);
    assert_eq!(statuses[0].restart_count, 0);
    scene.no_vms().await
}

#[tokio::test]
async fn a_pod_that_is_deleted_while_the_agent_is_away_is_cleaned_up() -> Result<()> {
    let (scene, agent) = Scene::with_agent("away").await?;
    for name in ["graceful", "forced"] {
        scene.create(&scene.pod(name, &json!({}), &json!({}))).await?;
    }
    for name in ["graceful", "forced"] {
        scene.phase(name, "Running").await?;
    }
    agent.kill9()?;
    scene.kubectl.run(["delete", "pod", "graceful", "--wait=false"]).await?;
    scene.kubectl.run(["delete", "pod", "forced", "--grace-period=0", "--force"]).await?;
    assert_eq!(scene.running_vms().await?.len(), 2, "nobody is there to stop them");
    let _agent = scene.agent.start()?;
    wait::until_gone(&scene.pods, "graceful", DEADLINE).await?;
    scene.no_vms().await
}

#[tokio::test]
async fn a_container_that_ended_before_it_was_stopped_is_over() -> Result<()> {
    let (scene, agent) = Scene::with_agent("too-late").await?;
    let other = "registry.test/macos/other:1";
    scene.mac.add_image(other, &json!({}))?;
    let script = "until [ -e /private/tmp/go ]; do sleep 0.05; done";
    scene.create(&scene.pod("ends", &json!({"command": ["/bin/sh", "-c", script]}), &json!({}))).await?;
    let pod = scene.phase("ends", "Running").await?;
    let uid = pod.metadata.uid.clone().context("no UID")?;
    agent.kill9()?;
    scene.kubectl.run(["set", "image", "pod/ends", &format!("main={other}")]).await?;
    scene.let_go(&Scene::vm_of(&pod)?).await;
    let attempt = scene.agent.state_dir().join("pods").join(uid).join("0");
    wait::eventually("an end", DEADLINE, async || {
        ensure!(attempt.join("result.json").exists());
        Ok(())
    })
    .await?;
    // As an agent leaves it that had looked a moment before.
    let stop = json!({"deadline": jiff::Timestamp::now(), "cause": "changed"});
    std::fs::write(attempt.join("stop.json"), stop.to_string())?;
    let _agent = scene.agent.start()?;
    let pod = wait::until(&scene.pods, "ends", "over, or started again", DEADLINE, |pod| {
        phase_of(pod) == "Succeeded" || container(pod).is_ok_and(|status| status.restart_count > 0)
    })
    .await?;
    assert_eq!((phase_of(&pod), boots(&scene)?), ("Succeeded", 1));
    scene.no_vms().await
}

#[tokio::test]
async fn a_vm_that_loses_its_shim_is_stopped_and_its_pod_fails() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("orphan").await?;
    scene.create(&scene.pod("orphan", &json!({}), &json!({}))).await?;
    scene.phase("orphan", "Running").await?;
    scene.kill_shims()?;
    scene.phase("orphan", "Failed").await?;
    scene.told("pod", "orphan", "ContainerStatusUnknown").await?;
    scene.no_vms().await
}

#[tokio::test]
async fn a_shim_that_dies_at_once_is_told_and_not_started_without_end() -> Result<()> {
    let scene = Scene::new("stillborn").await?;
    // Each of them, before it has taken its VM up.
    let agent = scene.agent.clone().env("TART_KUBELET_CRASH", "shim.started").start()?;
    scene.node_ready(&agent).await?;
    let begun = Instant::now();
    scene.create(&scene.pod("born", &json!({"command": ["true"]}), &json!({}))).await?;
    let words = "cannot start the VM: its shim has ended (signal: 9 (SIGKILL)) before it had taken the VM up; \
                 what it has said is in ";
    scene.told_as("born", "FailedSync", words).await?;
    // Longer and longer it waits before the next one.
    let deaths = async || anyhow::Ok(scene.shim_log("born").await?.matches("crash point").count());
    wait::eventually("another start", DEADLINE, async || {
        ensure!(deaths().await? >= 4, "there was none");
        Ok(())
    })
    .await?;
    let (deaths, taken) = (deaths().await?, begun.elapsed());
    // The last of the pauses alone takes as long; whatever the API has to say of the Pod cuts the first ones short.
    ensure!(taken >= Duration::from_secs(4), "{deaths} starts within {taken:?}");
    agent.kill9()?;
    let _agent = scene.agent.start()?;
    let pod = scene.phase("born", "Succeeded").await?;
    assert_eq!((container(&pod)?.restart_count, boots(&scene)?), (0, 1));
    Ok(())
}

#[tokio::test]
async fn a_vm_that_somebody_has_deleted_keeps_no_pod() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("deleted").await?;
    let always = json!({"restartPolicy": "Always"});
    scene.create(&scene.pod("running", &json!({}), &json!({}))).await?;
    scene.create(&scene.pod("restarting", &json!({}), &always)).await?;
    let running = Scene::vm_of(&scene.phase("running", "Running").await?)?;
    let restarting = Scene::vm_of(&scene.phase("restarting", "Running").await?)?;
    let vms = scene.mac.tart_home().join("vms");
    // One goes under its running VM, as `rm` does it; the other between the VM's end and the agent's own look.
    std::fs::remove_dir_all(vms.join(&running))?;
    scene.mac.tart(["stop", &restarting]).await?;
    let _ = scene.mac.tart(["delete", &restarting]).await;
    wait::until(&scene.pods, "restarting", "running again", DEADLINE, |pod| {
        Scene::vm_of(pod).is_ok_and(|vm| vm != restarting) && phase_of(pod) == "Running"
    })
    .await?;
    scene.kubectl.run(["delete", "pod", "running", "restarting", "--wait=false"]).await?;
    for name in ["running", "restarting"] {
        let gone = wait::until_gone(&scene.pods, name, DEADLINE).await;
        gone.with_context(|| scene.agent_log())?;
    }
    scene.nothing_left().await
}

#[tokio::test]
async fn agents_that_are_all_restarted_at_once_find_all_as_it_was() -> Result<()> {
    let mut macs = Vec::new();
    for name in ["fleet-a", "fleet-b", "fleet-c"] {
        let (scene, agent) = Scene::with_agent(name).await?;
        scene.create(&scene.pod("web", &json!({}), &json!({}))).await?;
        let vm = Scene::vm_of(&scene.phase("web", "Running").await?)?;
        macs.push((scene, agent, vm));
    }
    for (_, agent, _) in &macs {
        agent.kill9()?;
    }
    let since = jiff::Timestamp::now();
    let mut agents = Vec::new();
    for (scene, ..) in &macs {
        agents.push(scene.agent.start()?);
    }
    for (scene, _, vm) in &macs {
        agent_is_back(scene, since).await?;
        // When it has seen another Pod through its start, it has looked at this one, too.
        scene.create(&scene.pod("next", &json!({}), &json!({}))).await?;
        let next = Scene::vm_of(&scene.phase("next", "Running").await?)?;
        let mut running = scene.running_vms().await?;
        running.retain(|one| *one != next);
        assert_eq!(running, std::slice::from_ref(vm));
        assert_eq!(boots(scene)?, 2, "nothing was started again");
        let pod = scene.pods.get("web").await?;
        assert_eq!((phase_of(&pod), &Scene::vm_of(&pod)?), ("Running", vm));
    }
    Ok(())
}

#[tokio::test]
async fn a_shim_whose_directory_was_deleted_does_not_stay_for_ever() -> Result<()> {
    let (scene, agent) = Scene::with_agent("erased").await?;
    scene.create(&scene.pod("erased", &json!({}), &json!({}))).await?;
    let vm = Scene::vm_of(&scene.phase("erased", "Running").await?)?;
    agent.kill9()?;
    std::fs::remove_dir_all(scene.agent.state_dir().join("pods"))?;
    scene.shut_down(&vm).await;
    wait::eventually("a shim that gives up", DEADLINE, async || {
        let log = scene.shim_log("erased").await?;
        ensure!(log.contains("the VM's directory is gone; nobody will read how the VM ended"), "{log}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn sigterm_ends_the_agent_and_leaves_the_vm_alone() -> Result<()> {
    let (scene, agent) = Scene::with_agent("term").await?;
    scene.create(&scene.pod("term", &json!({}), &json!({}))).await?;
    let vm = Scene::vm_of(&scene.phase("term", "Running").await?)?;
    agent.kill(Signal::SIGTERM)?;
    let status = agent.wait_for_exit(DEADLINE).await?;
    ensure!(status.success(), "{status}: {}", agent.log()?);
    assert_eq!(scene.running_vms().await?, [vm]);
    Ok(())
}
