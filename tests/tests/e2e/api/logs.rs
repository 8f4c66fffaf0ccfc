//! `kubectl logs` through the API server.

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tart_kubelet_tests::process::Process;
use tart_kubelet_tests::wait;

use crate::scene::{DEADLINE, PodView as _, Scene, UNTIL_FINISHED};

/// Waits until a kubectl that follows a log has shown these words.
async fn shown(kubectl: &Process, words: &str) -> Result<()> {
    wait::eventually(&format!("`{words}` from kubectl"), DEADLINE, async || {
        let said = kubectl.log()?;
        ensure!(said.contains(words), "it says {said}");
        Ok(())
    })
    .await
}

/// The error of a kubectl that fails.
async fn refused<const N: usize>(scene: &Scene, arguments: [&str; N]) -> Result<String> {
    let said = scene.logs(arguments).await;
    Ok(format!("{:#}", said.err().context("kubectl logs should fail")?))
}

#[tokio::test]
async fn kubectl_logs_shows_what_a_container_wrote_with_every_flag() -> Result<()> {
    let (scene, agent) = Scene::with_api("logs").await?;
    let script = "echo one; echo two >&2; echo three; echo done; sleep 1; exit 3";
    scene.pod("talks").sh(script).create_until("Failed").await?;
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let all = lines(&scene.logs(["talks"]).await?);
    assert_eq!(all.len(), 4, "{all:?}");
    // The outputs are two pipes: which line comes last is up to the guest.
    let (mut sorted, last) = (all.clone(), all.last().context("no line")?);
    sorted.sort_unstable();
    assert_eq!(sorted, ["done", "one", "three", "two"]);
    assert_eq!(&lines(&scene.logs(["talks", "--tail=1"]).await?)[..], std::slice::from_ref(last));
    assert_eq!(scene.logs(["talks", "--tail=0"]).await?, "");
    assert_eq!(scene.logs(["talks", "--limit-bytes=3"]).await?.len(), 3);
    assert_eq!(lines(&scene.logs(["talks", "--container=main"]).await?), all);
    assert_eq!(lines(&scene.logs(["talks", "--since=1h"]).await?), all);
    assert_eq!(scene.logs(["talks", "--since-time=2999-01-01T00:00:00Z"]).await?, "");
    let stamped = lines(&scene.logs(["talks", "--timestamps", "--tail=1"]).await?);
    let (time, line) = stamped[0].split_once(' ').context("no timestamp")?;
    time.parse::<jiff::Timestamp>()?;
    assert_eq!(line, last);
    // It is over, so that following ends by itself.
    assert_eq!(lines(&scene.logs(["talks", "--follow"]).await?), all);

    let refusal = refused(&scene, ["talks", "--previous"]).await?;
    ensure!(
        refusal.contains("previous terminated container \"main\" in pod \"talks\" not found"),
        "{refusal}"
    );
    ensure!(refusal.contains("BadRequest"), "{refusal}");

    // The agent that wrote none of it serves all of it.
    let _agent = agent.restart()?;
    wait::eventually("logs from the next agent", DEADLINE, async || {
        assert_eq!(lines(&scene.logs(["talks"]).await?), all);
        Ok(())
    })
    .await?;
    scene.delete("talks").await?;
    scene.nothing_left().await
}

#[tokio::test]
async fn kubectl_logs_shows_the_lines_since_a_moment() -> Result<()> {
    let (scene, _agent) = Scene::with_api("since").await?;
    let script = "for number in 1 2 3 4 5 6 7 8; do echo $number; sleep 0.5; done";
    scene.pod("talks").sh(script).create_until("Succeeded").await?;
    let all = scene.logs(["talks", "--timestamps"]).await?;
    let stamped = all.lines().map(|line| {
        let (time, line) = line.split_once(' ').context("no timestamp")?;
        Ok((time.parse::<jiff::Timestamp>()?, line))
    });
    let stamped = stamped.collect::<Result<Vec<_>>>()?;
    // kubectl sends whole seconds.
    let (middle, _) = stamped.get(4).context("too few lines")?;
    let moment = jiff::Timestamp::from_second(middle.as_second())?;
    let since: Vec<&str> =
        stamped.iter().filter(|(time, _)| *time >= moment).map(|(_, line)| *line).collect();
    ensure!(!since.is_empty() && since.len() < stamped.len(), "{stamped:?}");
    let shown = scene.logs(["talks", &format!("--since-time={moment}")]).await?;
    assert_eq!(shown.lines().collect::<Vec<_>>(), since);
    Ok(())
}

#[tokio::test]
async fn kubectl_logs_follows_a_container_to_its_end() -> Result<()> {
    let (scene, _agent) = Scene::with_api("follows").await?;
    let pod = scene
        .pod("slow")
        .sh(format!("echo begin; {UNTIL_FINISHED}; printf end"))
        .create_until("Running")
        .await?;
    let kubectl = scene.follow_logs(["slow"])?;
    shown(&kubectl, "begin").await?;
    ensure!(kubectl.exit_status()?.is_none(), "it follows a container that still runs");
    scene.finish_command(&pod.vm()?).await;
    ensure!(kubectl.wait_for_exit(DEADLINE).await?.success(), "{}", kubectl.last_lines());
    assert_eq!(kubectl.log()?, "begin\nend");
    Ok(())
}

#[tokio::test]
async fn kubectl_logs_loses_no_line_of_a_log_that_is_rotated() -> Result<()> {
    // With the time and the stream of each line, that is two files and a half.
    const LINES: u32 = 170_000;
    let (scene, _agent) = Scene::with_api("rotates").await?;
    let script = format!("{UNTIL_FINISHED}; seq -f %0100.0f 1 {LINES}");
    let pod = scene.pod("writes").sh(script).create_until("Running").await?;
    let kubectl = scene.follow_logs(["writes"])?;
    scene.finish_command(&pod.vm()?).await;
    scene.phase("writes", "Succeeded").await?;
    ensure!(kubectl.wait_for_exit(DEADLINE).await?.success(), "{}", kubectl.last_lines());
    let logs = scene.logs_dir(pod.uid_of()?).join("main");
    ensure!(logs.join("0.log.2").exists(), "it was not rotated");
    for (what, text) in [("followed", kubectl.log()?), ("afterwards", scene.logs(["writes"]).await?)] {
        let numbers = text.lines().map(str::parse::<u32>).collect::<Result<Vec<_>, _>>()?;
        ensure!(numbers.into_iter().eq(1..=LINES), "{what}: not every line in order");
    }
    let tail = scene.logs(["writes", "--tail=1"]).await?;
    assert_eq!(tail.trim_end().parse::<u32>()?, LINES);
    Ok(())
}

#[tokio::test]
async fn kubectl_logs_has_init_containers_previous_containers_and_vms_that_only_boot() -> Result<()> {
    let (scene, _agent) = Scene::with_api("starts").await?;
    let init = json!([{
        "name": "first", "image": crate::scene::IMAGE, "command": ["/bin/sh", "-c", "echo initial"],
    }]);
    scene
        .pod("again")
        .spec(json!({"initContainers": init}))
        .restart_policy("Always")
        .sh("echo a start; exit 1")
        .create()
        .await?;
    scene.until("again", "started again", |pod| pod.main().restart_count() >= Some(1)).await?;
    assert_eq!(scene.logs(["again", "--container=first"]).await?, "initial\n");
    wait::eventually("the log before", DEADLINE, async || {
        assert_eq!(scene.logs(["again", "--previous", "--container=main"]).await?, "a start\n");
        Ok(())
    })
    .await?;
    let refusal = refused(&scene, ["again", "--container=none"]).await?;
    ensure!(refusal.contains("container none is not valid for pod again"), "{refusal}");
    scene.force_delete("again").await?;

    scene.pod("boots").create_until("Running").await?;
    // What `tart run` says is its log, and it says nothing while all is well.
    scene.logs(["boots"]).await?;
    Ok(())
}

#[tokio::test]
async fn kubectl_logs_says_why_there_is_no_log() -> Result<()> {
    let (scene, _agent) = Scene::with_api("silent").await?;
    scene.pod("stuck").image("registry.test/macos/none:1").create().await?;
    scene.described("stuck", "ErrImagePull").await?;
    let refusal = refused(&scene, ["stuck"]).await?;
    let waits = "container \"main\" in pod \"stuck\" is waiting to start: ";
    ensure!(refusal.contains(waits) && refusal.contains("image"), "{refusal}");
    Ok(())
}
