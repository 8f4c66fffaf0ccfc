//! The shim dies at each of its crash points. A container that had ended is not run again, and its exit code is known. A container that
//! had not is lost, and runs once more in another VM.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tart_kubelet_tests::wait;

use super::CrashingAgent;
use crate::scene::{DEADLINE, PodBuilder, PodView as _, Scene};

/// Points at which the container has not ended yet.
const LOSES: [&str; 19] = [
    "shim.begun",
    "write.progress.json",
    "shim.cloned",
    "shim.configured",
    "shim.run",
    "shim.up",
    "shim.set-up",
    "write.last-command.json",
    "shim.init.started",
    "write.init.json",
    "shim.init.exit",
    "shim.init.failed",
    "shim.init.over",
    "write.command-request.json",
    "shim.command-requested",
    "shim.command-received",
    "shim.post-start.before",
    "shim.post-start.after",
    "shim.running",
];
/// Points at which the shim has not taken the VM up yet, or the container has ended and the guest or a file has its exit code.
const KEEPS: [&str; 9] = [
    "write.shim.pid",
    "shim.started",
    "shim.exit",
    "write.result.json",
    "shim.exited",
    "shim.result",
    "shim.stopped",
    "write.outcome.json",
    "shim.ended",
];

/// A scene whose Pods write to the host what ran in which VM.
struct Traced {
    scene: Scene,
    dir: PathBuf,
}

impl Traced {
    async fn new(name: &str) -> Result<Self> {
        let mut scene = Scene::new(name).await?;
        let dir = scene.control_plane.sandbox().directory("trace")?;
        scene.agent = scene.agent.flag("--allowed-host-path", &dir.display().to_string());
        Ok(Self { scene, dir })
    }

    /// A line of a script that writes `word` and the number of the VM that it runs in: each VM has a disk of its own.
    fn note(word: &str) -> String {
        let vm = "[ -e /private/tmp/vm ] || od -An -tx8 -N8 </dev/urandom >/private/tmp/vm";
        format!("{vm}; vm=$(echo $(cat /private/tmp/vm)); echo $vm {word} >>/private/tmp/trace/$POD; ")
    }

    /// A Pod with an init container that fails the first time, and with hooks.
    fn pod(&self, name: &str, script: &str, pre_stop: &str) -> PodBuilder<'_> {
        let hook = |script: String| json!({"exec": {"command": ["/bin/sh", "-c", script]}});
        let tried = "[ -e /private/tmp/tried ] || { touch /private/tmp/tried; exit 1; }; ";
        // A variable that the agent resolves when its container's turn comes.
        let pod_name = json!({"fieldRef": {"fieldPath": "metadata.labels['named']"}});
        let init = json!({
            "command": ["/bin/sh", "-c", format!("{tried}{}", Self::note("init"))],
            "env": [{"name": "POD", "valueFrom": pod_name}],
            "volumeMounts": [{"name": "trace", "mountPath": "/private/tmp/trace"}],
        });
        self.scene
            .pod(name)
            .label("named", name)
            .sh(format!("{}{script}", Self::note("main")))
            .env_from("POD", pod_name)
            .volume("trace", json!({"hostPath": {"path": self.dir.display().to_string()}}))
            .mount("trace", "/private/tmp/trace")
            .init_container("init", init)
            .post_start(hook(Self::note("post-start")))
            .pre_stop(hook(format!("{}{pre_stop}", Self::note("pre-stop"))))
            // The number of the host's user whose directory the trace is in.
            .spec(json!({"securityContext": {"runAsUser": 0}}))
            .restart_policy("OnFailure")
            .grace(30)
    }

    /// Waits until a Pod has written a word.
    async fn has_noted(&self, pod: &str, word: &str) -> Result<()> {
        wait::eventually("a trace", DEADLINE, async || {
            let trace = std::fs::read_to_string(self.dir.join(pod))?;
            ensure!(trace.lines().any(|line| line.ends_with(&format!(" {word}"))), "{trace}");
            Ok(())
        })
        .await
    }

    /// What ran in the last of a Pod's VMs, sorted. An error when something ran twice in a VM, or in more than `vms` VMs.
    fn ran(&self, pod: &str, vms: usize) -> Result<Vec<String>> {
        let trace = std::fs::read_to_string(self.dir.join(pod)).unwrap_or_default();
        let lines: Vec<&str> = trace.lines().collect();
        ensure!(lines.iter().collect::<BTreeSet<_>>().len() == lines.len(), "something ran twice:\n{trace}");
        let names: BTreeSet<&str> = lines.iter().filter_map(|line| line.split(' ').next()).collect();
        ensure!(names.len() <= vms, "{} VMs:\n{trace}", names.len());
        let last = lines.last().and_then(|line| line.split(' ').next()).unwrap_or_default();
        let words = lines.iter().filter_map(|line| line.split_once(' ')).filter(|(vm, _)| *vm == last);
        let sorted: BTreeSet<&str> = words.map(|(_, word)| word).collect();
        Ok(sorted.into_iter().map(str::to_owned).collect())
    }
}

/// Runs until the `postStart` hook has run and the test has created the file `.end`.
const MAIN: &str =
    "cd /private/tmp/trace; until grep -q \"$vm post-start\" $POD && [ -e $POD.end ]; do sleep 0.05; done";

/// Kills the shim of a Pod at one point. The container succeeds nevertheless, after so many restarts.
async fn succeeds_after_crash(traced: &Traced, name: &str, point: &str, restarts: i32) -> Result<()> {
    let scene = &traced.scene;
    let before = scene.boots()?;
    let crashing = CrashingAgent::start(scene, &[point])?;
    let may_end = || std::fs::write(traced.dir.join(format!("{name}.end")), "");
    if restarts == 0 {
        may_end()?;
    }
    traced.pod(name, MAIN, "").create().await?;
    let agent = crashing.survive().await?;
    // A command that outlives its shim must not end before the agent has stopped its VM.
    scene.until(name, "lost", |pod| pod.main().restart_count() == Some(restarts)).await?;
    may_end()?;
    let pod = scene.phase(name, "Succeeded").await?;
    let main = pod.main();
    ensure!(main.exit_code() == Some(0) && main.restart_count() == Some(restarts), "{main:?}");
    if restarts > 0 {
        let last = main.last_end()?;
        ensure!(
            last.reason.as_deref() == Some("ContainerStatusUnknown") && last.exit_code == 137,
            "{last:?}"
        );
    }
    let vms = usize::try_from(restarts)? + 1;
    let ran = traced.ran(name, vms)?;
    ensure!(ran == ["init", "main", "post-start"], "{ran:?}");
    // A VM that is lost early has not booted.
    ensure!((before + 1..=before + vms).contains(&scene.boots()?), "{} boots", scene.boots()? - before);
    scene.delete_all_of(name).await?;
    agent.kill9().map(drop)
}

async fn succeed_after_crashes(scene: &str, points: &[&str], restarts: i32) -> Result<()> {
    let traced = Traced::new(scene).await?;
    for (index, point) in points.iter().enumerate() {
        let name = format!("pod-{index}");
        let run = Box::pin(succeeds_after_crash(&traced, &name, point, restarts)).await;
        run.with_context(|| format!("after a crash at {point}"))?;
    }
    Ok(())
}

#[tokio::test]
async fn shim_crash_before_the_container_has_ended_restarts_it() -> Result<()> {
    succeed_after_crashes("shim-loses", &LOSES, 1).await
}

#[tokio::test]
async fn shim_crash_outside_of_the_run_does_not_restart_the_container() -> Result<()> {
    succeed_after_crashes("shim-keeps", &KEEPS, 0).await
}

#[tokio::test]
async fn shim_crash_during_a_deletion_still_deletes_the_pod() -> Result<()> {
    let traced = Traced::new("shim-ends").await?;
    let scene = &traced.scene;
    let crashes: [&[&str]; 5] = [
        &["shim.pre-stop.before"],
        &["write.notices.json"],
        &["shim.pre-stop.after"],
        &["shim.terminated"],
        // The shim writes that the hook failed; the agent crashes after it has published the Event.
        &["write.notices-reported.json", "agent.delete-vm.after"],
    ];
    for (index, points) in crashes.into_iter().enumerate() {
        let name = format!("pod-{index}");
        let step = async {
            let crashing = CrashingAgent::start(scene, points)?;
            // A hook that fails makes the shim write a notice.
            let script = format!("trap '' TERM; {}while :; do sleep 0.1; done", Traced::note("trapped"));
            traced.pod(&name, &script, "exit 9").create_until("Running").await?;
            traced.has_noted(&name, "trapped").await?;
            scene.begin_delete(&name).await?;
            let agent = crashing.survive().await?;
            scene.until_gone(&name).await?;
            scene.nothing_left().await?;
            let ran = traced.ran(&name, 1)?;
            ensure!(ran.starts_with(&["init", "main", "post-start"].map(str::to_owned)), "{ran:?}");
            agent.kill9().map(drop)
        };
        step.await.with_context(|| format!("after a crash at {points:?}"))?;
    }
    // A guest without a command is shut down instead.
    let crashing = CrashingAgent::start(scene, &["shim.shut-down"])?;
    scene.pod("boots").create_until("Running").await?;
    scene.begin_delete("boots").await?;
    let _agent = crashing.survive().await?;
    scene.until_gone("boots").await?;
    scene.nothing_left().await
}

#[tokio::test]
async fn shim_that_does_not_exit_is_killed() -> Result<()> {
    let scene = Scene::new("halts").await?;
    let crashing = CrashingAgent::start(&scene, &["shim.ended halts"])?;
    scene.pod("stays").command(["/usr/bin/true"]).create().await?;
    let _agent = crashing.survive().await?;
    scene.phase("stays", "Succeeded").await?;
    scene.event("stays", "ShimStuck", "the shim of VM ").await?;
    scene.no_vms().await?;
    scene.delete_all_of("stays").await
}
