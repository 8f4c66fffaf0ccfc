//! Guests that mean harm, or do it without meaning to: they cost bounded memory and disk, and their Pods can be deleted.

mod peer;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sysinfo::{ProcessRefreshKind, ProcessesToUpdate, System, UpdateKind};
use tart_kubelet_tests::agent::RunningAgent;
use tart_kubelet_tests::mac::Fault;
use tart_kubelet_tests::wait;

use self::peer::{Answer, Peer};
use crate::scene::{DEADLINE, Scene, phase_of, state_of};

/// An image without a guest agent, for a [`Peer`] to take its place. It takes a while to have an address.
const HOLLOW: &str = "registry.test/macos/hollow:1";

/// What the agent and its shims hold of memory together, in MB.
fn memory(scene: &Scene, agent: &RunningAgent) -> Result<u64> {
    let state = scene.agent.state_dir();
    let agent = agent.process().pid().as_raw().unsigned_abs();
    let mut system = System::new().context("cannot look at processes")?;
    let what = ProcessRefreshKind::nothing().without_tasks().with_memory().with_cmd(UpdateKind::Always);
    system.refresh_processes_specifics(ProcessesToUpdate::All, true, what);
    let ours = system.processes().values().filter(|process| {
        let shim = process.cmd().get(1).is_some_and(|word| word == "shim")
            && process.cmd().get(2).is_some_and(|dir| std::path::Path::new(dir).starts_with(&state));
        shim || process.pid().as_u32() == agent
    });
    Ok(ours.map(sysinfo::Process::memory).sum::<u64>() / 1_000_000)
}

/// The sizes of the files of a Pod's log, the newest first.
fn log_files(scene: &Scene, uid: &str) -> Result<Vec<(String, u64)>> {
    let entries = std::fs::read_dir(scene.agent.state_dir().join("logs").join(uid).join("main"))?;
    let mut files = entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            // It may be renamed while we look.
            Some((entry.file_name().to_string_lossy().into_owned(), entry.metadata().ok()?.len()))
        })
        .collect::<Vec<_>>();
    files.sort();
    Ok(files)
}

#[tokio::test]
async fn endless_output_fills_neither_memory_nor_disk() -> Result<()> {
    let (scene, agent) = Scene::with_agent("endless").await?;
    let quiet = json!({"command": ["/bin/sleep", "1000"]});
    scene.create(&scene.pod("quiet", &quiet, &json!({}))).await?;
    scene.phase("quiet", "Running").await?;
    let before = memory(&scene, &agent)?;

    // Not even a line has an end, and somebody who counts on the log to be rotated in time is wrong.
    let endless = json!({"command": ["/bin/sh", "-c", "tr '\\0' x < /dev/zero"]});
    scene.create(&scene.pod("endless", &endless, &json!({"terminationGracePeriodSeconds": 1}))).await?;
    let uid = scene.phase("endless", "Running").await?.metadata.uid.context("no UID")?;
    let directory = scene.agent.state_dir().join("logs").join(&uid).join("main");
    let mut oldest = None;
    wait::eventually("a log that has forgotten its beginning", DEADLINE, async || {
        // The oldest file is the one that goes when there is a new one.
        let last = std::fs::metadata(directory.join("0.log.4")).context("not so many files yet")?;
        let identity = std::os::unix::fs::MetadataExt::ino(&last);
        let first_seen = *oldest.get_or_insert(identity);
        ensure!(first_seen != identity, "it still has all");
        Ok(())
    })
    .await
    .with_context(|| format!("{:?}", log_files(&scene, &uid)))?;
    let files = log_files(&scene, &uid)?;
    let total = files.iter().map(|(_, size)| size).sum::<u64>();
    ensure!(total < 60 << 20, "the log takes {total} bytes: {files:?}");
    let after = memory(&scene, &agent)?;
    // One shim more, and what is on its way through it.
    ensure!(after < 3 * before + 50, "{before} MB have become {after} MB");

    scene.kubectl.run(["delete", "pod", "endless", "quiet"]).await?;
    scene.nothing_left().await
}

#[tokio::test]
async fn a_guest_that_only_boots_cannot_fill_the_disk() -> Result<()> {
    let (scene, agent) = Scene::with_agent("wordy").await?;
    scene.create(&scene.pod("wordy", &json!({}), &json!({"restartPolicy": "Always"}))).await?;
    let vm = Scene::vm_of(&scene.phase("wordy", "Running").await?)?;
    let fill = "dd if=/dev/zero of='/Volumes/My Shared Files/pod_status/status' bs=1024 count=4096";
    // It may be evicted before it is done.
    let _ = scene.mac.tart(["exec", &vm, "/bin/sh", "-c", fill]).await;
    let pod = scene.phase("wordy", "Failed").await.with_context(|| agent.log().unwrap_or_default())?;
    let (reason, message) = pod.status.map(|status| (status.reason, status.message)).unwrap_or_default();
    assert_eq!(reason.as_deref(), Some("Evicted"));
    let words = "The guest has written more than 1Mi to its share pod_status";
    ensure!(message.as_ref().is_some_and(|message| message.starts_with(words)), "{message:?}");
    scene.told_as("wordy", "Evicted", words).await?;
    wait::eventually("a disk without it", DEADLINE, async || {
        let left = std::fs::read_dir(scene.agent.state_dir().join("volumes"))?.count();
        ensure!(left == 0, "{left} Pods have volumes");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_guest_agent_that_talks_nonsense_is_waited_for() -> Result<()> {
    let (scene, agent) = Scene::with_agent("nonsense").await?;
    scene.mac.set_fault(Fault::AgentGarbage, "")?;
    scene.create(&scene.pod("patient", &json!({"command": ["/usr/bin/true"]}), &json!({}))).await?;
    scene.create(&scene.pod("deleted", &json!({"command": ["/usr/bin/true"]}), &json!({}))).await?;
    wait::eventually("two VMs", DEADLINE, async || {
        ensure!(scene.running_vms().await?.len() == 2, "there are not");
        Ok(())
    })
    .await?;
    scene.kubectl.run(["delete", "pod", "deleted", "--grace-period=1"]).await?;
    assert_eq!(phase_of(&scene.pods.get("patient").await?), "Pending", "nobody took its command");
    ensure!(memory(&scene, &agent)? < 500, "{} MB", memory(&scene, &agent)?);
    scene.mac.clear_fault(Fault::AgentGarbage)?;
    scene.phase("patient", "Succeeded").await.map(drop)
}

#[tokio::test]
async fn a_guest_agent_that_falls_silent_holds_nobody_up() -> Result<()> {
    let (scene, agent) = Scene::with_agent("silent").await?;
    let endless = json!({"command": ["/bin/sh", "-c", "while :; do echo still here; done"]});
    scene.create(&scene.pod("silent", &endless, &json!({}))).await?;
    scene.phase("silent", "Running").await?;
    scene.mac.set_fault(Fault::AgentStall, "")?;
    // Another Pod finds the same silence, and a restarted agent finds both.
    scene.create(&scene.pod("mute", &json!({"command": ["/usr/bin/true"]}), &json!({}))).await?;
    wait::eventually("two VMs", DEADLINE, async || {
        ensure!(scene.running_vms().await?.len() == 2, "there are not");
        Ok(())
    })
    .await?;
    let _agent = agent.restart()?;
    assert_eq!(phase_of(&scene.looked_at("silent").await?), "Running", "silence is not an end");
    assert_eq!(phase_of(&scene.looked_at("mute").await?), "Pending", "nobody took its command");
    scene.kubectl.run(["delete", "pod", "silent", "mute", "--grace-period=1"]).await?;
    scene.nothing_left().await
}

/// Creates a Pod of which we are the guest agent, from the first moment on.
async fn possessed(
    scene: &Scene,
    name: &str,
    container: &Value,
    address: &str,
    answer: Answer,
) -> Result<(String, Peer)> {
    scene.mac.add_image(HOLLOW, &json!({"agent": false, "bootDelay": 10}))?;
    scene.mac.set_fault(Fault::Hang, "run")?;
    let mut container = container.clone();
    container["image"] = json!(HOLLOW);
    scene.create(&scene.pod(name, &container, &json!({"terminationGracePeriodSeconds": 1}))).await?;
    let vm = format!("tk-{}-0", scene.pods.get(name).await?.metadata.uid.context("no UID")?);
    let guest = scene.mac.tart_home().join("vms").join(&vm).join("guest");
    wait::eventually("a VM", DEADLINE, async || {
        ensure!(guest.exists(), "there is none");
        Ok(())
    })
    .await
    .with_context(|| scene.agent_log())?;
    let peer = Peer::of(&scene.mac, &vm, address, answer)?;
    Ok((vm, peer))
}

/// A list of addresses that macOS has lent, and to whom; another one than that of the simulated Mac.
fn lend(scene: &Scene, lent: &[(&str, &str)]) -> Result<String> {
    let path = scene.mac.host().join("lent");
    let entry = |(address, hardware): &(&str, &str)| {
        format!("{{\n\tname=other\n\tip_address={address}\n\thw_address={hardware}\n\tlease=0x7fffffff\n}}\n")
    };
    std::fs::write(&path, lent.iter().map(entry).collect::<String>())?;
    Ok(path.display().to_string())
}

fn address_of(pod: &k8s_openapi::api::core::v1::Pod) -> Option<String> {
    pod.status.as_ref().and_then(|status| status.pod_ip.clone())
}

#[tokio::test]
async fn a_guest_does_not_get_the_address_of_another_by_asking_for_it() -> Result<()> {
    let mut scene = Scene::new("impostor").await?;
    // None of them is this machine's.
    let (own, lent) = ("203.0.113.7", "203.0.113.8");
    let leases = lend(&scene, &[(lent, "1,e:0:2:ab:c:d"), (own, "ff,f1:f5:dd:7f:0:2")])?;
    scene.agent = scene.agent.flag("--dhcp-leases", &leases);
    let agent = scene.agent.start()?;
    scene.node_ready(&agent).await?;

    // Who is asked first, and has no lease by its MAC address, is believed: nobody else is known to have the address.
    let (first, _peer) = possessed(&scene, "first", &json!({}), own, Answer::Flood).await?;
    scene.mac.set_fault(Fault::DhcpExhausted.of_vm(&first), "")?;
    scene.mac.clear_fault(Fault::Hang)?;
    assert_eq!(address_of(&scene.phase("first", "Running").await?).as_deref(), Some(own));

    for (name, claimed) in
        [("impostor", own), ("masked", "::ffff:203.0.113.7"), ("thief", lent), ("stray", "203.0.113.9")]
    {
        let (vm, _peer) = possessed(&scene, name, &json!({}), claimed, Answer::Flood).await?;
        scene.mac.clear_fault(Fault::Hang)?;
        let shown = address_of(&scene.phase(name, "Running").await?).context("no address")?;
        assert_eq!(shown, scene.mac.tart(["ip", &vm]).await?.trim(), "it has what it was lent");
        let log = scene.shim_log(name).await?;
        ensure!(log.contains("claims an address of somebody else's"), "{log}");
        scene.kubectl.run(["delete", "pod", name]).await?;
    }
    scene.kubectl.run(["delete", "pod", "first"]).await?;
    scene.nothing_left().await
}

#[tokio::test]
async fn a_guest_agent_that_says_too_much_is_heard_no_further() -> Result<()> {
    const ENOUGH: u64 = 256 << 20;
    let mut scene = Scene::new("talker").await?;
    let leases = lend(&scene, &[("203.0.113.7", "ff,f1:f5:dd:7f:0:2")])?;
    scene.agent = scene.agent.flag("--dhcp-leases", &leases);
    let agent = scene.agent.start()?;
    scene.node_ready(&agent).await?;
    let command = json!({"command": ["/usr/bin/true"]});
    let (_, peer) = possessed(&scene, "flood", &command, "203.0.113.7", Answer::Flood).await?;
    scene.mac.clear_fault(Fault::Hang)?;
    wait::eventually("a flood", DEADLINE, async || {
        ensure!(peer.sent() > ENOUGH, "{} bytes so far", peer.sent());
        Ok(())
    })
    .await
    .with_context(|| scene.agent_log())?;
    // All of that went through, and none of it stayed.
    let held = memory(&scene, &agent)?;
    ensure!(held < (ENOUGH >> 20) / 2, "{held} MB");
    let uid = scene.pods.get("flood").await?.metadata.uid.context("no UID")?;
    let written = log_files(&scene, &uid)?.iter().map(|(_, size)| size).sum::<u64>();
    ensure!(written < 1 << 20, "{written} bytes of log");
    scene.kubectl.run(["delete", "pod", "flood"]).await?;

    let (_, peer) = possessed(&scene, "long", &command, "203.0.113.7", Answer::OneLongMessage).await?;
    scene.mac.clear_fault(Fault::Hang)?;
    let failed = scene.phase("long", "Failed").await?;
    let end = state_of(&failed).and_then(|state| state.terminated).context("no end")?;
    assert_eq!(end.reason.as_deref(), Some("CreateContainerError"), "{end:?}");
    ensure!(peer.sent() < ENOUGH, "{} bytes were taken", peer.sent());
    scene.kubectl.run(["delete", "pod", "long"]).await?;
    scene.nothing_left().await
}
