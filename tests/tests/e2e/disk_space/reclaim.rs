//! What happens while the agent deletes images to free space, and what it leaves of an image.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use serde_json::json;
use tart_kubelet_tests::agent::Agent;
use tart_kubelet_tests::mac::Fault;
use tart_kubelet_tests::{process, programs};

use super::{
    FILES, GIB, LONG_LINES, MIB, SIZE, add_image, agent_with_thresholds, digest, evicting, idle_agent,
    image_gc_passes, image_gone, images_left, large_config_map, pod, pull_without_space, reference,
    repository_dir, small_disk, use_images, use_once,
};
use crate::scene::{DEADLINE, Scene, base_of, until_exists};

/// A tart that stops before it deletes a base VM while a file exists.
struct PausedDelete {
    program: PathBuf,
    shut: PathBuf,
    arrived: PathBuf,
}

impl PausedDelete {
    fn new(scene: &Scene) -> Result<Self> {
        let [program, shut, arrived] = ["gate", "shut", "arrived"].map(|name| scene.mac.host().join(name));
        let script = format!(
            "#!/bin/sh\ncase \"$*\" in \"delete tk-base-\"*)\n  : >'{}'; while [ -e '{}' ]; do sleep 0.05; done;;\nesac\nexec '{}' \"$@\"\n",
            arrived.display(),
            shut.display(),
            scene.mac.tart_binary().display()
        );
        programs::write(&program, &script)?;
        Ok(Self { program, shut, arrived })
    }

    /// The agent with this tart.
    fn of(&self, agent: Agent) -> Agent {
        agent.flag("--tart-binary", &self.program.display().to_string())
    }

    fn pause(&self) -> Result<()> {
        Ok(std::fs::write(&self.shut, "")?)
    }

    fn resume(&self) -> Result<()> {
        Ok(std::fs::remove_file(&self.shut)?)
    }

    /// Waits until the agent deletes a base VM.
    async fn is_reached(&self) -> Result<()> {
        until_exists("a deletion of a base VM", &self.arrived).await
    }
}

#[tokio::test]
async fn space_freed_for_a_pull_prevents_an_eviction() -> Result<()> {
    let Some((scene, disk)) = small_disk("meanwhile", 400 * MIB).await? else { return Ok(()) };
    let tart = PausedDelete::new(&scene)?;
    let running = tart.of(evicting(idle_agent(&scene))).start()?;
    use_images(&scene, &running, &[("idle", SIZE.into())]).await?;
    add_image(&scene, "busy", SIZE.into())?;
    pod(&scene, "stays", "busy").create_until("Running").await?;
    tart.pause()?;
    pull_without_space(&scene).await?;
    tart.is_reached().await?;
    disk.fill_but(40 * MIB)?;
    scene.node_condition("DiskPressure", "True").await?;
    // The agent looks at the disk as often as it renews the Lease: by now it has seen that the disk is full, and waits for the first pass.
    for _ in 0..3 {
        scene.next_lease_renewal().await?;
    }
    tart.resume()?;
    images_left(&scene, &["busy"], 1).await?;
    scene.node_condition("DiskPressure", "False").await?;
    image_gc_passes(&running, 2.0).await?;
    scene.phase("stays", "Running").await?;
    scene.is_not_evicted("stays").await
}

#[tokio::test]
async fn pod_deleted_while_the_agent_frees_space_leaves_no_half_deleted_image() -> Result<()> {
    let Some((scene, _disk)) = small_disk("room-goes", GIB).await? else { return Ok(()) };
    let tart = PausedDelete::new(&scene)?;
    let running = tart.of(idle_agent(&scene)).start()?;
    use_images(&scene, &running, &[("a", MIB), ("b", 2 * MIB)]).await?;
    tart.pause()?;
    pull_without_space(&scene).await?;
    tart.is_reached().await?;
    scene.begin_delete("lacks").await?;
    scene.until_gone("lacks").await?;
    tart.resume()?;
    images_left(&scene, &["b"], 1).await
}

#[tokio::test]
async fn deleted_pod_does_not_wait_for_space() -> Result<()> {
    let Some((scene, _disk)) = small_disk("room-waits", GIB).await? else { return Ok(()) };
    let tart = PausedDelete::new(&scene)?;
    let running = tart.of(idle_agent(&scene)).start()?;
    use_images(&scene, &running, &[("a", MIB), ("b", 2 * MIB)]).await?;
    tart.pause()?;
    scene.mac.set_fault(Fault::NoSpace, "run")?;
    pod(&scene, "waits", "b").create().await?;
    tart.is_reached().await?;
    scene.begin_delete_within("waits", 1).await?;
    scene.until_gone("waits").await?;
    ensure!(scene.bases().await?.len() == 2, "the other image is gone by now");
    tart.resume()?;
    images_left(&scene, &["b"], 1).await
}

#[tokio::test]
async fn half_deleted_image_is_deleted() -> Result<()> {
    for is_whole in [true, false] {
        let Some((scene, _disk)) = small_disk("half-deleted", GIB).await? else { return Ok(()) };
        let running = idle_agent(&scene).start()?;
        use_images(&scene, &running, &[("a", MIB), ("b", 2 * MIB)]).await?;
        running.kill9()?;
        // tart has deleted the tag, and was killed before it had deleted the image.
        let digest = digest(&scene, "a")?;
        let image = repository_dir(&scene, "a").join(&digest);
        scene.mac.tart(["delete", &base_of(&format!("registry.test/macos/a@{digest}"))]).await?;
        std::fs::remove_file(repository_dir(&scene, "a").join("1"))?;
        if !is_whole {
            std::fs::remove_file(image.join("config.json"))?;
        }
        let running = scene.start(&idle_agent(&scene)).await?;
        pull_without_space(&scene).await?;
        image_gone(&image, &running).await?;
        images_left(&scene, &["b"], 1).await?;
    }
    Ok(())
}

#[tokio::test]
async fn tag_that_a_user_pulled_keeps_the_image_but_not_its_base_vm() -> Result<()> {
    let Some((scene, _disk)) = small_disk("second-tag", GIB).await? else { return Ok(()) };
    let running = scene.start(&idle_agent(&scene)).await?;
    // The same image by two tags.
    let (ours, theirs) = (reference("a"), "registry.test/macos/a:2");
    for name in [&ours, theirs] {
        scene.mac.add_image(name, &json!({"cpu": 5}))?;
    }
    use_once(&scene, "a").await?;
    scene.mac.tart(["pull", theirs]).await?;
    use_images(&scene, &running, &[("b", MIB)]).await?;
    let image = repository_dir(&scene, "a").join(digest(&scene, "a")?);
    images_left(&scene, &["a", "b"], 2).await?;
    pull_without_space(&scene).await?;
    images_left(&scene, &["b"], 1).await?;
    // The next failure does not cost the image either: a user has pulled it.
    scene.described("lacks", "ImagePullBackOff").await?;
    let list = scene.mac.tart(["list", "--source", "oci", "--quiet"]).await?;
    ensure!(list.lines().any(|name| name == theirs) && !list.lines().any(|name| name == ours), "{list}");
    ensure!(image.join("disk.img").exists(), "{list}");
    Ok(())
}

#[tokio::test]
async fn image_named_by_digest_is_deleted() -> Result<()> {
    let Some((scene, _disk)) = small_disk("by-digest", GIB).await? else { return Ok(()) };
    let running = idle_agent(&scene).start()?;
    add_image(&scene, "a", MIB)?;
    // Another tart looks the digest up.
    let elsewhere = scene.mac.sandbox().directory("elsewhere")?;
    let mut name = String::new();
    for command in ["pull", "fqn"] {
        let mut tart = scene.mac.command(scene.mac.tart_binary());
        tart.args([command, &reference("a")]).env("TART_HOME", &elsewhere);
        name = process::run(tart, "", DEADLINE).await?.trim().to_owned();
    }
    scene.node_ready(&running).await?;
    scene.pod("named").image(name).command(["true"]).create_until("Succeeded").await?;
    scene.delete("named").await?;
    use_images(&scene, &running, &[("b", 2 * MIB)]).await?;
    let image = repository_dir(&scene, "a").join(digest(&scene, "a")?);
    ensure!(image.join("disk.img").exists() && scene.bases().await?.len() == 2);
    pull_without_space(&scene).await?;
    image_gone(&image, &running).await?;
    images_left(&scene, &["b"], 1).await
}

#[tokio::test]
async fn disabled_collector_reports_a_vm_without_space() -> Result<()> {
    let scene = Scene::new("off-vm").await?;
    let running = agent_with_thresholds(&scene, 1, 0).switch("--disable-vm-gc").start()?;
    use_images(&scene, &running, &[("a", MIB), ("b", 2 * MIB)]).await?;
    scene.mac.set_fault(Fault::NoSpace, "run")?;
    pod(&scene, "full", "b").command(["true"]).create_until("Failed").await?;
    scene.event("full", "FreeDiskSpaceFailed", "the Pod's VM has found no space on the disk").await?;
    scene.described("full", "with `--disable-vm-gc` the agent deletes no image for it").await?;
    scene.mac.clear_fault(Fault::NoSpace)?;
    pull_without_space(&scene).await?;
    scene.event("lacks", "FreeDiskSpaceFailed", "there is no space for image").await?;
    images_left(&scene, &["a", "b"], 2).await
}

#[tokio::test]
async fn disabled_collector_reports_a_log_and_a_volume_without_space() -> Result<()> {
    let Some((scene, disk)) = small_disk("off-disk", 300 * MIB).await? else { return Ok(()) };
    let state = scene.mac.tart_home().join("state");
    let running = agent_with_thresholds(&scene, 1, 0)
        .switch("--disable-vm-gc")
        .flag("--state-dir", &state.display().to_string())
        .start()?;
    use_images(&scene, &running, &[("a", SIZE.into()), ("b", MIB)]).await?;
    large_config_map(&scene, "large", 900_000).await?;
    // Enough for the Pod's own state, but not for its files.
    disk.fill_but(MIB / 2)?;
    let files = json!({"configMap": {"name": "large"}});
    pod(&scene, "reader", "b")
        .command(["true"])
        .volume("files", files)
        .mount("files", FILES)
        .create()
        .await?;
    scene.described("reader", "free some disk space on the host").await?;
    images_left(&scene, &["a", "b"], 2).await?;
    disk.fill(0)?;
    scene.phase("reader", "Succeeded").await?;

    pod(&scene, "chatty", "b").sh(LONG_LINES).create_until("Running").await?;
    disk.fill_up()?;
    scene.described("chatty", "with `--disable-vm-gc` the agent deletes no image for it").await?;
    images_left(&scene, &["a", "b"], 2).await?;
    scene.phase("chatty", "Running").await.map(drop)
}
