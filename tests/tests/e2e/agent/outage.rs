//! The API server is away; VMs and their ends are not.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use tart_kubelet_tests::status_webhook::StatusWebhook;
use tart_kubelet_tests::wait;

use crate::crash::boots;
use crate::scene::{DEADLINE, Scene};

fn exit_code(pod: &Pod) -> Result<i32> {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    let state = statuses.and_then(|all| all.first()).and_then(|status| status.state.as_ref());
    Ok(state.and_then(|state| state.terminated.as_ref()).context("not terminated")?.exit_code)
}

/// A command that ends with `code` as soon as somebody says so.
fn until_told(code: u8) -> serde_json::Value {
    let script = format!("while [ ! -e /private/tmp/go ]; do sleep 0.05; done; exit {code}");
    json!({"command": ["/bin/sh", "-c", script]})
}

async fn end(scene: &Scene, vm: &str) -> Result<()> {
    scene.let_go(vm).await;
    wait::eventually("the end of a VM", DEADLINE, async || {
        let running = scene.running_vms().await?;
        ensure!(running.iter().all(|running| running != vm), "{running:?} run");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn ends_that_nobody_could_be_told_of_are_told_later() -> Result<()> {
    let (scene, proxy, agent) = Scene::behind_proxy("outage").await?;
    for (name, code) in [("early", 7), ("late", 8)] {
        scene.create(&scene.pod(name, &until_told(code), &json!({}))).await?;
    }
    let early = Scene::vm_of(&scene.phase("early", "Running").await?)?;
    let late = Scene::vm_of(&scene.phase("late", "Running").await?)?;
    proxy.sever();
    end(&scene, &early).await?;
    wait::eventually("a status that could not be told", DEADLINE, async || {
        ensure!(agent.log()?.contains("cannot publish the Pod's status"), "{}", agent.log()?);
        Ok(())
    })
    .await?;
    // The agent is rolled meanwhile, as if that were not enough.
    let agent = agent.restart()?;
    end(&scene, &late).await?;
    proxy.open();
    for (name, code) in [("early", 7), ("late", 8)] {
        let pod = scene.phase(name, "Failed").await?;
        assert_eq!(exit_code(&pod)?, code, "{}", agent.log()?);
    }
    scene.no_vms().await
}

#[tokio::test]
async fn an_end_outlasts_many_calls_that_fail_and_one_that_hangs() -> Result<()> {
    let (scene, proxy, agent) = Scene::behind_proxy("long-outage").await?;
    scene.create(&scene.pod("patient", &until_told(7), &json!({}))).await?;
    let vm = Scene::vm_of(&scene.phase("patient", "Running").await?)?;
    let tries = async |why: &str, count: usize| {
        wait::eventually(&format!("{count} tries in vain: {why}"), DEADLINE, async || {
            let log = agent.log()?;
            let failed = log.lines().filter(|line| line.contains("cannot publish the Pod's status"));
            let found = failed.filter(|line| line.contains(why)).count();
            ensure!(found >= count, "there were {found}: {log}");
            Ok(())
        })
        .await
    };
    proxy.sever();
    end(&scene, &vm).await?;
    // From here on it is the last word that nobody hears.
    scene.no_vms().await?;
    tries("", 4).await?;
    proxy.block();
    tries("no answer within 15 s", 1).await?;
    proxy.open();
    let pod = scene.phase("patient", "Failed").await?;
    assert_eq!((exit_code(&pod)?, boots(&scene)?), (7, 1));
    scene.no_vms().await
}

#[tokio::test]
async fn an_end_that_is_not_taken_at_once_is_told_again() -> Result<()> {
    let (scene, agent) = Scene::with_agent("objected").await?;
    let webhook = StatusWebhook::start(scene.control_plane, scene.namespace()).await?;
    // A conflict with somebody else who writes it, and a stranger on the way who knows nothing of the Pod.
    for (name, code, times) in [("conflict", 409, 3), ("stranger", 404, 1)] {
        scene.create(&scene.pod(name, &until_told(7), &json!({}))).await?;
        let vm = Scene::vm_of(&scene.phase(name, "Running").await?)?;
        wait::eventually("an API server that asks", DEADLINE, async || {
            // Any change of the status will do.
            let condition = json!([{"type": "example.com/asked", "status": "True", "reason": webhook.calls().to_string()}]);
            let patch = json!({"status": {"conditions": condition}}).to_string();
            scene.kubectl.run(["patch", "pod", name, "--subresource=status", "--patch", &patch]).await?;
            ensure!(webhook.calls() > 0, "it does not");
            Ok(())
        })
        .await?;
        webhook.refuse(code, times);
        end(&scene, &vm).await?;
        let pod = scene.phase(name, "Failed").await.with_context(|| agent.log().unwrap_or_default())?;
        assert_eq!((exit_code(&pod)?, webhook.refusals_left()), (7, 0), "{name}");
    }
    Ok(())
}

#[tokio::test]
async fn a_deletion_during_an_outage_is_carried_out_after_it() -> Result<()> {
    let (scene, proxy, agent) = Scene::behind_proxy("missed").await?;
    for name in ["graceful", "forced"] {
        scene.create(&scene.pod(name, &json!({}), &json!({}))).await?;
    }
    for name in ["graceful", "forced"] {
        scene.phase(name, "Running").await?;
    }
    proxy.block();
    scene.kubectl.run(["delete", "pod", "graceful", "--wait=false"]).await?;
    scene.kubectl.run(["delete", "pod", "forced", "--grace-period=0", "--force"]).await?;
    assert_eq!(scene.running_vms().await?.len(), 2, "nobody has told the agent");
    proxy.open();
    let gone = wait::until_gone(&scene.pods, "graceful", DEADLINE).await;
    gone.with_context(|| agent.log().unwrap_or_default())?;
    scene.nothing_left().await
}

#[tokio::test]
async fn an_end_in_time_is_no_missed_deadline_whenever_it_is_told() -> Result<()> {
    let (scene, proxy, agent) = Scene::behind_proxy("in-time").await?;
    let spec = json!({"activeDeadlineSeconds": 3600});
    scene.create(&scene.pod("in-time", &until_told(0), &spec)).await?;
    let pod = scene.phase("in-time", "Running").await?;
    let start = pod.status.as_ref().and_then(|status| status.start_time.clone()).context("no start")?.0;
    // What is asked for meanwhile is lost, not late.
    proxy.sever();
    end(&scene, &Scene::vm_of(&pod)?).await?;
    // The deadline comes after the end, and before anybody is told of it.
    let active = Timestamp::now().duration_since(start).as_secs() + 1;
    let patch = format!(r#"{{"spec": {{"activeDeadlineSeconds": {active}}}}}"#);
    scene.kubectl.run(["patch", "pod", "in-time", "--patch", &patch]).await?;
    let deadline = start + Duration::from_secs(active.unsigned_abs());
    wait::eventually("the deadline", DEADLINE, async || {
        ensure!(Timestamp::now() > deadline, "it is not over");
        Ok(())
    })
    .await?;
    proxy.open();
    let pod = scene.phase("in-time", "Succeeded").await.with_context(|| agent.log().unwrap_or_default())?;
    assert_eq!(exit_code(&pod)?, 0);
    Ok(())
}

#[tokio::test]
async fn a_pod_that_is_over_keeps_no_secrets_until_somebody_can_be_told() -> Result<()> {
    const SECRET: &str = "battery-correct-horse";
    let (scene, proxy, agent) = Scene::behind_proxy("untold").await?;
    let literal = format!("--from-literal=token={SECRET}");
    scene.kubectl.run(["create", "secret", "generic", "keys", &literal]).await?;
    let mut container = until_told(0);
    container["volumeMounts"] = json!([{"name": "keys", "mountPath": "/private/tmp/keys"}]);
    let spec = json!({"volumes": [{"name": "keys", "secret": {"secretName": "keys"}}]});
    scene.create(&scene.pod("over", &container, &spec)).await?;
    let vm = Scene::vm_of(&scene.phase("over", "Running").await?)?;
    proxy.block();
    end(&scene, &vm).await?;
    scene.nowhere_on_disk(SECRET).await?;
    // An agent that knows nothing but what it finds runs nothing again.
    let agent = agent.restart()?;
    proxy.open();
    let pod = scene.phase("over", "Succeeded").await.with_context(|| agent.log().unwrap_or_default())?;
    assert_eq!(exit_code(&pod)?, 0);
    scene.no_vms().await
}
