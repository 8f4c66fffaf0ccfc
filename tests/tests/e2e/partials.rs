//! Pulls that are cut short: what has arrived is kept for the next one, and in nobody's way.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tart_kubelet_tests::agent::RunningAgent;
use tart_kubelet_tests::mac::Fault;
use tart_kubelet_tests::wait;

use crate::image_gc::{MIB, small};
use crate::images::{listed, waits_for};
use crate::scene::{DEADLINE, Scene, condition};

const LARGE: &str = "registry.test/macos/large:1";
/// How long a pull takes that is to be cut short: longer than any test waits for that, and a part of it is soon here.
const SLOW: u32 = 200;
const REACHES: &str = "check that the host reaches the registry";

/// What there is of images that are not whole, where tart makes them.
fn partials(scene: &Scene) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(scene.mac.tart_home().join("tmp"))?;
    Ok(entries.collect::<Result<Vec<_>, _>>()?.into_iter().map(|entry| entry.path()).collect())
}

/// Waits until a part of an image is here, and returns its directory.
async fn a_part_is_here(scene: &Scene) -> Result<PathBuf> {
    wait::eventually("a part of the image", DEADLINE, async || {
        let found = partials(scene)?;
        let [part] = found.as_slice() else { anyhow::bail!("{found:?}") };
        ensure!(std::fs::metadata(part.join("disk.img"))?.len() > 0);
        Ok(part.clone())
    })
    .await
}

/// The number of the directory that an image is in, whole or not.
fn inode(path: &Path) -> Result<u64> {
    Ok(std::fs::metadata(path)?.ino())
}

/// Where the image is once it is whole.
fn whole(scene: &Scene) -> PathBuf {
    scene.mac.tart_home().join("cache/OCIs/registry.test/macos/large/1")
}

fn large(scene: &Scene, name: &str) -> Value {
    scene.pod(name, &json!({"image": LARGE}), &json!({}))
}

/// Waits until no process has a directory of tart's locked.
async fn nobody_holds(part: &Path) -> Result<()> {
    wait::eventually("an end of the pull", DEADLINE, async || {
        File::open(part)?.try_lock_shared().context("a tart is still at it")
    })
    .await
}

/// Fills the disk with a part of an image, in one piece for the agent: what is deleted while somebody still writes to it frees nothing.
fn make_heavy(running: &RunningAgent, part: &Path) -> Result<()> {
    running.kill(Signal::SIGSTOP)?;
    std::fs::write(part.join("weight"), vec![1; usize::try_from(180 * MIB)?])?;
    running.kill(Signal::SIGCONT)
}

#[tokio::test]
async fn a_pull_that_is_cut_short_goes_on_where_it_was() -> Result<()> {
    for interruption in ["network", "agent", "both"] {
        let (scene, running) = Scene::with_agent("resume").await?;
        scene.mac.add_image(LARGE, &json!({"pullSeconds": SLOW}))?;
        scene.create(&large(&scene, "large")).await?;
        let part = a_part_is_here(&scene).await?;
        // While it is open nothing else gets its number.
        let _open = File::open(&part)?;
        let before = inode(&part)?;
        if interruption != "agent" {
            scene.mac.set_fault(Fault::Pull, "connection-lost at=layers")?;
            waits_for(&scene, "large", "ErrImagePull", REACHES).await?;
            // To this, as to every command but a pull and a clone, it is garbage.
            scene.mac.tart(["list"]).await?;
            assert_eq!(inode(&part)?, before);
            scene.mac.clear_fault(Fault::Pull)?;
        }
        match interruption {
            "agent" => {
                running.kill(Signal::SIGTERM)?;
                running.wait_for_exit(DEADLINE).await?;
            }
            "both" => drop(running.kill9()?),
            _ => {}
        }
        scene.mac.set_fault(Fault::InstantPull, "")?;
        // The next agent asks tart for the image first.
        let _running = if interruption == "network" { running } else { scene.agent.start()? };
        scene.phase("large", "Running").await?;
        let now = inode(&whole(&scene))?;
        ensure!(now == before, "it came anew after the {interruption}:\n{}", scene.agent_log());
    }
    Ok(())
}

#[tokio::test]
async fn what_is_kept_is_there_for_whoever_pulls_it_by_other_hands() -> Result<()> {
    let (scene, running) = Scene::with_agent("kept-others").await?;
    scene.mac.add_image(LARGE, &json!({"pullSeconds": SLOW}))?;
    scene.create(&large(&scene, "large")).await?;
    let before = inode(&a_part_is_here(&scene).await?)?;
    scene.mac.set_fault(Fault::Pull, "connection-lost at=layers")?;
    waits_for(&scene, "large", "ErrImagePull", REACHES).await?;
    // Nobody will try again.
    scene.kubectl.run(["delete", "pod", "large"]).await?;
    scene.mac.clear_fault(Fault::Pull)?;
    scene.mac.set_fault(Fault::InstantPull, "")?;
    scene.mac.tart(["pull", LARGE]).await?;
    assert_eq!(inode(&whole(&scene))?, before, "it came anew");
    // Whoever has made it whole has it.
    let line = listed(running.agent(), LARGE).await?;
    ensure!(line.last().is_some_and(|by| by == "others"), "{line:?}");
    Ok(())
}

#[tokio::test]
async fn what_is_kept_goes_before_a_pod_does() -> Result<()> {
    let Some((scene, _disk)) = small("kept-goes", 200 * MIB).await? else { return Ok(()) };
    let running = scene
        .agent
        .clone()
        .flag("--eviction-hard", "imagefs.available<15%")
        .flag("--eviction-pressure-transition-period", "1s")
        .start()?;
    scene.node_ready(&running).await?;
    scene.create(&scene.pod("stays", &json!({}), &json!({}))).await?;
    scene.phase("stays", "Running").await?;
    scene.mac.add_image(LARGE, &json!({"pullSeconds": SLOW}))?;
    scene.create(&large(&scene, "large")).await?;
    let part = a_part_is_here(&scene).await?;
    scene.mac.set_fault(Fault::Pull, "connection-lost at=layers")?;
    waits_for(&scene, "large", "ErrImagePull", REACHES).await?;
    // Nobody will try again, and no tart comes by.
    scene.kubectl.run(["delete", "pod", "large"]).await?;
    make_heavy(&running, &part)?;
    wait::eventually("room", DEADLINE, async || {
        ensure!(!part.exists(), "{}", running.log()?);
        Ok(())
    })
    .await?;
    let well = |node: &Node| condition(node, "DiskPressure") == "False";
    wait::until(&scene.nodes, &scene.node, "well", DEADLINE, well).await?;
    scene.phase("stays", "Running").await?;
    let told = scene.kubectl.run(["describe", "pod", "stays"]).await?;
    ensure!(!told.contains("Evicted"), "{told}");
    Ok(())
}

#[tokio::test]
async fn a_pull_with_other_credentials_does_not_wait_for_what_is_kept() -> Result<()> {
    let (scene, _running) = Scene::with_agent("kept-credentials").await?;
    scene.mac.add_image(LARGE, &json!({"pullSeconds": SLOW}))?;
    let create = ["create", "secret", "docker-registry", "pull", "--docker-server=registry.test"];
    let login = ["--docker-username=robot", "--docker-password=s3cr3t"];
    scene.kubectl.run(create.into_iter().chain(login)).await?;
    scene.mac.set_fault(Fault::Calls, "")?;
    scene.create(&large(&scene, "first")).await?;
    let before = inode(&a_part_is_here(&scene).await?)?;
    let mut second = large(&scene, "second");
    second["spec"]["imagePullSecrets"] = json!([{"name": "pull"}]);
    scene.create(&second).await?;
    wait::eventually("a second pull", DEADLINE, async || {
        let calls = std::fs::read_to_string(scene.mac.host().join("calls"))?;
        ensure!(calls.lines().filter(|call| *call == "pull").count() >= 2, "{calls}");
        Ok(())
    })
    .await?;
    // The first one fails, and nobody tries it again.
    scene.mac.set_fault(Fault::Pull, "connection-lost at=layers")?;
    waits_for(&scene, "first", "ErrImagePull", REACHES).await?;
    scene.kubectl.run(["delete", "pod", "first"]).await?;
    scene.mac.clear_fault(Fault::Pull)?;
    scene.mac.set_fault(Fault::InstantPull, "")?;
    scene.phase("second", "Running").await?;
    assert_eq!(inode(&whole(&scene))?, before, "it came anew");
    Ok(())
}

#[tokio::test]
async fn what_a_pull_by_hand_has_brought_is_kept_for_the_agent() -> Result<()> {
    let scene = Scene::new("kept-by-hand").await?;
    scene.mac.add_image(LARGE, &json!({"pullSeconds": SLOW}))?;
    let words = ["images", "pull", LARGE];
    let (failed, before) = tokio::join!(scene.agent.run(&words), async {
        let before = inode(&a_part_is_here(&scene).await?)?;
        scene.mac.set_fault(Fault::Pull, "connection-lost at=layers")?;
        anyhow::Ok(before)
    });
    let failed = format!("{:#}", failed.err().context("the network is gone")?);
    ensure!(failed.contains(REACHES), "{failed}");
    scene.mac.clear_fault(Fault::Pull)?;
    scene.mac.set_fault(Fault::InstantPull, "")?;
    let running = scene.agent.start()?;
    scene.create(&large(&scene, "large")).await?;
    scene.phase("large", "Running").await?;
    assert_eq!(inode(&whole(&scene))?, before?, "it came anew");
    let line = listed(running.agent(), LARGE).await?;
    ensure!(line.last().is_some_and(|by| by == "agent"), "{line:?}");
    Ok(())
}

#[tokio::test]
async fn a_pull_by_hand_takes_its_tart_along_when_it_is_told_to_end() -> Result<()> {
    let scene = Scene::new("hand-ends").await?;
    scene.mac.add_image(LARGE, &json!({"pullSeconds": 600}))?;
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let pull = scene.agent.begin(&["images", "pull", LARGE])?;
        let part = a_part_is_here(&scene).await?;
        pull.signal(signal)?;
        let status = pull.wait_for_exit(DEADLINE).await?;
        ensure!(status.code() == Some(2), "{signal}: {status}");
        let log = pull.log()?;
        ensure!(log.contains(&format!("ended by {signal}")), "{log}");
        nobody_holds(&part).await?;
        // Nothing of it is left for the next one to find.
        scene.mac.tart(["list"]).await?;
        ensure!(partials(&scene)?.is_empty(), "{:?}", partials(&scene)?);
    }
    Ok(())
}

#[tokio::test]
async fn an_agent_that_starts_does_not_wait_for_a_pull_by_hand() -> Result<()> {
    let scene = Scene::new("hand-agent").await?;
    scene.mac.add_image(LARGE, &json!({}))?;
    // The command has pulled, and asks tart what it is.
    scene.mac.set_fault(Fault::Calls, "")?;
    scene.mac.set_fault(Fault::Hang, "fqn")?;
    let pull = scene.agent.begin(&["images", "pull", LARGE])?;
    wait::eventually("a question to tart", DEADLINE, async || {
        let calls = std::fs::read_to_string(scene.mac.host().join("calls"))?;
        ensure!(calls.lines().any(|call| call == "fqn"), "{calls}");
        Ok(())
    })
    .await?;
    let running = scene.agent.start()?;
    scene.node_ready(&running).await?;
    scene.mac.clear_fault(Fault::Hang)?;
    let status = pull.wait_for_exit(DEADLINE).await?;
    ensure!(status.success(), "{status}: {}", pull.log()?);
    let line = listed(running.agent(), LARGE).await?;
    ensure!(line.last().is_some_and(|by| by == "agent"), "{line:?}");
    Ok(())
}

#[tokio::test]
async fn a_pod_that_is_evicted_while_its_image_comes_pulls_no_more() -> Result<()> {
    let Some((scene, _disk)) = small("evicted-pull", 200 * MIB).await? else { return Ok(()) };
    let running = scene
        .agent
        .clone()
        .flag("--eviction-hard", "imagefs.available<15%")
        .flag("--eviction-pressure-transition-period", "1s")
        .start()?;
    scene.node_ready(&running).await?;
    // It stays within what it has asked for, so that it is not the first to go.
    let modest = json!({"resources": {"requests": {"ephemeral-storage": "50Mi"}}});
    scene.create(&scene.pod("stays", &modest, &json!({}))).await?;
    scene.phase("stays", "Running").await?;
    scene.mac.add_image(LARGE, &json!({"pullSeconds": 600}))?;
    scene.create(&large(&scene, "large")).await?;
    let part = a_part_is_here(&scene).await?;
    make_heavy(&running, &part)?;
    let evicted = scene.phase("large", "Failed").await?.status.context("no status")?;
    assert_eq!(evicted.reason.as_deref(), Some("Evicted"));
    // Its tart is gone, and what that had brought is no more than garbage.
    wait::eventually("room", DEADLINE, async || {
        ensure!(!part.exists(), "{}", running.log()?);
        Ok(())
    })
    .await?;
    let well = |node: &Node| condition(node, "DiskPressure") == "False";
    wait::until(&scene.nodes, &scene.node, "well", DEADLINE, well).await?;
    scene.phase("stays", "Running").await?;
    let told = scene.kubectl.run(["describe", "pod", "stays"]).await?;
    ensure!(!told.contains("Evicted"), "{told}");
    Ok(())
}

#[tokio::test]
async fn what_somebody_pulls_after_a_power_cut_is_theirs() -> Result<()> {
    let (scene, _running) = Scene::with_agent("power-cut").await?;
    scene.mac.add_image(LARGE, &json!({"pullSeconds": 600}))?;
    scene.create(&large(&scene, "large")).await?;
    a_part_is_here(&scene).await?;
    // Our tart has said that it fetches the image, and never brings it.
    wait::eventually("a record of the pull", DEADLINE, async || {
        let record = std::fs::read_to_string(scene.agent.state_dir().join("images.json"))?;
        ensure!(record.contains("\"is_fetched\":true"), "{record}");
        Ok(())
    })
    .await?;
    scene.mac.lose_power()?;
    scene.kubectl.run(["delete", "pod", "large", "--force", "--grace-period=0"]).await?;
    let running = scene.agent.start()?;
    scene.node_ready(&running).await?;
    // What is there before the new agent has looked may be its own.
    wait::eventually("an agent that has looked", DEADLINE, async || {
        let record = std::fs::read_to_string(scene.agent.state_dir().join("images.json"))?;
        ensure!(!record.contains("\"is_fetched\":true"), "{record}");
        Ok(())
    })
    .await?;
    scene.mac.set_fault(Fault::InstantPull, "")?;
    scene.mac.tart(["pull", LARGE]).await?;
    // Whoever would take it for the agent's has done so by then.
    let looks = async || running.metric("tart_kubelet_image_gc_pass_duration_seconds_count").await;
    let before = wait::eventually("figures", DEADLINE, async || looks().await).await?;
    wait::eventually("more looks", DEADLINE, async || {
        let now = looks().await?;
        ensure!(now >= before + 2.0, "{now}, {before} before");
        Ok(())
    })
    .await?;
    let line = listed(running.agent(), LARGE).await?;
    ensure!(line.last().is_some_and(|by| by == "others"), "{line:?}: {}", running.log()?);
    Ok(())
}
