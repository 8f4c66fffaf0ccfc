//! A Mac that has an agent gets another one, or other flags.

use std::path::Path;

use anyhow::{Result, ensure};
use tart_kubelet_tests::mac_host::Fault;

use super::running_vm::RunningVm;
use super::scene::{BINARY, LABEL, PLIST, Scene};

#[tokio::test]
async fn a_new_binary_restarts_the_agent_in_place_and_a_new_flag_registers_it_anew_while_a_vm_runs_on()
-> Result<()> {
    let Some(scene) = Scene::applied("fleet-roll").await? else { return Ok(()) };
    let vm = RunningVm::start(&scene).await?;
    let processes = vm.processes().await?;
    let other = scene.other_agent();
    let (pid, plist, binary, calls) =
        (scene.pid().await?, scene.inode(PLIST)?, scene.inode(BINARY)?, scene.mac.calls()?.len());
    let ready_since = scene.until_ready().await?;

    let rolled = scene.host("roll", other, &[]).await?.ok()?;
    ensure!(rolled.contains("changed  agent's binary") && rolled.contains("changed  agent\n"), "{rolled}");
    assert_eq!(scene.launchctl_changes(calls)?, [format!("launchctl kickstart -k system/{LABEL}")]);
    assert_eq!(scene.inode(PLIST)?, plist, "the property list was written again");
    ensure!(scene.inode(BINARY)? != binary, "the binary was overwritten in place");
    ensure!(scene.pid().await? != pid, "the old process still runs");
    vm.goes_on(&processes).await?;
    assert_eq!(scene.until_ready().await?, ready_since, "the Node was not Ready for a time");

    let (pid, calls) = (scene.pid().await?, scene.mac.calls()?.len());
    let rolled = scene.host("roll", other, &["--max-pods=1"]).await?.ok()?;
    ensure!(rolled.contains("+\t\t<string>--max-pods=1</string>"), "{rolled}");
    let changes = scene.launchctl_changes(calls)?;
    ensure!(changes.iter().any(|call| call.contains("bootout")), "{changes:?}");
    ensure!(changes.iter().any(|call| call.contains("bootstrap system")), "{changes:?}");
    ensure!(scene.pid().await? != pid, "the old process still runs");
    vm.goes_on(&processes).await?;
    assert_eq!(scene.until_ready().await?, ready_since, "the Node was not Ready for a time");
    scene.keeps_its_secrets(&[]).await?;
    vm.ends_with_its_own_code().await
}

#[tokio::test]
async fn a_broken_binary_leaves_the_agent_that_runs() -> Result<()> {
    let Some(scene) = Scene::applied("fleet-broken").await? else { return Ok(()) };
    let (pid, binary) = (scene.pid().await?, scene.inode(BINARY)?);
    let broken = Path::new("/usr/bin/false");
    let failed = scene.host("roll", broken, &[]).await?.failed()?;
    ensure!(failed.contains("the new tart-kubelet does not run: `--version` ended with 1"), "{failed}");
    assert_eq!((scene.pid().await?, scene.inode(BINARY)?), (pid, binary));
    // The drift is still there.
    let plan = scene.host("plan", broken, &[]).await?.ok()?;
    ensure!(plan.contains("differs  agent's binary"), "{plan}");
    Ok(())
}

#[tokio::test]
async fn an_agent_that_ends_at_once_gives_way_to_the_old_one() -> Result<()> {
    let Some(scene) = Scene::applied("fleet-ends").await? else { return Ok(()) };
    // It prints a version, so that nothing is wrong with it until launchd starts it.
    let failed = scene.host("roll", Path::new("/usr/bin/true"), &[]).await?.failed()?;
    ensure!(failed.contains("the program ends soon after each start"), "{failed}");
    ensure!(failed.contains("the old one was put back and runs as PID"), "{failed}");
    scene.pid().await?;
    scene.until_ready().await?;
    let healed = scene.host("roll", scene.agent(), &[]).await?.ok()?;
    ensure!(healed.contains("changed  agent's binary"), "{healed}");
    Ok(())
}

#[tokio::test]
async fn a_connection_that_is_cut_leaves_the_old_agent_and_the_next_roll_heals_it() -> Result<()> {
    let Some(scene) = Scene::applied("fleet-cut").await? else { return Ok(()) };
    let (pid, binary) = (scene.pid().await?, scene.inode(BINARY)?);
    let other = scene.other_agent();
    for call in ["codesign", "shasum"] {
        scene.mac.set_fault(Fault::CutAt, call)?;
        let failed = scene.host("roll", other, &[]).await?.failed()?;
        ensure!(failed.contains("not done: ") && failed.contains("skipped  agent"), "{call}: {failed}");
        assert_eq!((scene.pid().await?, scene.inode(BINARY)?), (pid, binary), "{call}");
    }
    // The binary is new, and the agent is not.
    scene.mac.set_fault(Fault::CutAt, &format!("launchctl kickstart -k system/{LABEL}"))?;
    let failed = scene.host("roll", other, &[]).await?.failed()?;
    ensure!(failed.contains("failed   agent:"), "{failed}");
    let healed = scene.host("roll", other, &[]).await?.ok()?;
    ensure!(healed.contains("done: ") || healed.contains("nothing to change"), "{healed}");
    ensure!(scene.pid().await? != pid, "the old process still runs");
    scene.until_ready().await.map(drop)
}

#[tokio::test]
async fn an_agent_that_macos_kills_for_its_signature_is_told_by_its_cause() -> Result<()> {
    let Some(scene) = Scene::applied("fleet-signature").await? else { return Ok(()) };
    scene.mac.set_fault(Fault::CodesignKill, LABEL)?;
    let failed = scene.host("roll", scene.other_agent(), &[]).await?.failed()?;
    ensure!(failed.contains("its code signature is not valid"), "{failed}");
    ensure!(failed.contains("OS_REASON_CODESIGNING"), "{failed}");
    scene.mac.clear_fault(Fault::CodesignKill)?;
    scene.host("roll", scene.other_agent(), &[]).await?.ok()?;
    scene.until_ready().await.map(drop)
}

/// macOS kills the new program only, as when it was signed with a certificate that was revoked since.
#[tokio::test]
async fn an_agent_that_macos_kills_for_its_signature_gives_way_to_the_old_one() -> Result<()> {
    let Some(scene) = Scene::applied("fleet-put-back").await? else { return Ok(()) };
    let binary = scene.inode(BINARY)?;
    scene.mac.set_fault(Fault::CodesignKillNew, LABEL)?;
    let failed = scene.host("roll", scene.other_agent(), &[]).await?.failed()?;
    ensure!(failed.contains("its code signature is not valid"), "{failed}");
    let pid = scene.pid().await?;
    ensure!(failed.contains(&format!("the old one was put back and runs as PID {pid}")), "{failed}");
    assert_eq!(scene.inode(BINARY)?, binary, "another binary is there");
    scene.until_ready().await?;
    let plan = scene.host("plan", scene.other_agent(), &[]).await?.ok()?;
    ensure!(plan.contains("differs  agent's binary"), "{plan}");
    scene.mac.clear_fault(Fault::CodesignKillNew)?;
    scene.host("roll", scene.other_agent(), &[]).await?.ok()?;
    ensure!(scene.inode(BINARY)? != binary, "the old binary is still there");
    scene.until_ready().await.map(drop)
}
