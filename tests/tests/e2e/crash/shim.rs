//! The shim dies at each of its points. What had ended is not run again, and how it ended is known; what had not is lost, and runs once
//! more in another VM.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tart_kubelet_tests::wait;

use super::{Mortal, boots, container, end_of, forget, last_end_of};
use crate::scene::{DEADLINE, IMAGE, Scene};

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
/// Points at which the VM was not taken up yet, or the container has ended and its guest or a file knows how.
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

/// A scene whose Pods leave a trace on the host of what ran in which VM.
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

    /// A line of a script that notes that something runs, and in which VM: each has a disk of its own.
    fn note(word: &str) -> String {
        let vm = "[ -e /private/tmp/vm ] || od -An -tx8 -N8 </dev/urandom >/private/tmp/vm";
        format!("{vm}; vm=$(echo $(cat /private/tmp/vm)); echo $vm {word} >>/private/tmp/trace/$POD; ")
    }

    /// A Pod with an init container that has to be tried twice, and with hooks.
    fn pod(&self, name: &str, script: &str, pre_stop: &str) -> Value {
        let shell = |script: &str| json!(["/bin/sh", "-c", script]);
        let shared = json!({
            "image": IMAGE,
            // One that is looked up when its container's turn comes.
            "env": [{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['named']"}}}],
            "volumeMounts": [{"name": "trace", "mountPath": "/private/tmp/trace"}],
        });
        let mut init = shared.clone();
        init["name"] = json!("init");
        let tried = "[ -e /private/tmp/tried ] || { touch /private/tmp/tried; exit 1; }; ";
        init["command"] = shell(&format!("{tried}{}", Self::note("init")));
        let mut main = shared;
        main["command"] = shell(&format!("{}{script}", Self::note("main")));
        main["lifecycle"] = json!({
            "postStart": {"exec": {"command": shell(&Self::note("post-start"))}},
            "preStop": {"exec": {"command": shell(&format!("{}{pre_stop}", Self::note("pre-stop")))}},
        });
        let spec = json!({
            "restartPolicy": "OnFailure",
            "terminationGracePeriodSeconds": 30,
            "initContainers": [init],
            "volumes": [{"name": "trace", "hostPath": {"path": self.dir.display().to_string()}}],
        });
        let mut pod = self.scene.pod(name, &main, &spec);
        pod["metadata"]["labels"] = json!({"named": name});
        pod
    }

    /// Waits until a Pod has noted something.
    async fn has_noted(&self, pod: &str, word: &str) -> Result<()> {
        wait::eventually("a trace", DEADLINE, async || {
            let trace = std::fs::read_to_string(self.dir.join(pod))?;
            ensure!(trace.lines().any(|line| line.ends_with(&format!(" {word}"))), "{trace}");
            Ok(())
        })
        .await
    }

    /// What ran in the last of a Pod's VMs, in the order of the alphabet. Nothing ran twice in a VM, and there were no more than these.
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

/// Runs until its `postStart` hook has, and until it may end.
fn main_script() -> &'static str {
    "cd /private/tmp/trace; until grep -q \"$vm post-start\" $POD && [ -e $POD.end ]; do sleep 0.05; done"
}

/// Has a Pod whose container ends well lose its shim at a point, once; it ends well all the same, after so many restarts.
async fn runs_in_spite_of(traced: &Traced, name: &str, point: &str, restarts: i32) -> Result<()> {
    let scene = &traced.scene;
    let before = boots(scene)?;
    let mortal = Mortal::start(scene, &[point])?;
    let may_end = || std::fs::write(traced.dir.join(format!("{name}.end")), "");
    if restarts == 0 {
        may_end()?;
    }
    scene.create(&traced.pod(name, main_script(), "")).await?;
    let agent = mortal.outlive().await?;
    // What still runs when its shim dies must not end before it is dead, too.
    wait::until(&scene.pods, name, "lost", DEADLINE, |pod| {
        container(pod).is_ok_and(|status| status.restart_count == restarts)
    })
    .await?;
    may_end()?;
    let pod = scene.phase(name, "Succeeded").await?;
    let status = container(&pod)?;
    ensure!(end_of(&pod)?.exit_code == 0 && status.restart_count == restarts, "{status:?}");
    if restarts > 0 {
        let last = last_end_of(&pod)?;
        ensure!(
            last.reason.as_deref() == Some("ContainerStatusUnknown") && last.exit_code == 137,
            "{last:?}"
        );
    }
    let vms = usize::try_from(restarts)? + 1;
    let ran = traced.ran(name, vms)?;
    ensure!(ran == ["init", "main", "post-start"], "{ran:?}");
    // One that is lost early has not booted.
    ensure!((before + 1..=before + vms).contains(&boots(scene)?), "{} boots", boots(scene)? - before);
    forget(scene, name).await?;
    agent.kill9().map(drop)
}

async fn run_in_spite_of(scene: &str, points: &[&str], restarts: i32) -> Result<()> {
    let traced = Traced::new(scene).await?;
    for (index, point) in points.iter().enumerate() {
        let name = format!("pod-{index}");
        let run = Box::pin(runs_in_spite_of(&traced, &name, point, restarts)).await;
        run.with_context(|| format!("after a crash at {point}"))?;
    }
    Ok(())
}

#[tokio::test]
async fn before_the_container_has_ended() -> Result<()> {
    run_in_spite_of("shim-loses", &LOSES, 1).await
}

#[tokio::test]
async fn before_the_vm_is_taken_up_or_after_the_container_has_ended() -> Result<()> {
    run_in_spite_of("shim-keeps", &KEEPS, 0).await
}

#[tokio::test]
async fn while_the_container_is_ended() -> Result<()> {
    let traced = Traced::new("shim-ends").await?;
    let scene = &traced.scene;
    let deaths: [&[&str]; 5] = [
        &["shim.pre-stop.before"],
        &["write.notices.json"],
        &["shim.pre-stop.after"],
        &["shim.terminated"],
        // The shim has left word that the hook failed; the agent dies when it has told it.
        &["write.notices-reported.json", "agent.clean.after"],
    ];
    for (index, points) in deaths.into_iter().enumerate() {
        let name = format!("pod-{index}");
        let step = async {
            let mortal = Mortal::start(scene, points)?;
            // Whoever fails leaves a notice.
            let script = format!("trap '' TERM; {}while :; do sleep 0.1; done", Traced::note("trapped"));
            scene.create(&traced.pod(&name, &script, "exit 9")).await?;
            scene.phase(&name, "Running").await?;
            traced.has_noted(&name, "trapped").await?;
            scene.kubectl.run(["delete", "pod", &name, "--wait=false"]).await?;
            let agent = mortal.outlive().await?;
            wait::until_gone(&scene.pods, &name, DEADLINE).await?;
            scene.nothing_left().await?;
            let ran = traced.ran(&name, 1)?;
            ensure!(ran.starts_with(&["init", "main", "post-start"].map(str::to_owned)), "{ran:?}");
            agent.kill9().map(drop)
        };
        step.await.with_context(|| format!("after a crash at {points:?}"))?;
    }
    // A guest without a command is shut down instead.
    let mortal = Mortal::start(scene, &["shim.shut-down"])?;
    scene.create(&scene.pod("boots", &json!({}), &json!({}))).await?;
    scene.phase("boots", "Running").await?;
    scene.kubectl.run(["delete", "pod", "boots", "--wait=false"]).await?;
    let _agent = mortal.outlive().await?;
    wait::until_gone(&scene.pods, "boots", DEADLINE).await?;
    scene.nothing_left().await
}

#[tokio::test]
async fn that_does_not_go_when_its_vm_is_over_is_killed() -> Result<()> {
    let scene = Scene::new("halts").await?;
    let mortal = Mortal::start(&scene, &["shim.ended halts"])?;
    scene.create(&scene.pod("stays", &json!({"command": ["/usr/bin/true"]}), &json!({}))).await?;
    let _agent = mortal.outlive().await?;
    scene.phase("stays", "Succeeded").await?;
    scene.told_as("stays", "ShimStuck", "the shim of VM ").await?;
    scene.no_vms().await?;
    forget(&scene, "stays").await
}
