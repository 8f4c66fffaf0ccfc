//! VMs that a user makes with tart: the collector keeps them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use tart_kubelet_tests::mac::Fault;
use tart_kubelet_tests::wait;

use super::{ORPHAN, clone_vm, frequent_gc, passes, vm_exists};
use crate::scene::{DEADLINE, Scene};

/// Everything in a directory, byte for byte.
fn content(root: &Path) -> Result<BTreeMap<PathBuf, Vec<u8>>> {
    let mut files = BTreeMap::new();
    let mut dirs = vec![root.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(&dir)? {
            let path = entry?.path();
            if path.is_dir() {
                dirs.push(path);
            } else {
                let bytes = std::fs::read(&path)?;
                files.insert(path, bytes);
            }
        }
    }
    Ok(files)
}

/// Makes a VM with content of its own, as a builder of images does.
async fn build_vm(scene: &Scene, vm: &str) -> Result<BTreeMap<PathBuf, Vec<u8>>> {
    clone_vm(scene, vm).await?;
    for (file, byte) in [("disk.img", 0xd1), ("nvram.bin", 0xa7)] {
        std::fs::write(scene.vm_dir(vm).join(file), vec![byte; 1 << 16])?;
    }
    content(&scene.vm_dir(vm))
}

/// A user clones a VM and pushes it, each for longer than several passes take, while the Node has no Pods. `while_passes` waits for that
/// long. Every VM must be the same at the end, byte for byte.
async fn build_and_push(scene: &Scene, while_passes: impl AsyncFn() -> Result<()>) -> Result<()> {
    // One name is nearly that of a Pod's VM.
    let vms = ["tk-builder-1", "builder"];
    // tart has written half of the VM in its temporary directory.
    scene.mac.set_fault(Fault::StallCopy, "")?;
    let clone = build_vm(scene, vms[0]);
    let (before, ()) = tokio::try_join!(clone, async {
        wait::eventually("half a clone", DEADLINE, async || {
            let made =
                std::fs::read_dir(scene.mac.tart_home().join("tmp"))?.collect::<Result<Vec<_>, _>>()?;
            ensure!(made.iter().any(|half| half.path().join("nvram.bin").exists()), "{made:?}");
            Ok(())
        })
        .await?;
        while_passes().await?;
        scene.mac.clear_fault(Fault::StallCopy)
    })?;
    let second = build_vm(scene, vms[1]).await?;
    scene.mac.set_fault(Fault::Hang, "push")?;
    let push = scene.mac.tart(["push", vms[0], "registry.test/macos/built:1"]);
    tokio::try_join!(push, async {
        while_passes().await?;
        scene.mac.clear_fault(Fault::Hang)
    })?;
    while_passes().await?;
    for (vm, before) in [(vms[0], before), (vms[1], second)] {
        let after = content(&scene.vm_dir(vm))?;
        ensure!(after.keys().any(|path| path.ends_with("nvram.bin")), "{:?}", after.keys());
        ensure!(after == before, "{vm} has changed: {}", scene.agent_log());
    }
    Ok(())
}

#[tokio::test]
async fn collector_keeps_vms_of_an_image_builder() -> Result<()> {
    let scene = Scene::new("builder").await?;
    let agent = scene.start(&frequent_gc(&scene.agent)).await?;
    build_and_push(&scene, async || passes(&agent, "success").await).await?;
    let kept = agent.metric("tart_kubelet_vm_gc_kept{reason=\"foreign\"}").await?;
    ensure!((kept - 2.0).abs() < f64::EPSILON, "{kept}");
    ensure!(agent.metric("tart_kubelet_vm_gc_deleted_total{kind=\"vm\"}").await?.abs() < f64::EPSILON);
    Ok(())
}

#[tokio::test]
async fn disabled_collector_calls_no_tart_while_a_user_builds() -> Result<()> {
    let scene = Scene::new("builder-flag").await?;
    clone_vm(&scene, ORPHAN).await?;
    scene.mac.set_fault(Fault::Calls, "")?;
    let agent = scene.start(&frequent_gc(&scene.agent).switch("--disable-vm-gc")).await?;
    // There are no passes to wait for. Between two renewals of the Lease there would be more than thirty.
    build_and_push(&scene, async || scene.next_lease_renewal().await).await?;
    for command in ["list", "stop", "delete"] {
        assert_eq!(scene.count_calls(command)?, 0, "{command}");
    }
    ensure!(vm_exists(&scene, ORPHAN), "{}", agent.log()?);
    Ok(())
}

#[tokio::test]
async fn disabled_collector_lists_no_vms() -> Result<()> {
    let scene = Scene::new("builder-off").await?;
    let builder = build_vm(&scene, "builder").await?;
    clone_vm(&scene, ORPHAN).await?;
    scene.mac.set_fault(Fault::Calls, "")?;
    let agent = frequent_gc(&scene.agent).switch("--disable-vm-gc").start()?;
    // A Pod from start to end takes longer than many passes would.
    scene.pod("brief").command(["true"]).create_until("Succeeded").await?;
    scene.delete("brief").await?;
    let (runs, lists) = (scene.count_calls("run")?, scene.count_calls("list")?);
    ensure!(runs > 0 && lists == 0, "{:?}", scene.tart_calls()?);
    let lines = agent.log()?.lines().filter(|line| line.contains("--disable-vm-gc")).count();
    ensure!(lines == 1, "said {lines} times: {}", agent.log()?);
    let (_, page) = agent.ask("/metrics").await?;
    ensure!(!page.contains("_gc_"), "{page}");
    ensure!(vm_exists(&scene, ORPHAN) && content(&scene.vm_dir("builder"))? == builder);
    let table = agent.agent().run(&["gc", "--dry-run"]).await?;
    ensure!(!table.contains(" delete "), "{table}");
    Ok(())
}
