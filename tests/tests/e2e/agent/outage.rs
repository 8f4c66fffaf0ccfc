//! Outages of the API server: VMs run on, and the agent publishes their ends later.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use serde_json::json;
use tart_kubelet_tests::status_webhook::StatusWebhook;
use tart_kubelet_tests::wait;

use crate::scene::{DEADLINE, PodBuilder, PodView as _, Scene, UNTIL_FINISHED};

/// A Pod whose command ends with `code` when the test lets it.
fn ending<'a>(scene: &'a Scene, name: &str, code: i32) -> PodBuilder<'a> {
    scene.pod(name).sh(format!("{UNTIL_FINISHED}; exit {code}"))
}

/// Lets a command end, and waits until its VM has stopped.
async fn end(scene: &Scene, vm: &str) -> Result<()> {
    scene.finish_command(vm).await;
    wait::eventually("the end of a VM", DEADLINE, async || {
        let running = scene.running_vms().await?;
        ensure!(running.iter().all(|running| running != vm), "{running:?} run");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn ends_during_an_outage_are_published_later() -> Result<()> {
    let (scene, proxy, agent) = Scene::behind_proxy("outage").await?;
    for (name, code) in [("early", 7), ("late", 8)] {
        ending(&scene, name, code).create().await?;
    }
    let early = scene.phase("early", "Running").await?.vm()?;
    let late = scene.phase("late", "Running").await?.vm()?;
    proxy.sever();
    end(&scene, &early).await?;
    wait::eventually("a status that the agent cannot publish", DEADLINE, async || {
        ensure!(agent.log()?.contains("cannot publish the Pod's status"), "{}", agent.log()?);
        Ok(())
    })
    .await?;
    // The agent is restarted meanwhile.
    let agent = agent.restart()?;
    end(&scene, &late).await?;
    proxy.open();
    for (name, code) in [("early", 7), ("late", 8)] {
        let pod = scene.phase(name, "Failed").await?;
        assert_eq!(pod.main().exit_code(), Some(code), "{}", agent.log()?);
    }
    scene.no_vms().await
}

#[tokio::test]
async fn end_is_published_after_failed_and_hanging_calls() -> Result<()> {
    let (scene, proxy, agent) = Scene::behind_proxy("long-outage").await?;
    let vm = ending(&scene, "patient", 7).create_until("Running").await?.vm()?;
    let tries = async |why: &str, count: usize| {
        wait::eventually(&format!("{count} failed tries: {why}"), DEADLINE, async || {
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
    // From here on the agent tries to publish the final status.
    scene.no_vms().await?;
    tries("", 4).await?;
    proxy.block();
    tries("no answer within 15 s", 1).await?;
    proxy.open();
    let pod = scene.phase("patient", "Failed").await?;
    assert_eq!((pod.main().exit_code(), scene.boots()?), (Some(7), 1));
    scene.no_vms().await
}

/// Waits until the API server calls the webhook about a Pod.
async fn until_called(scene: &Scene, webhook: &StatusWebhook, pod: &str) -> Result<()> {
    wait::eventually("an API server that calls the webhook", DEADLINE, async || {
        // Any change of the status will do.
        let condition =
            json!([{"type": "example.com/asked", "status": "True", "reason": webhook.calls().to_string()}]);
        let patch = json!({"status": {"conditions": condition}}).to_string();
        scene.kubectl.run(["patch", "pod", pod, "--subresource=status", "--patch", &patch]).await?;
        ensure!(webhook.calls() > 0, "it does not");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn refused_final_status_is_published_again() -> Result<()> {
    let (scene, agent) = Scene::with_agent("objected").await?;
    let webhook = StatusWebhook::start(scene.control_plane, scene.namespace()).await?;
    // A conflict with another writer, and a webhook that does not know the Pod.
    for (name, code, times) in [("conflict", 409, 3), ("stranger", 404, 1)] {
        let vm = ending(&scene, name, 7).create_until("Running").await?.vm()?;
        until_called(&scene, &webhook, name).await?;
        webhook.refuse(code, times);
        end(&scene, &vm).await?;
        let pod = scene.phase(name, "Failed").await.with_context(|| agent.log().unwrap_or_default())?;
        assert_eq!((pod.main().exit_code(), webhook.refusals_left()), (Some(7), 0), "{name}");
    }
    Ok(())
}

#[tokio::test]
async fn status_that_a_policy_refuses_for_good_is_told_and_the_phase_is_published() -> Result<()> {
    let (scene, agent) = Scene::with_agent("policy").await?;
    let webhook = StatusWebhook::start(scene.control_plane, scene.namespace()).await?;
    let vm = ending(&scene, "refused", 7).create_until("Running").await?.vm()?;
    until_called(&scene, &webhook, "refused").await?;
    // As often as the agent tries the whole status.
    webhook.refuse(422, 5);
    end(&scene, &vm).await?;
    scene.event("refused", "StatusRefused", "the API server refuses this Pod's status").await?;
    scene.phase("refused", "Failed").await.with_context(|| agent.log().unwrap_or_default())?;
    scene.delete("refused").await
}

#[tokio::test]
async fn deletion_during_an_outage_is_carried_out_later() -> Result<()> {
    let (scene, proxy, _agent) = Scene::behind_proxy("missed").await?;
    scene.run_pods(&["graceful", "forced"]).await?;
    proxy.block();
    scene.begin_delete("graceful").await?;
    scene.force_delete("forced").await?;
    assert_eq!(scene.running_vms().await?.len(), 2, "the agent does not know of the deletions");
    proxy.open();
    scene.until_gone("graceful").await?;
    scene.nothing_left().await
}

#[tokio::test]
async fn end_before_the_deadline_succeeds_when_published_later() -> Result<()> {
    let (scene, proxy, agent) = Scene::behind_proxy("in-time").await?;
    let pod = ending(&scene, "in-time", 0).active_deadline(3600).create_until("Running").await?;
    let start = pod.status.as_ref().and_then(|status| status.start_time.clone()).context("no start")?.0;
    // Requests during the outage are lost, not delayed.
    proxy.sever();
    end(&scene, &pod.vm()?).await?;
    // The deadline is after the end, and before the agent can publish it.
    let active = Timestamp::now().duration_since(start).as_secs() + 1;
    scene.patch("in-time", &json!({"spec": {"activeDeadlineSeconds": active}})).await?;
    let deadline = start + Duration::from_secs(active.unsigned_abs());
    wait::eventually("the deadline", DEADLINE, async || {
        ensure!(Timestamp::now() > deadline, "it is not over");
        Ok(())
    })
    .await?;
    proxy.open();
    let pod = scene.phase("in-time", "Succeeded").await.with_context(|| agent.log().unwrap_or_default())?;
    assert_eq!(pod.main().exit_code(), Some(0));
    Ok(())
}

#[tokio::test]
async fn secrets_of_an_ended_pod_are_deleted_during_an_outage() -> Result<()> {
    const SECRET: &str = "battery-correct-horse";
    let (scene, proxy, agent) = Scene::behind_proxy("untold").await?;
    scene.secret("keys", "token", SECRET).await?;
    let vm = ending(&scene, "over", 0).secret("keys").create_until("Running").await?.vm()?;
    proxy.block();
    end(&scene, &vm).await?;
    scene.nowhere_on_disk(SECRET).await?;
    // The next agent knows only what is on the disk, and runs the container no second time.
    let agent = agent.restart()?;
    proxy.open();
    let pod = scene.phase("over", "Succeeded").await.with_context(|| agent.log().unwrap_or_default())?;
    assert_eq!(pod.main().exit_code(), Some(0));
    scene.no_vms().await
}
