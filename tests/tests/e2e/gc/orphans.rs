//! Orphans: VMs without a Pod. The collector deletes them, unless a shim or a tart uses them.

use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;

use anyhow::{Context, Result, ensure};
use tart_kubelet_tests::agent::RunningAgent;
use tart_kubelet_tests::mac::Fault;
use tart_kubelet_tests::wait;

use super::{
    NO_POD, ORPHAN, clone_vm, collected, dry_run_row, frequent_gc, pass_count, passes, run_vm, vm_exists,
};
use crate::disk_space::{MIB, small_disk};
use crate::scene::{DEADLINE, IMAGE, PodView as _, Scene};

#[tokio::test]
async fn orphan_is_deleted_with_its_state() -> Result<()> {
    let scene = Scene::new("orphan").await?;
    let agent = scene.start(&frequent_gc(&scene.agent)).await?;
    // An agent that starts deletes the state of Pods that are gone by itself, so wait until it has.
    passes(&agent, "success").await?;
    let half = format!("tk-{NO_POD}-1");
    // An interrupted deletion leaves a directory that is no VM to tart.
    clone_vm(&scene, "whole").await?;
    std::fs::remove_file(scene.vm_dir("whole").join("config.json"))?;
    // A killed VM leaves its socket.
    drop(UnixListener::bind(scene.vm_dir("whole").join("control.sock"))?);
    std::fs::rename(scene.vm_dir("whole"), scene.vm_dir(&half))?;
    // An interrupted clone is in tart's temporary directory.
    let clone = scene.mac.tart_home().join("tmp/6D1E9C2A-0000-4000-8000-0123456789AB");
    std::fs::create_dir_all(&clone)?;
    std::fs::write(clone.join("config.json"), "{")?;
    let state = scene.agent.state_dir();
    for part in ["logs", "volumes", "pods"] {
        // A rename, so that the collector sees all of it or nothing.
        let made = state.join(format!("made-{part}"));
        std::fs::create_dir_all(made.join("main/deep"))?;
        std::fs::write(made.join("main/0.log"), "words")?;
        if part == "volumes" {
            // A guest may leave such a directory.
            std::fs::set_permissions(made.join("main"), Permissions::from_mode(0o000))?;
        }
        std::fs::rename(made, state.join(part).join(NO_POD))?;
    }
    clone_vm(&scene, ORPHAN).await?;
    collected(&scene, &agent, ORPHAN).await?;
    collected(&scene, &agent, &half).await?;
    ensure!(!clone.exists(), "half a clone is still there");
    scene.nothing_left().await?;
    for kind in ["vm", "state"] {
        let name = format!("tart_kubelet_vm_gc_deleted_total{{kind=\"{kind}\"}}");
        wait::eventually(&name, DEADLINE, async || {
            ensure!(agent.metric(&name).await? >= 1.0);
            Ok(())
        })
        .await?;
    }
    ensure!(agent.metric("tart_kubelet_vm_gc_last_success_timestamp_seconds").await? > 0.0);
    Ok(())
}

#[tokio::test]
async fn metrics_count_the_space_of_a_deleted_orphan() -> Result<()> {
    const SIZE: u32 = 20 << 20;
    let Some((scene, _disk)) = small_disk("orphan-bytes", 100 * MIB).await? else { return Ok(()) };
    clone_vm(&scene, ORPHAN).await?;
    std::fs::write(scene.vm_dir(ORPHAN).join("disk.img"), vec![1; usize::try_from(SIZE)?])?;
    let agent = frequent_gc(&scene.agent).start()?;
    collected(&scene, &agent, ORPHAN).await?;
    passes(&agent, "success").await?;
    let freed = agent.metric("tart_kubelet_vm_gc_freed_bytes_total").await?;
    ensure!(freed >= f64::from(SIZE), "{freed} bytes were freed");
    ensure!(agent.metric("tart_kubelet_vm_gc_duration_seconds_count").await? >= 3.0);
    Ok(())
}

#[tokio::test]
async fn running_orphan_is_stopped_and_then_deleted() -> Result<()> {
    let scene = Scene::new("orphan-runs").await?;
    clone_vm(&scene, ORPHAN).await?;
    let process = run_vm(&scene, ORPHAN).await?;
    scene.mac.set_fault(Fault::Calls, "")?;
    let agent = frequent_gc(&scene.agent).start()?;
    collected(&scene, &agent, ORPHAN).await?;
    process.wait_for_exit(DEADLINE).await?;
    let calls = scene.tart_calls()?;
    let first = |command: &str| calls.iter().position(|call| call == command);
    ensure!(first("stop").is_some() && first("stop") < first("delete"), "{calls:?}");
    Ok(())
}

#[tokio::test]
async fn orphan_with_a_shim_or_a_tart_lock_is_kept() -> Result<()> {
    let scene = Scene::new("orphan-held").await?;
    let agent = frequent_gc(&scene.agent).start()?;
    passes(&agent, "success").await?;
    // The shim of a Pod that was deleted while no agent ran.
    let (shims, tarts) = (ORPHAN, format!("tk-{}1-0", &NO_POD[..NO_POD.len() - 1]));
    let run = scene.first_run_dir(NO_POD);
    // A rename, so that the collector sees all of it or nothing.
    let made = scene.agent.state_dir().join("made");
    std::fs::create_dir_all(made.join("0"))?;
    let shim = File::create(made.join("0/shim.lock"))?;
    shim.lock()?;
    std::fs::rename(made, scene.pod_dir(NO_POD))?;
    clone_vm(&scene, shims).await?;
    // A tart that has renamed a clone to its place and still has it locked.
    let made = scene.mac.tart_home().join("made");
    scene.mac.tart(["clone", IMAGE, "made"]).await?;
    std::fs::rename(scene.vm_dir("made"), &made)?;
    let tart = File::open(&made)?;
    tart.lock()?;
    std::fs::rename(&made, scene.vm_dir(&tarts))?;

    passes(&agent, "success").await?;
    ensure!(vm_exists(&scene, shims) && vm_exists(&scene, &tarts) && run.exists(), "{}", agent.log()?);
    for reason in ["shim", "tart"] {
        let kept = agent.metric(&format!("tart_kubelet_vm_gc_kept{{reason=\"{reason}\"}}")).await?;
        ensure!(kept >= 1.0, "{reason}: {kept}");
    }
    let table = agent.agent().run(&["gc", "--dry-run"]).await?;
    ensure!(table.contains("its shim lives") && table.contains("tart has locked it"), "{table}");
    drop((shim, tart));
    collected(&scene, &agent, shims).await?;
    collected(&scene, &agent, &tarts).await?;
    scene.nothing_left().await
}

#[tokio::test]
async fn young_orphan_is_kept() -> Result<()> {
    let scene = Scene::new("orphan-young").await?;
    clone_vm(&scene, ORPHAN).await?;
    let agent = frequent_gc(&scene.agent).flag("--vm-gc-min-age", "1h").start()?;
    passes(&agent, "success").await?;
    ensure!(vm_exists(&scene, ORPHAN), "{}", agent.log()?);
    ensure!(agent.metric("tart_kubelet_vm_gc_kept{reason=\"age\"}").await? >= 1.0);
    Ok(())
}

#[tokio::test]
async fn collector_deletes_nothing_without_the_api_server() -> Result<()> {
    let scene = Scene::new("orphan-outage").await?;
    let (proxy, agent) = scene.proxied(&frequent_gc(&scene.agent)).await?;
    let agent = agent.start()?;
    passes(&agent, "success").await?;
    proxy.sever();
    // A pass that began before may still succeed.
    passes(&agent, "failure").await?;
    clone_vm(&scene, ORPHAN).await?;
    passes(&agent, "failure").await?;
    ensure!(vm_exists(&scene, ORPHAN), "{}", agent.log()?);
    let table = agent.agent().run(&["gc", "--dry-run"]).await?;
    ensure!(table.contains("the Pods of this Node are not known") && !table.contains(" delete "), "{table}");
    proxy.open();
    collected(&scene, &agent, ORPHAN).await
}

#[tokio::test]
async fn collector_deletes_nothing_without_a_list_of_vms() -> Result<()> {
    let scene = Scene::new("orphan-list").await?;
    clone_vm(&scene, ORPHAN).await?;
    let logs = scene.agent.state_dir().join("logs");
    for (fault, parameter) in [(Fault::ListRace, ORPHAN), (Fault::Garbage, "list"), (Fault::Hang, "clone")] {
        scene.mac.set_fault(fault, parameter)?;
        let agent = frequent_gc(&scene.agent).start()?;
        if fault == Fault::Hang {
            // The collector does not clone.
            collected(&scene, &agent, ORPHAN).await?;
            continue;
        }
        passes(&agent, "failure").await?;
        std::fs::create_dir_all(logs.join(NO_POD))?;
        passes(&agent, "failure").await?;
        ensure!(vm_exists(&scene, ORPHAN) && logs.join(NO_POD).exists(), "{fault:?}: {}", agent.log()?);
        // Without the fault the agent would delete the VM.
        agent.kill9()?;
        scene.mac.clear_fault(fault)?;
    }
    Ok(())
}

#[tokio::test]
async fn collector_matches_whole_vm_names_only() -> Result<()> {
    let scene = Scene::new("orphan-prefix").await?;
    let agent = frequent_gc(&scene.agent).start()?;
    let pod = scene.pod("lives").create_until("Running").await?;
    let (vm, uid) = (pod.vm()?, pod.uid_of()?);
    let shorter = uid.get(..uid.len() - 1).context("a short UID")?;
    let stay = [
        // The Pod's worker, not the collector, deletes other VMs of the same Pod.
        format!("tk-{uid}-7"),
        format!("tk-{uid}-00"),
        format!("{vm}.old"),
        format!("tk-{uid}"),
        format!("{vm}-0"),
        format!("tk-{shorter}-0"),
        format!("tk-{uid}0-0"),
        "tk-sequoia-15".to_owned(),
    ];
    let other = if uid.ends_with('0') { '1' } else { '0' };
    let orphan = format!("tk-{shorter}{other}-0");
    for name in stay.iter().chain([&orphan]) {
        clone_vm(&scene, name).await?;
    }
    collected(&scene, &agent, &orphan).await?;
    passes(&agent, "success").await?;
    for name in stay.iter().chain([&vm]) {
        ensure!(vm_exists(&scene, name), "{name} is gone: {}", agent.log()?);
    }
    scene.mac.tart(["exec", &vm, "true"]).await.context("the Pod's VM runs on")?;
    Ok(())
}

#[tokio::test]
async fn new_pod_of_the_same_name_does_not_keep_an_orphan() -> Result<()> {
    let (scene, agent) = Scene::with_agent("orphan-again").await?;
    let first = scene.pod("same").create_until("Running").await?;
    let old = first.vm()?;
    agent.kill9()?;
    scene.kill_shims()?;
    scene.force_delete("same").await?;
    // Only the VM itself is left, and runs on.
    std::fs::remove_dir_all(scene.pod_dir(first.uid_of()?))?;
    assert_eq!(scene.running_vms().await?, std::slice::from_ref(&old));
    scene.pod("same").create().await?;
    let agent = frequent_gc(&scene.agent).start()?;
    collected(&scene, &agent, &old).await?;
    let new = scene.phase("same", "Running").await?.vm()?;
    ensure!(new != old);
    passes(&agent, "success").await?;
    scene.mac.tart(["exec", &new, "true"]).await.context("the second Pod's VM runs")?;
    Ok(())
}

#[tokio::test]
async fn agent_restart_deletes_the_orphan() -> Result<()> {
    let scene = Scene::new("orphan-crash").await?;
    clone_vm(&scene, ORPHAN).await?;
    let dying = frequent_gc(&scene.agent).env("TART_KUBELET_CRASH", "agent.gc.before").start()?;
    dying.wait_for_exit(DEADLINE).await?;
    ensure!(vm_exists(&scene, ORPHAN));
    let agent = frequent_gc(&scene.agent).start()?;
    collected(&scene, &agent, ORPHAN).await
}

#[tokio::test]
async fn dry_run_lists_every_vm_and_deletes_none() -> Result<()> {
    let scene = Scene::new("dry-run").await?;
    let agent = scene.agent.clone().flag("--vm-gc-min-age", "0s").start()?;
    passed_once(&agent).await?;
    let pod = scene.pod("lives").create_until("Running").await?;
    clone_vm(&scene, ORPHAN).await?;
    clone_vm(&scene, "builder").await?;
    let lives = format!("keep       Pod {}/lives is on this Node", scene.namespace());
    for (vm, end) in [(pod.vm()?.as_str(), lives.as_str()), ("builder", "keep       not made by this agent")]
    {
        let row = dry_run_row(&agent, vm).await?;
        ensure!(row.ends_with(end), "{row}");
    }
    let row = dry_run_row(&agent, ORPHAN).await?;
    ensure!(row.contains("delete     no Pod of this Node has its UID"), "{row}");
    for base in scene.bases().await? {
        let row = dry_run_row(&agent, &base).await?;
        ensure!(row.contains(" keep "), "{row}");
    }
    ensure!(vm_exists(&scene, ORPHAN), "a dry run deletes nothing");
    let refused = agent.agent().run(&["gc"]).await.err().context("it was not refused")?;
    ensure!(format!("{refused:#}").contains("gc --dry-run` shows what it would delete"), "{refused:#}");
    agent.process().ensure_running()
}

/// Waits for the first pass of the collector.
async fn passed_once(agent: &RunningAgent) -> Result<()> {
    wait::eventually("the first pass", DEADLINE, async || {
        ensure!(pass_count(agent, "success").await? >= 1.0);
        Ok(())
    })
    .await
}
