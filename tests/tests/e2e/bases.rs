//! Base VMs: one per image, made once, and what every VM of a Pod is cloned from.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tart_kubelet_tests::agent::RunningAgent;
use tart_kubelet_tests::mac::Fault;
use tart_kubelet_tests::{programs, wait};

use crate::scene::{DEADLINE, IMAGE, Scene};

/// A tart that writes down what it is asked for, then does it.
struct Witness {
    program: PathBuf,
    notes: PathBuf,
}

impl Witness {
    fn new(scene: &Scene) -> Result<Self> {
        let (program, notes) = (scene.mac.host().join("witness"), scene.mac.host().join("witness.log"));
        let script = format!(
            "#!/bin/sh\necho \"$*\" >>'{}'\nexec '{}' \"$@\"\n",
            notes.display(),
            scene.mac.tart_binary().display()
        );
        programs::write(&program, &script)?;
        std::fs::write(&notes, "")?;
        Ok(Self { program, notes })
    }

    /// What it was asked for since the last time, but for looks at its version, and at addresses: that begins while `tart run` does.
    fn calls(&self) -> Result<Vec<String>> {
        let calls = std::fs::read_to_string(&self.notes)?;
        std::fs::write(&self.notes, "")?;
        let counts = |call: &&str| *call != "--version" && !call.starts_with("ip ");
        Ok(calls.lines().filter(counts).map(str::to_owned).collect())
    }
}

pub(crate) async fn run_to_its_end(scene: &Scene, name: &str) -> Result<()> {
    scene.create(&scene.pod(name, &json!({"command": ["true"]}), &json!({}))).await?;
    scene.phase(name, "Succeeded").await?;
    scene.kubectl.run(["delete", "pod", name]).await?;
    scene.nothing_left().await
}

#[tokio::test]
async fn an_image_becomes_one_base_that_its_vms_are_cloned_from() -> Result<()> {
    let scene = Scene::new("base").await?;
    let witness = Witness::new(&scene)?;
    let agent = scene.agent.clone().flag("--tart-binary", &witness.program.display().to_string());
    let running = agent.start()?;
    scene.node_ready(&running).await?;

    // Two at once, of an image that nobody has seen yet.
    for name in ["one", "two"] {
        scene.create(&scene.pod(name, &json!({}), &json!({}))).await?;
    }
    let mut images = Vec::new();
    for name in ["one", "two"] {
        let pod = scene.phase(name, "Running").await?;
        let statuses =
            pod.status.and_then(|status| status.container_statuses).context("no container status")?;
        images.push(statuses[0].image_id.clone());
    }
    let repository = IMAGE.rsplit_once(':').context("no tag")?.0;
    ensure!(images[0].starts_with(&format!("{repository}@sha256:")), "{images:?}");
    assert_eq!(images[0], images[1]);
    let bases = scene.bases().await?;
    let [base] = bases.as_slice() else { anyhow::bail!("not one base: {bases:?}") };
    let calls = witness.calls()?;
    let count = |start: &str| calls.iter().filter(|call| call.starts_with(start)).count();
    let from_image = format!("clone {} {base}", images[0]);
    assert_eq!(
        (count("pull"), count(&from_image), count(&format!("clone {base} tk-"))),
        (1, 1, 2),
        "{calls:#?}"
    );
    for name in ["one", "two"] {
        scene.kubectl.run(["delete", "pod", name]).await?;
    }
    scene.nothing_left().await?;

    // With the image warm, two calls come before `tart run`.
    witness.calls()?;
    run_to_its_end(&scene, "warm").await?;
    let calls = witness.calls()?;
    let before: Vec<&str> =
        calls.iter().take_while(|call| !call.starts_with("run ")).map(String::as_str).collect();
    ensure!(
        matches!(before.as_slice(), [clone, set] if clone.starts_with(&format!("clone {base} ")) && set.starts_with("set ")),
        "{calls:#?}"
    );

    // A restarted agent does not make it again; one that was deleted is made again.
    let _running = running.restart()?;
    run_to_its_end(&scene, "restarted").await?;
    ensure!(!witness.calls()?.contains(&from_image), "the base was made twice");
    scene.mac.tart(["delete", base]).await?;
    run_to_its_end(&scene, "again").await?;
    ensure!(witness.calls()?.contains(&from_image), "the base was not made again");
    assert_eq!(scene.bases().await?, bases);
    Ok(())
}

#[tokio::test]
async fn another_image_is_another_base() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("bases").await?;
    run_to_its_end(&scene, "first").await?;
    // The tag moves.
    scene.mac.add_image(IMAGE, &json!({"cpu": 5}))?;
    let always = json!({"command": ["true"], "imagePullPolicy": "Always"});
    scene.create(&scene.pod("second", &always, &json!({}))).await?;
    scene.phase("second", "Succeeded").await?;
    assert_eq!(scene.bases().await?.len(), 2);
    Ok(())
}

#[tokio::test]
async fn a_disk_without_room_is_told_and_heals() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("room").await?;
    scene.mac.set_fault(Fault::NoSpace, "clone")?;
    scene.create(&scene.pod("room", &json!({}), &json!({}))).await?;
    scene.told("pod", "room", "free some disk space on the host").await?;
    scene.mac.clear_fault(Fault::NoSpace)?;
    scene.phase("room", "Running").await.map(drop)
}

#[tokio::test]
async fn a_base_that_goes_at_the_last_moment_costs_no_pod() -> Result<()> {
    let (scene, agent) = Scene::with_agent("last-moment").await?;
    run_to_its_end(&scene, "first").await?;
    agent.kill9()?;
    let dying = scene.agent.clone().env("TART_KUBELET_CRASH", "agent.plan.after").start()?;
    scene.create(&scene.pod("planned", &json!({"command": ["true"]}), &json!({}))).await?;
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
async fn a_base_that_was_damaged_is_made_again() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("damaged").await?;
    run_to_its_end(&scene, "first").await?;
    let bases = scene.bases().await?;
    let [base] = bases.as_slice() else { anyhow::bail!("{bases:?}") };
    for file in ["disk.img", "nvram.bin"] {
        let path = scene.mac.tart_home().join("vms").join(base).join(file);
        std::fs::remove_file(&path)?;
        let pod = format!("without-{}", file.replace('.', "-"));
        run_to_its_end(&scene, &pod).await?;
        ensure!(path.exists(), "{}", scene.agent_log());
    }
    Ok(())
}

#[tokio::test]
async fn a_base_that_the_record_has_lost_goes_once_nothing_needs_it() -> Result<()> {
    let scene = Scene::new("lost-base").await?;
    let eager = scene.agent.clone().flag("--vm-gc-interval", "300ms").flag("--vm-gc-min-age", "0s");
    let agent = eager.start()?;
    run_to_its_end(&scene, "first").await?;
    let bases = scene.bases().await?;
    let [base] = bases.as_slice() else { anyhow::bail!("not one base: {bases:?}") };
    let other = "registry.test/macos/other:1";
    scene.mac.add_image(other, &json!({"cpu": 6}))?;
    scene.create(&scene.pod("lives", &json!({"image": other}), &json!({}))).await?;
    scene.phase("lives", "Running").await?;
    agent.kill9()?;
    forget_image(&scene, base)?;
    // What somebody else has cloned from a base has another name, and that is all that counts.
    scene.mac.tart(["clone", base, "tk-base-of-mine"]).await?;

    let agent = eager.start()?;
    let deleted = "tart_kubelet_vm_gc_deleted_total{kind=\"base\"}";
    wait::eventually("the end of the base", DEADLINE, async || {
        ensure!((agent.metric(deleted).await? - 1.0).abs() < f64::EPSILON);
        Ok(())
    })
    .await
    .with_context(|| agent.log().unwrap_or_default())?;
    let left = scene.bases().await?;
    ensure!(!left.contains(base) && left.len() == 2, "{left:?}");
    let table = agent.agent().run(&["gc", "--dry-run"]).await?;
    let row = |name: &str| table.lines().find(|line| line.split_whitespace().nth(1) == Some(name));
    let needed = left.iter().find(|name| *name != "tk-base-of-mine").context("no base is left")?;
    for (name, why) in
        [("tk-base-of-mine", "not made by this agent"), (needed, "VMs of Pods are cloned from it")]
    {
        ensure!(row(name).is_some_and(|row| row.contains(" keep ") && row.ends_with(why)), "{table}");
    }
    // The image is still in tart's cache, and Pods start from it as ever.
    run_to_its_end_beside(&scene, "again").await?;
    ensure!(scene.bases().await?.contains(base));
    scene.phase("lives", "Running").await.map(drop)
}

#[tokio::test]
async fn a_record_that_is_spoilt_makes_no_base_an_orphan() -> Result<()> {
    let scene = Scene::new("spoilt-record").await?;
    let eager = scene.agent.clone().flag("--vm-gc-interval", "300ms").flag("--vm-gc-min-age", "0s");
    let agent = eager.start()?;
    run_to_its_end(&scene, "first").await?;
    let bases = scene.bases().await?;
    let [base] = bases.as_slice() else { anyhow::bail!("not one base: {bases:?}") };
    agent.kill9()?;
    std::fs::write(record(&scene), "{")?;
    let is_kept = async |agent: &RunningAgent, why: &str| -> Result<()> {
        two_passes(agent).await?;
        let table = agent.agent().run(&["gc", "--dry-run"]).await?;
        let row =
            table.lines().find(|line| line.split_whitespace().nth(1) == Some(base)).context("no row")?;
        ensure!(row.contains(" keep ") && row.contains(why), "{table}");
        ensure!(scene.bases().await?.contains(base), "the base is gone");
        Ok(())
    };

    let agent = eager.start()?;
    is_kept(&agent, "the record of images was spoilt").await?;
    // Another image is written down in a new record, and the next agent reads that one.
    let other = "registry.test/macos/other:1";
    scene.mac.add_image(other, &json!({"cpu": 6}))?;
    scene.create(&scene.pod("second", &json!({"image": other, "command": ["true"]}), &json!({}))).await?;
    scene.phase("second", "Succeeded").await?;
    let agent = agent.restart()?;
    is_kept(&agent, "the record of images was spoilt").await?;

    // A person has looked. What is not in tart's cache any more may be the only copy.
    let cache = scene.mac.tart_home().join("cache/OCIs");
    let aside = scene.mac.tart_home().join("cache-aside");
    std::fs::rename(&cache, &aside)?;
    std::fs::remove_file(record(&scene).with_extension("json.spoilt"))?;
    is_kept(&agent, "it may be the only copy").await?;
    std::fs::rename(&aside, &cache)?;
    wait::eventually("the end of the base", DEADLINE, async || {
        ensure!(!scene.bases().await?.contains(base));
        Ok(())
    })
    .await
}

pub(crate) fn record(scene: &Scene) -> PathBuf {
    scene.agent.state_dir().join("images.json")
}

/// Has the record of images lose the one that a base was made from.
pub(crate) fn forget_image(scene: &Scene, base: &str) -> Result<()> {
    let mut known: Value = serde_json::from_slice(&std::fs::read(record(scene))?)?;
    let images = known["images"].as_array_mut().context("no images")?;
    let digits = base.strip_prefix("tk-base-").context("no base")?.to_owned();
    let before = images.len();
    images.retain(|image| !image.to_string().contains(&digits));
    ensure!(images.len() + 1 == before, "{known}");
    Ok(std::fs::write(record(scene), known.to_string())?)
}

/// Waits until the collector has looked, judged and looked again, all of it after now.
async fn two_passes(agent: &RunningAgent) -> Result<()> {
    const PASSES: &str = "tart_kubelet_vm_gc_passes_total{result=\"success\"}";
    let mut before = None;
    wait::eventually("two more passes of the collector", DEADLINE, async || {
        let passes = agent.metric(PASSES).await?;
        ensure!(passes >= *before.get_or_insert(passes) + 2.0);
        Ok(())
    })
    .await
    .with_context(|| agent.log().unwrap_or_default())
}

/// A Pod that ends while another one runs on.
async fn run_to_its_end_beside(scene: &Scene, name: &str) -> Result<()> {
    scene.create(&scene.pod(name, &json!({"command": ["true"]}), &json!({}))).await?;
    scene.phase(name, "Succeeded").await?;
    scene.kubectl.run(["delete", "pod", name]).await.map(drop)
}
