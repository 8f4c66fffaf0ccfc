//! Who waits while images make room, and who does not; and what an image leaves behind.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use serde_json::{Value, json};
use tart_kubelet_tests::agent::{Agent, RunningAgent};
use tart_kubelet_tests::mac::Fault;
use tart_kubelet_tests::{process, programs, wait};

use crate::image_gc::{MIB, SIZE, add_image, agent, left, pod, reference, small, use_once};
use crate::scene::{DEADLINE, Scene, condition};

/// A tart that deletes no base VM while its gate is shut; whatever else it is asked for, it does.
struct Gate {
    program: PathBuf,
    shut: PathBuf,
    arrived: PathBuf,
}

impl Gate {
    /// A gate that is open.
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

    fn before(&self, agent: &Agent) -> Agent {
        agent.clone().flag("--tart-binary", &self.program.display().to_string())
    }

    fn shut(&self) -> Result<()> {
        Ok(std::fs::write(&self.shut, "")?)
    }

    fn open(&self) -> Result<()> {
        Ok(std::fs::remove_file(&self.shut)?)
    }

    /// Waits until somebody stands before it.
    async fn is_reached(&self) -> Result<()> {
        wait::eventually("a base VM that is to go", DEADLINE, async || {
            ensure!(self.arrived.exists());
            Ok(())
        })
        .await
    }
}

/// Has an agent use images once, one after the other, so that nobody needs any of them any more.
pub(crate) async fn used(scene: &Scene, running: &RunningAgent, images: &[(&str, u64)]) -> Result<()> {
    scene.node_ready(running).await?;
    for (name, size) in images {
        add_image(scene, name, *size)?;
        use_once(scene, name).await?;
    }
    Ok(())
}

/// A Pod whose image finds no space, so that another image has to go for it.
pub(crate) async fn lack_space(scene: &Scene) -> Result<()> {
    add_image(scene, "other", 3 * MIB)?;
    scene.mac.set_fault(Fault::NoSpace, "pull")?;
    scene.create(&pod(scene, "lacks", "other", &json!({}))).await
}

/// Where tart keeps the images of a repository.
pub(crate) fn repository(scene: &Scene, name: &str) -> PathBuf {
    scene.mac.tart_home().join("cache/OCIs/registry.test/macos").join(name)
}

/// The only image of a repository: its digest.
pub(crate) fn digest(scene: &Scene, name: &str) -> Result<String> {
    let names = std::fs::read_dir(repository(scene, name))?.collect::<Result<Vec<_>, _>>()?;
    let mut names = names.into_iter().filter_map(|entry| entry.file_name().into_string().ok());
    names.find(|name| name.starts_with("sha256:")).context("there is no image")
}

/// Waits until nothing is left of an image.
pub(crate) async fn is_gone(image: &Path, running: &RunningAgent) -> Result<()> {
    wait::eventually("the end of the image", DEADLINE, async || {
        ensure!(!image.exists(), "{}", running.log()?);
        Ok(())
    })
    .await
}

pub(crate) async fn more_looks(running: &RunningAgent) -> Result<()> {
    let looks = async || running.metric("tart_kubelet_image_gc_pass_duration_seconds_count").await;
    let before = looks().await?;
    wait::eventually("more looks", DEADLINE, async || {
        let now = looks().await?;
        ensure!(now >= before + 2.0, "{now}, {before} before");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn what_was_made_for_somebody_else_meanwhile_costs_no_pod() -> Result<()> {
    let Some((scene, disk)) = small("meanwhile", 400 * MIB).await? else { return Ok(()) };
    let gate = Gate::new(&scene)?;
    let running = gate
        .before(&agent(&scene, 100, 99))
        .flag("--eviction-hard", "imagefs.available<15%")
        .flag("--eviction-pressure-transition-period", "1s")
        .start()?;
    used(&scene, &running, &[("idle", SIZE.into())]).await?;
    add_image(&scene, "busy", SIZE.into())?;
    scene.create(&pod(&scene, "stays", "busy", &json!({}))).await?;
    scene.phase("stays", "Running").await?;
    gate.shut()?;
    lack_space(&scene).await?;
    gate.is_reached().await?;
    disk.fill_but(40 * MIB)?;
    let pressure = |status: &'static str| move |node: &Node| condition(node, "DiskPressure") == status;
    wait::until(&scene.nodes, &scene.node, "short of space", DEADLINE, pressure("True")).await?;
    // As often as the Lease is renewed, the disk is looked at: by now somebody has seen that it is full, and waits for the first pass.
    let leases: Api<Lease> = Api::namespaced(scene.control_plane.client().await?, "kube-node-lease");
    let renewed = |lease: &Lease| lease.spec.as_ref().and_then(|spec| spec.renew_time.clone());
    for _ in 0..3 {
        let before = renewed(&leases.get(&scene.node).await?);
        wait::until(&leases, &scene.node, "renewed", DEADLINE, |lease| renewed(lease) != before).await?;
    }
    gate.open()?;
    left(&scene, &["busy"], 1).await?;
    wait::until(&scene.nodes, &scene.node, "well", DEADLINE, pressure("False")).await?;
    more_looks(&running).await?;
    scene.phase("stays", "Running").await?;
    let told = scene.kubectl.run(["describe", "pod", "stays"]).await?;
    ensure!(!told.contains("Evicted"), "{told}");
    Ok(())
}

#[tokio::test]
async fn a_pod_that_goes_while_room_is_made_leaves_no_half_of_an_image() -> Result<()> {
    let scene = Scene::new("room-goes").await?;
    let gate = Gate::new(&scene)?;
    let running = gate.before(&agent(&scene, 100, 99)).start()?;
    used(&scene, &running, &[("a", MIB), ("b", 2 * MIB)]).await?;
    gate.shut()?;
    lack_space(&scene).await?;
    gate.is_reached().await?;
    scene.kubectl.run(["delete", "pod", "lacks", "--wait=false"]).await?;
    wait::until_gone(&scene.pods, "lacks", DEADLINE).await.with_context(|| scene.agent_log())?;
    gate.open()?;
    left(&scene, &["b"], 1).await
}

#[tokio::test]
async fn a_pod_whose_vm_lacks_room_is_deleted_without_waiting_for_it() -> Result<()> {
    let scene = Scene::new("room-waits").await?;
    let gate = Gate::new(&scene)?;
    let running = gate.before(&agent(&scene, 100, 99)).start()?;
    used(&scene, &running, &[("a", MIB), ("b", 2 * MIB)]).await?;
    gate.shut()?;
    scene.mac.set_fault(Fault::NoSpace, "run")?;
    scene.create(&pod(&scene, "waits", "b", &json!({}))).await?;
    gate.is_reached().await?;
    scene.kubectl.run(["delete", "pod", "waits", "--grace-period=1", "--wait=false"]).await?;
    wait::until_gone(&scene.pods, "waits", DEADLINE).await.with_context(|| scene.agent_log())?;
    ensure!(scene.bases().await?.len() == 2, "the other image is gone by now");
    gate.open()?;
    left(&scene, &["b"], 1).await
}

#[tokio::test]
async fn an_image_that_tart_has_half_deleted_goes() -> Result<()> {
    for is_whole in [true, false] {
        let scene = Scene::new("half-deleted").await?;
        let running = agent(&scene, 100, 99).start()?;
        used(&scene, &running, &[("a", MIB), ("b", 2 * MIB)]).await?;
        running.kill9()?;
        // Its tag is gone, and tart was killed before it had taken the image along.
        let digest = digest(&scene, "a")?;
        let image = repository(&scene, "a").join(&digest);
        scene.mac.tart(["delete", &format!("tk-base-{}", &digest["sha256:".len()..][..32])]).await?;
        std::fs::remove_file(repository(&scene, "a").join("1"))?;
        if !is_whole {
            std::fs::remove_file(image.join("config.json"))?;
        }
        let running = agent(&scene, 100, 99).start()?;
        scene.node_ready(&running).await?;
        lack_space(&scene).await?;
        is_gone(&image, &running).await?;
        left(&scene, &["b"], 1).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_tag_of_others_keeps_an_image_but_not_its_base() -> Result<()> {
    let scene = Scene::new("second-tag").await?;
    let running = agent(&scene, 100, 99).start()?;
    scene.node_ready(&running).await?;
    // The same image by two tags.
    let (ours, theirs) = (reference("a"), "registry.test/macos/a:2");
    for name in [&ours, theirs] {
        scene.mac.add_image(name, &json!({"cpu": 5}))?;
    }
    use_once(&scene, "a").await?;
    scene.mac.tart(["pull", theirs]).await?;
    used(&scene, &running, &[("b", MIB)]).await?;
    let image = repository(&scene, "a").join(digest(&scene, "a")?);
    left(&scene, &["a", "b"], 2).await?;
    lack_space(&scene).await?;
    left(&scene, &["b"], 1).await?;
    // The next one that lacks space has no say in it either: it is somebody else's.
    scene.told("pod", "lacks", "ImagePullBackOff").await?;
    let list = scene.mac.tart(["list", "--source", "oci", "--quiet"]).await?;
    ensure!(list.lines().any(|name| name == theirs) && !list.lines().any(|name| name == ours), "{list}");
    ensure!(image.join("disk.img").exists(), "{list}");
    Ok(())
}

#[tokio::test]
async fn an_image_that_a_pod_has_named_by_its_digest_goes() -> Result<()> {
    let scene = Scene::new("by-digest").await?;
    let running = agent(&scene, 100, 99).start()?;
    add_image(&scene, "a", MIB)?;
    // Somebody else has looked it up.
    let elsewhere = scene.mac.sandbox().directory("elsewhere")?;
    let mut name = String::new();
    for command in ["pull", "fqn"] {
        let mut tart = scene.mac.command(scene.mac.tart_binary());
        tart.args([command, &reference("a")]).env("TART_HOME", &elsewhere);
        name = process::run(tart, "", DEADLINE).await?.trim().to_owned();
    }
    scene.node_ready(&running).await?;
    let named: Value = json!({"image": name, "command": ["true"]});
    scene.create(&scene.pod("named", &named, &json!({}))).await?;
    scene.phase("named", "Succeeded").await?;
    scene.kubectl.run(["delete", "pod", "named"]).await?;
    used(&scene, &running, &[("b", 2 * MIB)]).await?;
    let image = repository(&scene, "a").join(digest(&scene, "a")?);
    ensure!(image.join("disk.img").exists() && scene.bases().await?.len() == 2);
    lack_space(&scene).await?;
    is_gone(&image, &running).await?;
    left(&scene, &["b"], 1).await
}

#[tokio::test]
async fn where_nothing_may_be_deleted_a_vm_without_room_says_so() -> Result<()> {
    let scene = Scene::new("off-vm").await?;
    let running = agent(&scene, 1, 0).switch("--disable-vm-gc").start()?;
    used(&scene, &running, &[("a", MIB), ("b", 2 * MIB)]).await?;
    scene.mac.set_fault(Fault::NoSpace, "run")?;
    scene.create(&pod(&scene, "full", "b", &json!({"command": ["true"]}))).await?;
    scene.phase("full", "Failed").await?;
    scene.told_as("full", "FreeDiskSpaceFailed", "the Pod's VM has found no space on the disk").await?;
    scene.told("pod", "full", "with `--disable-vm-gc` the agent deletes no image for it").await?;
    scene.mac.clear_fault(Fault::NoSpace)?;
    lack_space(&scene).await?;
    scene.told_as("lacks", "FreeDiskSpaceFailed", "there is no space for image").await?;
    left(&scene, &["a", "b"], 2).await
}

#[tokio::test]
async fn where_nothing_may_be_deleted_a_log_and_a_volume_without_room_say_so() -> Result<()> {
    let Some((scene, disk)) = small("off-disk", 300 * MIB).await? else { return Ok(()) };
    let state = scene.mac.tart_home().join("state");
    let running = agent(&scene, 1, 0)
        .switch("--disable-vm-gc")
        .flag("--state-dir", &state.display().to_string())
        .start()?;
    used(&scene, &running, &[("a", SIZE.into()), ("b", MIB)]).await?;
    let file = scene.mac.host().join("large");
    std::fs::write(&file, "x".repeat(900_000))?;
    let from_file = format!("--from-file=large={}", file.display());
    scene.kubectl.run(["create", "configmap", "large", &from_file]).await?;
    // Enough for the Pod's own state, but not for its files.
    disk.fill_but(MIB / 2)?;
    let mounts = json!([{"name": "files", "mountPath": "/Users/admin/files"}]);
    let mut reader = pod(&scene, "reader", "b", &json!({"command": ["true"], "volumeMounts": mounts}));
    reader["spec"]["volumes"] = json!([{"name": "files", "configMap": {"name": "large"}}]);
    scene.create(&reader).await?;
    scene.told("pod", "reader", "free some disk space on the host").await?;
    left(&scene, &["a", "b"], 2).await?;
    disk.fill(0)?;
    scene.phase("reader", "Succeeded").await?;

    let script = "line=$(head -c 8000 /dev/zero | tr '\\0' x); while :; do echo $line; sleep 0.02; done";
    scene.create(&pod(&scene, "chatty", "b", &json!({"command": ["/bin/sh", "-c", script]}))).await?;
    scene.phase("chatty", "Running").await?;
    disk.fill_up()?;
    scene.told("pod", "chatty", "with `--disable-vm-gc` the agent deletes no image for it").await?;
    left(&scene, &["a", "b"], 2).await?;
    scene.phase("chatty", "Running").await.map(drop)
}
