//! Rolls that go wrong on the Mac's side. Each ends with a word about it and an agent that runs, the Mac still differs, and the next roll heals it.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tart_kubelet_tests::control_plane::ControlPlane;
use tart_kubelet_tests::disk::SmallDisk;
use tart_kubelet_tests::mac_host::{Fault, MacHost};
use tart_kubelet_tests::wait::eventually;

use super::apply::tart_archive;
use super::builder::{AUTH_KEY, Builder, TOKEN};
use super::node_exporter::{self, exporters};
use super::scene::{BINARY, LABEL, PLIST, Scene};

/// launchd starts its jobs within seconds of a boot, also on a busy machine.
const BOOT_DEADLINE: Duration = Duration::from_mins(2);

/// An agent ends within its time, and another one is loaded.
const SETTLED_DEADLINE: Duration = Duration::from_mins(1);

/// A roll of this Mac finds something to do.
async fn still_differs(scene: &Scene, agent: &Path, flags: &[&str]) -> Result<()> {
    let plan = scene.host("plan", agent, flags).await?.ok()?;
    ensure!(plan.contains("would change the Mac"), "{plan}");
    Ok(())
}

#[tokio::test]
async fn a_bootout_that_takes_its_time_is_waited_for() -> Result<()> {
    let Some(scene) = Scene::applied("fleet-bootout").await? else { return Ok(()) };
    // The label stays after the process is gone, and launchd has three ways to say so.
    for (code, flag) in [("5", "--max-pods=1"), ("17", "--max-pods=3"), ("37", "--max-pods=4")] {
        scene.mac.set_fault(Fault::SlowBootout, "3s")?;
        scene.mac.set_fault(Fault::LoadedCode, code)?;
        let pid = scene.pid().await?;
        scene.host("roll", scene.agent(), &[flag]).await?.ok()?;
        ensure!(scene.pid().await? != pid, "{code}: the old process still runs");
    }
    scene.until_ready().await?;

    // It never ends, as far as a roll can wait.
    scene.mac.set_fault(Fault::SlowBootout, "600s")?;
    let failed = scene.host("roll", scene.agent(), &["--max-pods=1"]).await?.failed()?;
    ensure!(failed.contains("the old job does not end"), "{failed}");
    still_differs(&scene, scene.agent(), &["--max-pods=1"]).await?;
    scene.mac.clear_fault(Fault::SlowBootout)?;
    scene.mac.reboot().await?;
    scene.host("roll", scene.agent(), &["--max-pods=1"]).await?.ok()?;
    scene.until_ready().await.map(drop)
}

#[tokio::test]
async fn a_job_that_launchd_does_not_start_is_kicked_and_one_that_it_denies_is_told() -> Result<()> {
    let Some(scene) = Scene::applied("fleet-spawn").await? else { return Ok(()) };
    scene.mac.set_fault(Fault::NeverSpawn, LABEL)?;
    let pid = scene.pid().await?;
    scene.host("roll", scene.agent(), &["--max-pods=1"]).await?.ok()?;
    ensure!(scene.pid().await? != pid, "the old process still runs");
    scene.mac.clear_fault(Fault::NeverSpawn)?;

    scene.mac.set_fault(Fault::BtmDeny, LABEL)?;
    let failed = scene.host("roll", scene.agent(), &["--max-pods=3"]).await?.failed()?;
    ensure!(failed.contains("Background Task Management") && failed.contains("Login Items"), "{failed}");
    still_differs(&scene, scene.agent(), &["--max-pods=3"]).await?;
    scene.mac.clear_fault(Fault::BtmDeny)?;
    scene.host("roll", scene.agent(), &["--max-pods=3"]).await?.ok()?;
    scene.until_ready().await.map(drop)
}

#[tokio::test]
async fn a_kickstart_without_effect_and_a_property_list_that_launchd_refuses_are_told_apart() -> Result<()> {
    let Some(scene) = Scene::applied("fleet-told").await? else { return Ok(()) };
    let pid = scene.pid().await?;
    scene.mac.set_fault(Fault::RefusedCode, "109")?;
    let failed = scene.host("roll", scene.agent(), &["--max-pods=1"]).await?.failed()?;
    ensure!(failed.contains("launchd does not take the property list; `plutil -lint`"), "{failed}");
    ensure!(failed.contains("the old one was put back and runs as PID"), "{failed}");
    let old = scene.pid().await?;
    ensure!(old != pid, "launchd was not told to forget the job");
    still_differs(&scene, scene.agent(), &["--max-pods=1"]).await?;

    scene.mac.set_fault(Fault::KickstartIdle, LABEL)?;
    let failed = scene.host("roll", scene.other_agent(), &[]).await?.failed()?;
    let words = format!(
        "launchd accepted `kickstart -k`, but the old process {old} still runs; end it with `sudo kill {old}`"
    );
    ensure!(failed.contains(&words), "{failed}");
    assert_eq!(scene.pid().await?, old, "another process runs");
    still_differs(&scene, scene.other_agent(), &[]).await?;
    scene.mac.clear_fault(Fault::KickstartIdle)?;
    scene.host("roll", scene.other_agent(), &["--max-pods=1"]).await?.ok()?;
    ensure!(scene.pid().await? != old, "the old process still runs");
    scene.until_ready().await.map(drop)
}

#[tokio::test]
async fn a_full_disk_leaves_the_agent_that_runs_and_is_told() -> Result<()> {
    let builder = MacHost::new(ControlPlane::shared().await?.sandbox())?;
    let Some(disk) = SmallDisk::mount(&builder.disk(), 1 << 30)? else { return Ok(()) };
    let Some(scene) = Scene::with_mac("fleet-disk", builder).await? else { return Ok(()) };
    scene.apply().await?;
    let before = (scene.pid().await?, scene.inode(BINARY)?, scene.inode(PLIST)?);
    let other = scene.other_agent();

    // There is room for the binary, but none for the copy that codesign makes of it.
    disk.fill_but(other.metadata()?.len() + (1 << 20))?;
    let failed = scene.host("roll", other, &[]).await?.failed()?;
    ensure!(failed.contains("MB of free disk") && failed.contains("skipped  agent\n"), "{failed}");
    assert_eq!((scene.pid().await?, scene.inode(BINARY)?, scene.inode(PLIST)?), before);
    still_differs(&scene, other, &[]).await?;

    // Not even a property list finds room.
    disk.fill_up()?;
    let failed = scene.host("roll", scene.agent(), &["--max-pods=1"]).await?.failed()?;
    ensure!(failed.contains("cannot write") && failed.contains("No space left on device"), "{failed}");
    assert_eq!((scene.pid().await?, scene.inode(BINARY)?, scene.inode(PLIST)?), before);
    still_differs(&scene, scene.agent(), &["--max-pods=1"]).await?;

    disk.fill(0)?;
    scene.host("roll", other, &["--max-pods=1"]).await?.ok()?;
    ensure!(scene.pid().await? != before.0, "the old process still runs");
    scene.until_ready().await?;
    scene.keeps_its_secrets(&[]).await
}

#[tokio::test]
async fn a_mac_that_restarts_in_the_middle_of_a_roll_has_an_agent_and_the_next_roll_goes_on() -> Result<()> {
    let Some(scene) = Scene::applied("fleet-reboot").await? else { return Ok(()) };
    let other = scene.other_agent();
    let label = format!("system/{LABEL}");
    for (call, flag) in [
        ("codesign".to_owned(), "--max-pods=1"),
        (format!("launchctl bootout {label}"), "--max-pods=3"),
        (format!("launchctl bootstrap system {PLIST}"), "--max-pods=4"),
        (format!("launchctl print {label}"), "--max-pods=5"),
    ] {
        scene.mac.set_fault(Fault::RebootAt, &call)?;
        let failed = scene.host("roll", other, &[flag]).await?.failed()?;
        ensure!(failed.contains("not done: "), "{call}: {failed}");
        scene.mac.wait_for_boot().await?;
        // launchd starts what it finds, the old definition or the new one.
        scene.until_ready().await.with_context(|| format!("no agent after {call}"))?;
        if call == "codesign" {
            // The new definition was written before the other calls, and a boot loads it.
            still_differs(&scene, other, &[flag]).await.with_context(|| call.clone())?;
        }
        scene.host("roll", other, &[flag]).await?.ok().with_context(|| call.clone())?;
    }
    scene.until_ready().await?;
    let again = scene.host("roll", other, &["--max-pods=5"]).await?.ok()?;
    ensure!(again.contains("nothing to change"), "{again}");

    // pf forgets all rules when the Mac restarts; the firewall of VMs is loaded again without the provider.
    scene.mac.reboot().await?;
    eventually("the firewall of VMs to be in force again", BOOT_DEADLINE, async || {
        let rules = scene.mac.ssh("sudo -n pfctl -a com.apple/850.tart-kubelet -s rules").await?.ok()?;
        let info = scene.mac.ssh("sudo -n pfctl -s info").await?.ok()?;
        ensure!(rules.contains("block drop in quick") && info.contains("Status: Enabled"), "{rules}{info}");
        Ok(())
    })
    .await
}

/// Every call of a roll is the last one of a connection. Each run begins with what the one before has left.
#[tokio::test]
async fn a_connection_that_is_cut_at_every_call_leaves_an_agent_and_the_next_roll_goes_on() -> Result<()> {
    let Some(scene) = Scene::applied("fleet-every-cut").await? else { return Ok(()) };
    let other = scene.other_agent();
    let first = scene.pid().await?;
    let mut cuts = 0;
    for call in 1.. {
        scene.mac.set_fault(Fault::CutAtNth, &format!("{call} sudo"))?;
        let said = scene.host("roll", other, &["--max-pods=1"]).await?;
        if said.status.success() {
            break;
        }
        cuts += 1;
        let said = said.failed()?;
        ensure!(
            said.contains("not done: ") || said.contains("was cut") || said.contains("failed"),
            "{call}: {said}"
        );
        // What the Mac was told last it carries out without the connection.
        eventually("an agent to run", SETTLED_DEADLINE, async || scene.pid().await.map(drop))
            .await
            .with_context(|| format!("{call}: {said}"))?;
        // One step tells of it, and the rest is not tried.
        ensure!(said.matches("\n  failed ").count() <= 1, "{call}: {said}");
    }
    scene.mac.clear_fault(Fault::CutAtNth)?;
    ensure!(cuts > 30, "a roll has only {cuts} calls");
    ensure!(scene.pid().await? != first, "the old process still runs");
    let again = scene.host("roll", other, &["--max-pods=1"]).await?.ok()?;
    ensure!(again.contains("nothing to change"), "{again}");
    scene.until_ready().await?;
    scene.keeps_its_secrets(&[]).await
}

/// The call in the middle of each step of a first bootstrap is the last one of a connection, too.
#[tokio::test]
async fn a_first_bootstrap_that_is_cut_in_every_step_is_finished_by_the_next_run() -> Result<()> {
    let Some(scene) = Scene::new("fleet-first-cut").await? else { return Ok(()) };
    let builder = Builder::new(&scene)?;
    let mut flags = builder.with(AUTH_KEY, TOKEN)?;
    let version = scene.mac.ssh("/opt/homebrew/bin/tart --version").await?.ok()?;
    flags.push(format!("--tart-archive={}", tart_archive(&scene)?.display()));
    flags.push(format!("--tart-version={}", version.trim()));
    flags.push(format!("--node-exporter={}", exporters(&scene)?.0.display()));
    flags.push("--node-exporter-listen=127.0.0.1:0".to_owned());
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let firewall = "/Library/LaunchDaemons/dev.tuist.tart-kubelet-firewall.plist";
    let leases = "/Library/Preferences/SystemConfiguration/com.apple.InternetSharing.default.plist";
    let tailscaled = "/Library/LaunchDaemons/com.tailscale.tailscaled.plist";
    for (step, call) in [
        ("passwordless sudo", "visudo".to_owned()),
        ("auto-login", "launchctl kickstart -k system/com.apple.loginwindow".to_owned()),
        ("no sleep", "pmset -a sleep".to_owned()),
        ("host name", "scutil --set ComputerName".to_owned()),
        ("addresses for VMs", format!("defaults write {leases}")),
        ("local network", "defaults write com.apple.network.local-network".to_owned()),
        ("firewall of VMs", format!("launchctl bootstrap system {firewall}")),
        ("tart", "sudo -n -- /usr/bin/tar -xf".to_owned()),
        ("tailscale", format!("launchctl bootstrap system {tailscaled}")),
        ("agent's files", "install -d -o m1 -g staff -m 700 /var/lib/tart-kubelet".to_owned()),
        ("agent's binary", "codesign".to_owned()),
        ("agent", format!("launchctl bootstrap system {PLIST}")),
        ("Actions runner", "launchctl bootstrap gui/501".to_owned()),
        ("node_exporter", format!("launchctl bootstrap system {}", node_exporter::PLIST)),
    ] {
        scene.mac.set_fault(Fault::CutAt, &call)?;
        let failed = scene.host("apply", scene.agent(), &flags).await?.failed()?;
        ensure!(
            failed.contains(&format!("failed   {step}: ")) && failed.contains("was cut"),
            "{call}: {failed}"
        );
        ensure!(
            failed.contains("1 step failed") && failed.contains("run it again to go on"),
            "{call}: {failed}"
        );
    }
    scene.host("apply", scene.agent(), &flags).await?.ok()?;
    scene.until_ready().await?;
    let again = scene.host("apply", scene.agent(), &flags).await?.ok()?;
    ensure!(again.contains("nothing to change"), "{again}");
    scene.keeps_its_secrets(&["canary"]).await
}

#[tokio::test]
async fn a_call_that_hangs_fails_its_step_alone_and_the_next_run_heals_it() -> Result<()> {
    let Some(scene) = Scene::new("fleet-hang").await? else { return Ok(()) };
    scene.mac.set_fault(Fault::Hang, "pmset -g")?;
    let failed = scene.host("apply", scene.agent(), &[]).await?.failed()?;
    ensure!(failed.contains("failed   no sleep: /usr/bin/pmset did not answer within 30 s"), "{failed}");
    ensure!(failed.contains("changed  agent\n") && failed.contains("1 step failed"), "{failed}");
    scene.until_ready().await?;
    scene.mac.clear_fault(Fault::Hang)?;
    let healed = scene.host("apply", scene.agent(), &[]).await?.ok()?;
    ensure!(healed.contains("changed  no sleep\n") && !healed.contains("changed  agent\n"), "{healed}");
    Ok(())
}

/// Background Task Management has had enough of the job: it starts only when it is told to.
#[tokio::test]
async fn an_agent_that_launchd_no_longer_starts_again_is_found_and_started_by_a_roll() -> Result<()> {
    let Some(scene) = Scene::applied("fleet-btm").await? else { return Ok(()) };
    scene.mac.set_fault(Fault::BtmExhausted, LABEL)?;
    scene.mac.ssh(&format!("sudo -n launchctl kill KILL system/{LABEL}")).await?.ok()?;
    eventually("the agent to be gone", SETTLED_DEADLINE, async || {
        let printed = scene.mac.ssh(&format!("launchctl print system/{LABEL}")).await?.ok()?;
        ensure!(printed.contains("\tstate = not running"), "{printed}");
        Ok(())
    })
    .await?;
    let plan = scene.host("plan", scene.agent(), &[]).await?.ok()?;
    ensure!(plan.contains("differs  agent\n") && plan.contains("state not running"), "{plan}");
    scene.host("roll", scene.agent(), &[]).await?.ok()?;
    scene.pid().await?;
    scene.until_ready().await.map(drop)
}
