//! Base VMs: the agent makes one per image, and clones the VMs of Pods from it.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tart_kubelet_tests::mac::Fault;
use tart_kubelet_tests::programs;

use crate::scene::{DEADLINE, IMAGE, PodView as _, Scene};

/// A tart that logs its arguments.
struct LoggingTart {
    program: PathBuf,
    log: PathBuf,
}

impl LoggingTart {
    fn new(scene: &Scene) -> Result<Self> {
        let (program, log) =
            (scene.mac.host().join("logging-tart"), scene.mac.host().join("logging-tart.log"));
        let script = format!(
            "#!/bin/sh\necho \"$*\" >>'{}'\nexec '{}' \"$@\"\n",
            log.display(),
            scene.mac.tart_binary().display()
        );
        programs::write(&program, &script)?;
        std::fs::write(&log, "")?;
        Ok(Self { program, log })
    }

    /// The calls since the last time, without `--version` and `ip`: those come while `tart run` starts.
    fn calls(&self) -> Result<Vec<String>> {
        let calls = std::fs::read_to_string(&self.log)?;
        std::fs::write(&self.log, "")?;
        let counts = |call: &&str| *call != "--version" && !call.starts_with("ip ");
        Ok(calls.lines().filter(counts).map(str::to_owned).collect())
    }
}

/// Runs a Pod to its end, deletes it, and waits until nothing is left.
pub(crate) async fn run_to_its_end(scene: &Scene, name: &str) -> Result<()> {
    scene.pod(name).command(["true"]).create_until("Succeeded").await?;
    scene.delete(name).await?;
    scene.nothing_left().await
}

#[tokio::test]
async fn vms_of_an_image_are_cloned_from_one_base_vm() -> Result<()> {
    let scene = Scene::new("base").await?;
    let tart = LoggingTart::new(&scene)?;
    let agent = scene.agent.clone().flag("--tart-binary", &tart.program.display().to_string());
    let running = scene.start(&agent).await?;

    // Two Pods at once, of an image that is not on the Mac yet.
    let pods = scene.run_pods(&["one", "two"]).await?;
    let images: Vec<&str> = pods.iter().filter_map(|pod| pod.main().image_id()).collect();
    let repository = IMAGE.rsplit_once(':').context("no tag")?.0;
    ensure!(images[0].starts_with(&format!("{repository}@sha256:")), "{images:?}");
    assert_eq!(images[0], images[1]);
    let base = scene.only_base().await?;
    let calls = tart.calls()?;
    let count = |start: &str| calls.iter().filter(|call| call.starts_with(start)).count();
    let from_image = format!("clone {} {base}", images[0]);
    assert_eq!(
        (count("pull"), count(&from_image), count(&format!("clone {base} tk-"))),
        (1, 1, 2),
        "{calls:#?}"
    );
    for name in ["one", "two"] {
        scene.delete(name).await?;
    }
    scene.nothing_left().await?;

    // With a base VM, two calls come before `tart run`.
    tart.calls()?;
    run_to_its_end(&scene, "warm").await?;
    let calls = tart.calls()?;
    let before: Vec<&str> =
        calls.iter().take_while(|call| !call.starts_with("run ")).map(String::as_str).collect();
    ensure!(
        matches!(before.as_slice(), [clone, set] if clone.starts_with(&format!("clone {base} ")) && set.starts_with("set ")),
        "{calls:#?}"
    );

    // A restarted agent does not make the base VM again, unless it was deleted.
    let _running = running.restart()?;
    run_to_its_end(&scene, "restarted").await?;
    ensure!(!tart.calls()?.contains(&from_image), "the base was made twice");
    scene.mac.tart(["delete", &base]).await?;
    run_to_its_end(&scene, "again").await?;
    ensure!(tart.calls()?.contains(&from_image), "the base was not made again");
    assert_eq!(scene.only_base().await?, base);
    Ok(())
}

#[tokio::test]
async fn moved_tag_gets_its_own_base_vm() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("bases").await?;
    run_to_its_end(&scene, "first").await?;
    // The tag moves.
    scene.mac.add_image(IMAGE, &json!({"cpu": 5}))?;
    scene.pod("second").command(["true"]).pull_policy("Always").create_until("Succeeded").await?;
    assert_eq!(scene.bases().await?.len(), 2);
    Ok(())
}

#[tokio::test]
async fn clone_without_disk_space_is_reported_and_tried_again() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("room").await?;
    scene.mac.set_fault(Fault::NoSpace, "clone")?;
    scene.pod("room").create().await?;
    scene.described("room", "free some disk space on the host").await?;
    scene.mac.clear_fault(Fault::NoSpace)?;
    scene.phase("room", "Running").await.map(drop)
}

#[tokio::test]
async fn base_vm_deleted_before_the_clone_is_made_again() -> Result<()> {
    let (scene, agent) = Scene::with_agent("last-moment").await?;
    run_to_its_end(&scene, "first").await?;
    agent.kill9()?;
    let dying = scene.agent.clone().env("TART_KUBELET_CRASH", "agent.plan.after").start()?;
    scene.pod("planned").command(["true"]).create().await?;
    dying.wait_for_exit(DEADLINE).await?;
    for base in scene.bases().await? {
        scene.mac.tart(["delete", &base]).await?;
    }
    let _agent = scene.agent.start()?;
    scene.phase("planned", "Succeeded").await?;
    ensure!(scene.shim_log("planned").await?.contains("cannot clone the base VM"));
    Ok(())
}

#[tokio::test]
async fn damaged_base_vm_is_made_again() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("damaged").await?;
    run_to_its_end(&scene, "first").await?;
    let base = scene.only_base().await?;
    for file in ["disk.img", "nvram.bin"] {
        let path = scene.vm_dir(&base).join(file);
        std::fs::remove_file(&path)?;
        let pod = format!("without-{}", file.replace('.', "-"));
        run_to_its_end(&scene, &pod).await?;
        ensure!(path.exists(), "{}", scene.agent_log());
    }
    Ok(())
}
