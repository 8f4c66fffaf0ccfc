//! VMs of Pods that are gone go; whatever anything speaks for stays.

use std::collections::BTreeMap;
use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::api::PostParams;
use kube::{Api, ResourceExt};
use serde_json::json;
use tart_kubelet_tests::agent::{Agent, RunningAgent};
use tart_kubelet_tests::mac::Fault;
use tart_kubelet_tests::process::Process;
use tart_kubelet_tests::proxy::Proxy;
use tart_kubelet_tests::wait;

use crate::image_gc::{MIB, small};
use crate::scene::{DEADLINE, IMAGE, Scene};

/// The UID of a Pod that there never was.
pub(crate) const NOBODY: &str = "00000000-0000-4000-8000-000000000000";

/// An agent that collects all the time, and whatever nobody touches.
pub(crate) fn eager(agent: &Agent) -> Agent {
    agent.clone().flag("--vm-gc-interval", "300ms").flag("--vm-gc-min-age", "0s")
}

async fn figure(agent: &RunningAgent, result: &str) -> Result<f64> {
    agent.metric(&format!("tart_kubelet_vm_gc_passes_total{{result=\"{result}\"}}")).await
}

/// Waits for some more passes that end so: the first of them may have begun before now.
async fn passes(agent: &RunningAgent, result: &str) -> Result<()> {
    let before = wait::eventually("figures", DEADLINE, async || figure(agent, result).await).await?;
    wait::eventually(&format!("passes that end in {result}"), DEADLINE, async || {
        let now = figure(agent, result).await?;
        ensure!(now >= before + 3.0, "{now}, {before} before: {}", agent.process().last_lines());
        Ok(())
    })
    .await
}

pub(crate) fn dir(scene: &Scene, vm: &str) -> PathBuf {
    scene.mac.tart_home().join("vms").join(vm)
}

pub(crate) fn is_there(scene: &Scene, vm: &str) -> bool {
    dir(scene, vm).join("nvram.bin").exists()
}

pub(crate) async fn collected(scene: &Scene, agent: &RunningAgent, vm: &str) -> Result<()> {
    wait::eventually(&format!("the end of {vm}"), DEADLINE, async || {
        ensure!(!dir(scene, vm).exists(), "{}", agent.process().last_lines());
        Ok(())
    })
    .await
}

pub(crate) async fn plant(scene: &Scene, vm: &str) -> Result<()> {
    scene.mac.tart(["clone", IMAGE, vm]).await.map(drop)
}

/// Runs a VM as somebody who is not the agent does.
pub(crate) async fn run(scene: &Scene, vm: &str) -> Result<Process> {
    let mut command = scene.mac.command(scene.mac.tart_binary());
    command.args(["run", vm, "--no-graphics"]);
    let process = Process::start("tart run", &mut command, &scene.mac.host().join(format!("{vm}.log")))?;
    wait::eventually("a VM that runs", DEADLINE, async || {
        process.ensure_running()?;
        let running = scene.running_vms().await?;
        ensure!(running.iter().any(|name| name == vm), "{running:?} run");
        Ok(())
    })
    .await?;
    Ok(process)
}

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

/// A VM as a builder of images has it, with something of its own in each file.
async fn build(scene: &Scene, vm: &str) -> Result<BTreeMap<PathBuf, Vec<u8>>> {
    plant(scene, vm).await?;
    for (file, byte) in [("disk.img", 0xd1), ("nvram.bin", 0xa7)] {
        std::fs::write(dir(scene, vm).join(file), vec![byte; 1 << 16])?;
    }
    content(&dir(scene, vm))
}

/// The scene of the incident: somebody clones a VM and pushes it, each for longer than several passes take, while the Node has no
/// Pods. `while_passes` waits for that long. Every VM is to be the same at the end, byte for byte.
async fn a_builder_at_work(scene: &Scene, while_passes: impl AsyncFn() -> Result<()>) -> Result<()> {
    // One of them has a name that is nearly ours.
    let vms = ["tk-builder-1", "builder"];
    // Half of the VM is there, where tart makes it.
    scene.mac.set_fault(Fault::StallCopy, "")?;
    let clone = build(scene, vms[0]);
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
    let second = build(scene, vms[1]).await?;
    scene.mac.set_fault(Fault::Hang, "push")?;
    let push = scene.mac.tart(["push", vms[0], "registry.test/macos/built:1"]);
    tokio::try_join!(push, async {
        while_passes().await?;
        scene.mac.clear_fault(Fault::Hang)
    })?;
    while_passes().await?;
    for (vm, before) in [(vms[0], before), (vms[1], second)] {
        let after = content(&dir(scene, vm))?;
        ensure!(after.keys().any(|path| path.ends_with("nvram.bin")), "{:?}", after.keys());
        ensure!(after == before, "{vm} is another one now: {}", scene.agent_log());
    }
    Ok(())
}

#[tokio::test]
async fn what_a_builder_pushes_survives_on_a_node_without_pods() -> Result<()> {
    let scene = Scene::new("builder").await?;
    let agent = eager(&scene.agent).start()?;
    scene.node_ready(&agent).await?;
    a_builder_at_work(&scene, async || passes(&agent, "success").await).await?;
    let kept = agent.metric("tart_kubelet_vm_gc_kept{reason=\"foreign\"}").await?;
    ensure!((kept - 2.0).abs() < f64::EPSILON, "{kept}");
    ensure!(agent.metric("tart_kubelet_vm_gc_deleted_total{kind=\"vm\"}").await?.abs() < f64::EPSILON);
    Ok(())
}

#[tokio::test]
async fn a_builder_with_the_flag_sees_no_collector_at_all() -> Result<()> {
    let scene = Scene::new("builder-flag").await?;
    let orphan = format!("tk-{NOBODY}-0");
    plant(&scene, &orphan).await?;
    scene.mac.set_fault(Fault::Calls, "")?;
    let agent = eager(&scene.agent).switch("--disable-vm-gc").start()?;
    scene.node_ready(&agent).await?;
    // There are no passes to wait for. Between two renewals of the Lease there would be more than thirty.
    let leases: Api<Lease> = Api::namespaced(scene.control_plane.client().await?, "kube-node-lease");
    let renewed = |lease: &Lease| lease.spec.as_ref().and_then(|spec| spec.renew_time.clone());
    a_builder_at_work(&scene, async || {
        let before = renewed(&leases.get(&scene.node).await?);
        let again = |lease: &Lease| renewed(lease) != before;
        wait::until(&leases, &scene.node, "renewed", DEADLINE, again).await.map(drop)
    })
    .await?;
    let calls = std::fs::read_to_string(scene.mac.host().join("calls"))?;
    for command in ["list", "stop", "delete"] {
        ensure!(!calls.lines().any(|call| call == command), "{calls}");
    }
    ensure!(is_there(&scene, &orphan), "{}", agent.log()?);
    Ok(())
}

#[tokio::test]
async fn where_it_is_off_nothing_is_looked_at() -> Result<()> {
    let scene = Scene::new("builder-off").await?;
    let orphan = format!("tk-{NOBODY}-0");
    let builder = build(&scene, "builder").await?;
    plant(&scene, &orphan).await?;
    scene.mac.set_fault(Fault::Calls, "")?;
    let agent = eager(&scene.agent).switch("--disable-vm-gc").start()?;
    // A Pod's whole life is longer than many passes would be.
    scene.create(&scene.pod("brief", &json!({"command": ["true"]}), &json!({}))).await?;
    scene.phase("brief", "Succeeded").await?;
    scene.kubectl.run(["delete", "pod", "brief"]).await?;
    let calls = std::fs::read_to_string(scene.mac.host().join("calls"))?;
    ensure!(calls.lines().any(|call| call == "run"), "{calls}");
    ensure!(!calls.lines().any(|call| call == "list"), "{calls}");
    let lines = agent.log()?.lines().filter(|line| line.contains("--disable-vm-gc")).count();
    ensure!(lines == 1, "said {lines} times: {}", agent.log()?);
    let (_, page) = agent.ask("/metrics").await?;
    ensure!(!page.contains("_gc_"), "{page}");
    ensure!(is_there(&scene, &orphan) && content(&dir(&scene, "builder"))? == builder);
    let table = agent.agent().run(&["gc", "--dry-run"]).await?;
    ensure!(!table.contains(" delete "), "{table}");
    Ok(())
}

#[tokio::test]
async fn an_orphan_goes_with_all_that_its_pod_has_left() -> Result<()> {
    let scene = Scene::new("orphan").await?;
    let agent = eager(&scene.agent).start()?;
    scene.node_ready(&agent).await?;
    // An agent that starts takes what it finds for a Pod's that is gone, and clears it away by itself.
    passes(&agent, "success").await?;
    let (orphan, half) = (format!("tk-{NOBODY}-0"), format!("tk-{NOBODY}-1"));
    // A deletion that was cut short leaves what tart takes for nothing.
    plant(&scene, "whole").await?;
    std::fs::remove_file(dir(&scene, "whole").join("config.json"))?;
    // A VM that was killed has left its socket,
    drop(UnixListener::bind(dir(&scene, "whole").join("control.sock"))?);
    std::fs::rename(dir(&scene, "whole"), dir(&scene, &half))?;
    // and a clone that was cut short is where tart makes VMs.
    let clone = scene.mac.tart_home().join("tmp/6D1E9C2A-0000-4000-8000-0123456789AB");
    std::fs::create_dir_all(&clone)?;
    std::fs::write(clone.join("config.json"), "{")?;
    let state = scene.agent.state_dir();
    for part in ["logs", "volumes", "pods"] {
        // Put there in one piece: the collector does not wait.
        let made = state.join(format!("made-{part}"));
        std::fs::create_dir_all(made.join("main/deep"))?;
        std::fs::write(made.join("main/0.log"), "words")?;
        if part == "volumes" {
            // As a guest may have left it.
            std::fs::set_permissions(made.join("main"), Permissions::from_mode(0o000))?;
        }
        std::fs::rename(made, state.join(part).join(NOBODY))?;
    }
    plant(&scene, &orphan).await?;
    collected(&scene, &agent, &orphan).await?;
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
async fn what_an_orphan_took_is_in_the_figures() -> Result<()> {
    const SIZE: u32 = 20 << 20;
    let Some((scene, _disk)) = small("orphan-bytes", 100 * MIB).await? else { return Ok(()) };
    let orphan = format!("tk-{NOBODY}-0");
    plant(&scene, &orphan).await?;
    std::fs::write(dir(&scene, &orphan).join("disk.img"), vec![1; usize::try_from(SIZE)?])?;
    let agent = eager(&scene.agent).start()?;
    collected(&scene, &agent, &orphan).await?;
    passes(&agent, "success").await?;
    let freed = agent.metric("tart_kubelet_vm_gc_freed_bytes_total").await?;
    ensure!(freed >= f64::from(SIZE), "{freed} bytes were freed");
    ensure!(agent.metric("tart_kubelet_vm_gc_duration_seconds_count").await? >= 3.0);
    Ok(())
}

#[tokio::test]
async fn a_running_orphan_is_stopped_and_then_deleted() -> Result<()> {
    let scene = Scene::new("orphan-runs").await?;
    let orphan = format!("tk-{NOBODY}-0");
    plant(&scene, &orphan).await?;
    let process = run(&scene, &orphan).await?;
    scene.mac.set_fault(Fault::Calls, "")?;
    let agent = eager(&scene.agent).start()?;
    collected(&scene, &agent, &orphan).await?;
    process.wait_for_exit(DEADLINE).await?;
    let calls = std::fs::read_to_string(scene.mac.host().join("calls"))?;
    let first = |command: &str| calls.lines().position(|call| call == command);
    ensure!(first("stop").is_some() && first("stop") < first("delete"), "{calls}");
    Ok(())
}

#[tokio::test]
async fn what_somebody_holds_stays_until_they_let_go() -> Result<()> {
    let scene = Scene::new("orphan-held").await?;
    let agent = eager(&scene.agent).start()?;
    passes(&agent, "success").await?;
    // A shim that the agent knows nothing of: its Pod went while nobody looked.
    let [shims, tarts] = [format!("tk-{NOBODY}-0"), format!("tk-{}1-0", &NOBODY[..NOBODY.len() - 1])];
    let attempt = scene.agent.state_dir().join("pods").join(NOBODY).join("0");
    // Put there in one piece: the collector does not wait.
    let made = scene.agent.state_dir().join("made");
    std::fs::create_dir_all(made.join("0"))?;
    let shim = File::create(made.join("0/shim.lock"))?;
    shim.lock()?;
    std::fs::rename(made, scene.agent.state_dir().join("pods").join(NOBODY))?;
    plant(&scene, &shims).await?;
    // A clone is put to its place by somebody who is not done with it.
    let made = scene.mac.tart_home().join("made");
    scene.mac.tart(["clone", IMAGE, "made"]).await?;
    std::fs::rename(dir(&scene, "made"), &made)?;
    let tart = File::open(&made)?;
    tart.lock()?;
    std::fs::rename(&made, dir(&scene, &tarts))?;

    passes(&agent, "success").await?;
    ensure!(is_there(&scene, &shims) && is_there(&scene, &tarts) && attempt.exists(), "{}", agent.log()?);
    for reason in ["shim", "tart"] {
        let kept = agent.metric(&format!("tart_kubelet_vm_gc_kept{{reason=\"{reason}\"}}")).await?;
        ensure!(kept >= 1.0, "{reason}: {kept}");
    }
    let table = agent.agent().run(&["gc", "--dry-run"]).await?;
    ensure!(table.contains("its shim lives") && table.contains("tart has locked it"), "{table}");
    drop((shim, tart));
    collected(&scene, &agent, &shims).await?;
    collected(&scene, &agent, &tarts).await?;
    scene.nothing_left().await
}

#[tokio::test]
async fn what_is_young_stays() -> Result<()> {
    let scene = Scene::new("orphan-young").await?;
    let orphan = format!("tk-{NOBODY}-0");
    plant(&scene, &orphan).await?;
    let agent = eager(&scene.agent).flag("--vm-gc-min-age", "1h").start()?;
    passes(&agent, "success").await?;
    ensure!(is_there(&scene, &orphan), "{}", agent.log()?);
    ensure!(agent.metric("tart_kubelet_vm_gc_kept{reason=\"age\"}").await? >= 1.0);
    Ok(())
}

#[tokio::test]
async fn without_the_api_server_nothing_goes() -> Result<()> {
    let scene = Scene::new("orphan-outage").await?;
    let proxy = Proxy::start(scene.control_plane).await?;
    let kubeconfig = proxy.kubeconfig(&scene.control_plane.node_kubeconfig(&scene.node)?)?;
    let agent = eager(&scene.agent).flag("--kubeconfig", &kubeconfig.display().to_string()).start()?;
    passes(&agent, "success").await?;
    proxy.sever();
    // What has begun before may still end well.
    passes(&agent, "failure").await?;
    let orphan = format!("tk-{NOBODY}-0");
    plant(&scene, &orphan).await?;
    passes(&agent, "failure").await?;
    ensure!(is_there(&scene, &orphan), "{}", agent.log()?);
    let table = agent.agent().run(&["gc", "--dry-run"]).await?;
    ensure!(table.contains("the Pods of this Node are not known") && !table.contains(" delete "), "{table}");
    proxy.open();
    collected(&scene, &agent, &orphan).await
}

#[tokio::test]
async fn without_a_list_of_vms_nothing_goes() -> Result<()> {
    let scene = Scene::new("orphan-list").await?;
    let orphan = format!("tk-{NOBODY}-0");
    plant(&scene, &orphan).await?;
    let logs = scene.agent.state_dir().join("logs");
    for (fault, parameter) in
        [(Fault::ListRace, orphan.as_str()), (Fault::Garbage, "list"), (Fault::Hang, "clone")]
    {
        scene.mac.set_fault(fault, parameter)?;
        let agent = eager(&scene.agent).start()?;
        if fault == Fault::Hang {
            // A fault that is none of the collector's business.
            collected(&scene, &agent, &orphan).await?;
            continue;
        }
        passes(&agent, "failure").await?;
        std::fs::create_dir_all(logs.join(NOBODY))?;
        passes(&agent, "failure").await?;
        ensure!(is_there(&scene, &orphan) && logs.join(NOBODY).exists(), "{fault}: {}", agent.log()?);
        // What it would list without the fault, it would delete.
        agent.kill9()?;
        scene.mac.clear_fault(fault)?;
    }
    Ok(())
}

#[tokio::test]
async fn names_that_begin_alike_are_told_apart() -> Result<()> {
    let scene = Scene::new("orphan-prefix").await?;
    let agent = eager(&scene.agent).start()?;
    scene.create(&scene.pod("lives", &json!({}), &json!({}))).await?;
    let pod = scene.phase("lives", "Running").await?;
    let (vm, uid) = (Scene::vm_of(&pod)?, pod.uid().context("no UID")?);
    let shorter = uid.get(..uid.len() - 1).context("a short UID")?;
    let stay = [
        // Other attempts of the same Pod are its worker's business.
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
        plant(&scene, name).await?;
    }
    collected(&scene, &agent, &orphan).await?;
    passes(&agent, "success").await?;
    for name in stay.iter().chain([&vm]) {
        ensure!(is_there(&scene, name), "{name} is gone: {}", agent.log()?);
    }
    scene.mac.tart(["exec", &vm, "true"]).await.context("the Pod's VM runs on")?;
    Ok(())
}

/// Binds a Pod as a scheduler does.
async fn bind(scene: &Scene, pod: &str) -> Result<()> {
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod},
        "target": {"apiVersion": "v1", "kind": "Node", "name": scene.node},
    });
    let parameters = PostParams::default();
    let bound = scene.pods.create_subresource::<_, Status>("binding", pod, &parameters, &binding);
    bound.await.map(drop).context("cannot bind the Pod")
}

#[tokio::test]
async fn a_pod_that_is_bound_at_the_last_moment_keeps_its_vm() -> Result<()> {
    let scene = Scene::new("orphan-bound").await?;
    // Nobody schedules it, and it will not be run here.
    let spec = json!({"schedulerName": "nobody", "nodeSelector": {"planet": "mars"}});
    scene.create(&scene.pod("late", &json!({}), &spec)).await?;
    let uid = scene.pods.get("late").await?.uid().context("no UID")?;
    let vm = format!("tk-{uid}-0");
    plant(&scene, &vm).await?;
    let process = run(&scene, &vm).await?;
    scene.mac.set_fault(Fault::Calls, "")?;
    scene.mac.set_fault(Fault::Hang, "stop")?;
    let agent = eager(&scene.agent).start()?;
    wait::eventually("the collector to stop the VM", DEADLINE, async || {
        let calls = std::fs::read_to_string(scene.mac.host().join("calls"))?;
        ensure!(calls.lines().any(|call| call == "stop"), "{calls}");
        Ok(())
    })
    .await?;
    bind(&scene, "late").await?;
    let refused = |pod: &Pod| pod.status.as_ref().is_some_and(|status| status.reason.is_some());
    wait::until(&scene.pods, "late", "refused", DEADLINE, refused).await?;
    scene.mac.clear_fault(Fault::Hang)?;
    process.wait_for_exit(DEADLINE).await?;
    passes(&agent, "success").await?;
    ensure!(is_there(&scene, &vm), "{}", agent.log()?);
    ensure!(agent.log()?.contains("kept after a second observation"), "{}", agent.log()?);
    scene.kubectl.run(["delete", "pod", "late"]).await?;
    collected(&scene, &agent, &vm).await
}

#[tokio::test]
async fn a_pod_that_is_bound_while_another_orphan_goes_keeps_its_vm() -> Result<()> {
    let scene = Scene::new("orphans-two").await?;
    // Nobody schedules it, and it will not be run here.
    let spec = json!({"schedulerName": "nobody", "nodeSelector": {"planet": "mars"}});
    scene.create(&scene.pod("late", &json!({}), &spec)).await?;
    let uid = scene.pods.get("late").await?.uid().context("no UID")?;
    // Both have stopped, and both are to go in one pass: the first by its name is the first to go.
    let (first, second) = (format!("tk-{NOBODY}-0"), format!("tk-{uid}-0"));
    for vm in [&first, &second] {
        plant(&scene, vm).await?;
    }
    scene.mac.set_fault(Fault::Calls, "")?;
    scene.mac.set_fault(Fault::Hang, "delete")?;
    let agent = eager(&scene.agent).start()?;
    wait::eventually("the end of the first to begin", DEADLINE, async || {
        let calls = std::fs::read_to_string(scene.mac.host().join("calls"))?;
        ensure!(calls.lines().any(|call| call == "delete"), "{calls}");
        Ok(())
    })
    .await?;
    let judged = agent.log()?.lines().filter(|line| line.contains("\"decision\":\"delete\"")).count();
    ensure!(judged == 2, "{}", agent.log()?);
    bind(&scene, "late").await?;
    let refused = |pod: &Pod| pod.status.as_ref().is_some_and(|status| status.reason.is_some());
    wait::until(&scene.pods, "late", "refused", DEADLINE, refused).await?;
    scene.mac.clear_fault(Fault::Hang)?;
    collected(&scene, &agent, &first).await?;
    passes(&agent, "success").await?;
    ensure!(is_there(&scene, &second), "{}", agent.log()?);
    ensure!(agent.log()?.contains("kept after a second observation"), "{}", agent.log()?);
    scene.kubectl.run(["delete", "pod", "late"]).await?;
    collected(&scene, &agent, &second).await
}

#[tokio::test]
async fn a_pod_that_is_made_again_does_not_keep_the_vm_of_the_first() -> Result<()> {
    let (scene, agent) = Scene::with_agent("orphan-again").await?;
    let pod = scene.pod("same", &json!({}), &json!({}));
    scene.create(&pod).await?;
    let first = scene.phase("same", "Running").await?;
    let (old, uid) = (Scene::vm_of(&first)?, first.uid().context("no UID")?);
    agent.kill9()?;
    scene.kill_shims()?;
    scene.kubectl.run(["delete", "pod", "same", "--grace-period=0", "--force"]).await?;
    // Nothing is left that would tell of it but the VM itself, which runs on.
    std::fs::remove_dir_all(scene.agent.state_dir().join("pods").join(uid))?;
    assert_eq!(scene.running_vms().await?, std::slice::from_ref(&old));
    scene.create(&pod).await?;
    let agent = eager(&scene.agent).start()?;
    collected(&scene, &agent, &old).await?;
    let new = Scene::vm_of(&scene.phase("same", "Running").await?)?;
    ensure!(new != old);
    passes(&agent, "success").await?;
    scene.mac.tart(["exec", &new, "true"]).await.context("the second Pod's VM runs")?;
    Ok(())
}

#[tokio::test]
async fn an_agent_that_dies_while_it_collects_goes_on_later() -> Result<()> {
    let scene = Scene::new("orphan-crash").await?;
    let orphan = format!("tk-{NOBODY}-0");
    plant(&scene, &orphan).await?;
    let dying = eager(&scene.agent).env("TART_KUBELET_CRASH", "agent.gc.before").start()?;
    dying.wait_for_exit(DEADLINE).await?;
    ensure!(is_there(&scene, &orphan));
    let agent = eager(&scene.agent).start()?;
    collected(&scene, &agent, &orphan).await
}

#[tokio::test]
async fn a_dry_run_tells_what_would_become_of_everything() -> Result<()> {
    let scene = Scene::new("dry-run").await?;
    let agent = scene.agent.clone().flag("--vm-gc-min-age", "0s").start()?;
    passed_once(&agent).await?;
    scene.create(&scene.pod("lives", &json!({}), &json!({}))).await?;
    let pod = scene.phase("lives", "Running").await?;
    let orphan = format!("tk-{NOBODY}-0");
    plant(&scene, &orphan).await?;
    plant(&scene, "builder").await?;
    let table = agent.agent().run(&["gc", "--dry-run"]).await?;
    let row = |name: &str| {
        let found = table.lines().find(|line| line.split_whitespace().nth(1) == Some(name));
        found.map(str::to_owned).with_context(|| format!("no {name} in\n{table}"))
    };
    let lives = format!("keep       Pod {}/lives is on this Node", scene.namespace());
    ensure!(row(&Scene::vm_of(&pod)?)?.ends_with(&lives), "{table}");
    ensure!(row("builder")?.ends_with("keep       not made by this agent"), "{table}");
    ensure!(row(&orphan)?.contains("delete     no Pod of this Node has its UID"), "{table}");
    for base in scene.bases().await? {
        ensure!(row(&base)?.contains(" keep "), "{table}");
    }
    ensure!(is_there(&scene, &orphan), "it was only asked");
    let refused = agent.agent().run(&["gc"]).await.err().context("it was not refused")?;
    ensure!(format!("{refused:#}").contains("gc --dry-run` shows what it would delete"), "{refused:#}");
    agent.process().ensure_running()
}

/// Waits until the agent has looked once.
async fn passed_once(agent: &RunningAgent) -> Result<()> {
    wait::eventually("the first pass", DEADLINE, async || {
        ensure!(figure(agent, "success").await? >= 1.0);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn addresses_that_run_out_are_told_before_they_have() -> Result<()> {
    let scene = Scene::new("leases").await?;
    let leases = scene.mac.host().join("dhcpd_leases");
    let lent = |count: u32| -> String {
        let until = jiff::Timestamp::now().as_second() + 86_400;
        let entry = |host| {
            format!(
                "{{\n\tname=vm\n\tip_address=192.168.64.{host}\n\thw_address=1,a:b\n\tlease={until:#x}\n}}\n"
            )
        };
        (2..2 + count).map(entry).collect()
    };
    std::fs::write(&leases, lent(100))?;
    let flagged = scene.agent.clone().flag("--dhcp-leases", &leases.display().to_string());
    let agent = flagged.flag("--eviction-pressure-transition-period", "0s").start()?;
    scene.node_ready(&agent).await?;
    let available = "tart_kubelet_dhcp_addresses{state=\"available\"}";
    let has_available = async |count: f64| {
        wait::eventually("a figure of addresses", DEADLINE, async || {
            let now = agent.metric(available).await?;
            ensure!((now - count).abs() < f64::EPSILON, "{now}, not {count}");
            Ok(())
        })
        .await
    };
    has_available(153.0).await?;
    let low = |status: &'static str| {
        wait::until(&scene.nodes, &scene.node, "few addresses", DEADLINE, move |node| {
            crate::scene::condition(node, "DHCPLeasesLow") == status
        })
    };
    low("False").await?;
    std::fs::write(&leases, lent(240))?;
    low("True").await?;
    scene.told("node", &scene.node, "DHCPLeaseTimeSecs -int 600").await?;
    wait::eventually("an Event", DEADLINE, async || {
        let about = format!("involvedObject.name={},reason=DHCPLeasesLow", scene.node);
        let words = ["get", "events", "--all-namespaces", "--field-selector", &about, "--output", "name"];
        ensure!(!scene.kubectl.run(words).await?.trim().is_empty());
        Ok(())
    })
    .await?;
    has_available(13.0).await?;
    // Somebody has done what they were told.
    std::fs::remove_file(&leases)?;
    low("False").await.map(drop)
}
