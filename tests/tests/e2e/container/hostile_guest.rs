//! Guests that do harm, on purpose or not: they cost bounded memory and disk, and their Pods can be deleted.

use anyhow::{Context, Result, ensure};
use serde_json::json;
use sysinfo::{ProcessRefreshKind, ProcessesToUpdate, System, UpdateKind};
use tart_kubelet_tests::agent::RunningAgent;
use tart_kubelet_tests::mac::Fault;
use tart_kubelet_tests::wait;

use super::fake_guest_agent::{Answer, FakeGuestAgent};
use crate::scene::{DEADLINE, PodBuilder, PodView as _, SLEEP, Scene, until_exists};

/// An image without a guest agent, for a [`FakeGuestAgent`] in its place. It takes a while to have an address.
const HOLLOW: &str = "registry.test/macos/hollow:1";

/// The memory of the agent and its shims together, in MB.
fn memory(scene: &Scene, agent: &RunningAgent) -> Result<u64> {
    let agent = agent.process().pid().as_raw().unsigned_abs();
    let mut system = System::new().context("cannot look at processes")?;
    let what = ProcessRefreshKind::nothing().without_tasks().with_memory().with_cmd(UpdateKind::Always);
    system.refresh_processes_specifics(ProcessesToUpdate::All, true, what);
    let processes = system.processes().values();
    let ours = processes.filter(|process| scene.is_shim(process) || process.pid().as_u32() == agent);
    Ok(ours.map(sysinfo::Process::memory).sum::<u64>() / 1_000_000)
}

/// The sizes of the files of a Pod's log, the newest first.
fn log_files(scene: &Scene, uid: &str) -> Result<Vec<(String, u64)>> {
    let entries = std::fs::read_dir(scene.logs_dir(uid).join("main"))?;
    let mut files = entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            // The shim may rename a file meanwhile.
            Some((entry.file_name().to_string_lossy().into_owned(), entry.metadata().ok()?.len()))
        })
        .collect::<Vec<_>>();
    files.sort();
    Ok(files)
}

#[tokio::test]
async fn endless_output_fills_neither_memory_nor_disk() -> Result<()> {
    let (scene, agent) = Scene::with_agent("endless").await?;
    scene.pod("quiet").command(SLEEP).create_until("Running").await?;
    let before = memory(&scene, &agent)?;

    // One line without end, so a rotation between lines would come too late.
    let pod = scene.pod("endless").sh("tr '\\0' x < /dev/zero").grace(1).create_until("Running").await?;
    let uid = pod.uid_of()?;
    let directory = scene.logs_dir(uid).join("main");
    let mut oldest = None;
    wait::eventually("a log that was rotated five times", DEADLINE, async || {
        // A rotation deletes the oldest file.
        let last = std::fs::metadata(directory.join("0.log.4")).context("not so many files yet")?;
        let identity = std::os::unix::fs::MetadataExt::ino(&last);
        let first_seen = *oldest.get_or_insert(identity);
        ensure!(first_seen != identity, "it still has all");
        Ok(())
    })
    .await
    .with_context(|| format!("{:?}", log_files(&scene, uid)))?;
    let files = log_files(&scene, uid)?;
    let total = files.iter().map(|(_, size)| size).sum::<u64>();
    ensure!(total < 60 << 20, "the log takes {total} bytes: {files:?}");
    let after = memory(&scene, &agent)?;
    // One more shim, and its buffers.
    ensure!(after < 3 * before + 50, "{before} MB have become {after} MB");

    scene.kubectl.run(["delete", "pod", "endless", "quiet"]).await?;
    scene.nothing_left().await
}

#[tokio::test]
async fn boot_only_guest_that_fills_its_status_share_is_evicted() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("wordy").await?;
    let vm = scene.pod("wordy").restart_policy("Always").create_until("Running").await?.vm()?;
    let fill = "dd if=/dev/zero of='/Volumes/My Shared Files/pod_status/status' bs=1024 count=4096";
    // The agent may evict the Pod before the guest is done.
    let _ = scene.mac.tart(["exec", &vm, "/bin/sh", "-c", fill]).await;
    let pod = scene.phase("wordy", "Failed").await?;
    assert_eq!(pod.reason(), Some("Evicted"));
    let words = "The guest has written more than 1Mi to its share pod_status";
    ensure!(pod.message().is_some_and(|message| message.starts_with(words)), "{:?}", pod.message());
    scene.event("wordy", "Evicted", words).await?;
    wait::eventually("a deleted volume", DEADLINE, async || {
        let left = std::fs::read_dir(scene.agent.state_dir().join("volumes"))?.count();
        ensure!(left == 0, "{left} Pods have volumes");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn shim_waits_for_a_guest_agent_that_sends_garbage() -> Result<()> {
    let (scene, agent) = Scene::with_agent("nonsense").await?;
    scene.mac.set_fault(Fault::AgentGarbage, "")?;
    scene.pod("patient").command(["/usr/bin/true"]).create().await?;
    scene.pod("deleted").command(["/usr/bin/true"]).create().await?;
    scene.run_vms(2).await?;
    scene.kubectl.run(["delete", "pod", "deleted", "--grace-period=1"]).await?;
    assert_eq!(scene.pods.get("patient").await?.phase(), "Pending", "its command has not started");
    ensure!(memory(&scene, &agent)? < 500, "{} MB", memory(&scene, &agent)?);
    scene.mac.clear_fault(Fault::AgentGarbage)?;
    scene.phase("patient", "Succeeded").await.map(drop)
}

#[tokio::test]
async fn silent_guest_agent_does_not_delay_a_deletion() -> Result<()> {
    let (scene, agent) = Scene::with_agent("silent").await?;
    scene.pod("silent").sh("while :; do echo still here; done").create_until("Running").await?;
    scene.mac.set_fault(Fault::AgentStall, "")?;
    // A second Pod's guest agent is silent from the start, and a restarted agent finds both.
    scene.pod("mute").command(["/usr/bin/true"]).create().await?;
    scene.run_vms(2).await?;
    let _agent = agent.restart()?;
    assert_eq!(scene.observed("silent").await?.phase(), "Running", "silence is not an end");
    assert_eq!(scene.observed("mute").await?.phase(), "Pending", "its command has not started");
    scene.kubectl.run(["delete", "pod", "silent", "mute", "--grace-period=1"]).await?;
    scene.nothing_left().await
}

/// Creates a Pod whose guest agent is the test's own, and returns its VM.
async fn with_fake_agent(
    scene: &Scene,
    pod: PodBuilder<'_>,
    address: &str,
    answer: Answer,
) -> Result<(String, FakeGuestAgent)> {
    scene.mac.add_image(HOLLOW, &json!({"agent": false, "bootDelay": 10}))?;
    scene.mac.set_fault(Fault::Hang, "run")?;
    let name = pod.name().to_owned();
    pod.image(HOLLOW).grace(1).create().await?;
    let vm = format!("tk-{}-0", scene.uid(&name).await?);
    until_exists("a VM", &scene.vm_dir(&vm).join("guest")).await.with_context(|| scene.agent_log())?;
    let agent = FakeGuestAgent::serve(&scene.mac, &vm, address, answer)?;
    Ok((vm, agent))
}

/// Writes a file of DHCP leases other than that of the simulated Mac.
fn write_leases(scene: &Scene, lent: &[(&str, &str)]) -> Result<()> {
    let entry = |(address, hardware): &(&str, &str)| {
        format!("{{\n\tname=other\n\tip_address={address}\n\thw_address={hardware}\n\tlease=0x7fffffff\n}}\n")
    };
    Ok(std::fs::write(scene.mac.dhcp_leases(), lent.iter().map(entry).collect::<String>())?)
}

#[tokio::test]
async fn guest_cannot_claim_the_address_of_another_guest() -> Result<()> {
    let scene = Scene::new("impostor").await?;
    // Neither address is this machine's.
    let (own, lent) = ("203.0.113.7", "203.0.113.8");
    write_leases(&scene, &[(lent, "1,e:0:2:ab:c:d"), (own, "ff,f1:f5:dd:7f:0:2")])?;
    let _agent = scene.start(&scene.agent).await?;

    // The shim believes the first guest, which has no lease for its MAC address: no other guest is known to have the address.
    let (first, _fake) = with_fake_agent(&scene, scene.pod("first"), own, Answer::Flood).await?;
    scene.mac.set_fault(Fault::DhcpExhausted.of_vm(&first), "")?;
    scene.mac.clear_fault(Fault::Hang)?;
    assert_eq!(scene.phase("first", "Running").await?.ip(), Some(own));

    for (name, claimed) in
        [("impostor", own), ("masked", "::ffff:203.0.113.7"), ("thief", lent), ("stray", "203.0.113.9")]
    {
        let (vm, _fake) = with_fake_agent(&scene, scene.pod(name), claimed, Answer::Flood).await?;
        scene.mac.clear_fault(Fault::Hang)?;
        let pod = scene.phase(name, "Running").await?;
        assert_eq!(pod.ip(), Some(scene.mac.tart(["ip", &vm]).await?.trim()), "the address of its lease");
        let log = scene.shim_log(name).await?;
        ensure!(log.contains("claims an address that another machine may have"), "{log}");
        scene.delete(name).await?;
    }
    scene.delete("first").await?;
    scene.nothing_left().await
}

#[tokio::test]
async fn endless_messages_of_a_guest_agent_end_after_a_mebibyte() -> Result<()> {
    // What the connection has on its way comes on top of what the shim reads.
    const ENOUGH: u64 = 64 << 20;
    let scene = Scene::new("talker").await?;
    write_leases(&scene, &[("203.0.113.7", "ff,f1:f5:dd:7f:0:2")])?;
    let agent = scene.start(&scene.agent).await?;
    let pod = |name: &str| scene.pod(name).command(["/usr/bin/true"]);
    for (name, answer, words) in [
        ("flood", Answer::Flood, "it wrote more than 1 MiB, and was ended"),
        ("long", Answer::OneLongMessage, ""),
    ] {
        let (_, fake) = with_fake_agent(&scene, pod(name), "203.0.113.7", answer).await?;
        scene.mac.clear_fault(Fault::Hang)?;
        let failed = scene.phase(name, "Failed").await?;
        assert_eq!(failed.main().reason(), Some("CreateContainerError"), "{:?}", failed.main());
        let words = format!("Error: the guest cannot be prepared for the container: {words}");
        scene.event(name, "Failed", &words).await?;
        ensure!(fake.sent() < ENOUGH, "{} bytes were taken", fake.sent());
        let held = memory(&scene, &agent)?;
        ensure!(held < 128, "{held} MB");
        scene.delete(name).await?;
    }
    scene.nothing_left().await
}
