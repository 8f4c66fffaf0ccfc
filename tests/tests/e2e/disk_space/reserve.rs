//! A disk that is full to the last byte, with nothing that could be collected: it heals by itself all the same.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::json;
use tart_kubelet_tests::agent::RunningAgent;
use tart_kubelet_tests::disk::SmallDisk;
use tart_kubelet_tests::wait;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::timeout;

use super::image_gc::{MIB, add_image, agent, pod, small};
use crate::scene::{DEADLINE, Scene, condition};

/// A Mac whose tart and agent share a small disk, and a Pod on it.
struct Crowded {
    scene: Scene,
    disk: SmallDisk,
    running: RunningAgent,
    /// The space that the agent has set aside.
    reserve: PathBuf,
}

impl Crowded {
    async fn new(name: &str, eviction: &str) -> Result<Option<Self>> {
        let Some((scene, disk)) = small(name, 200 * MIB).await? else { return Ok(None) };
        let state = scene.mac.tart_home().join("state");
        let running = agent(&scene, 100, 99)
            .flag("--state-dir", &state.display().to_string())
            .flag("--eviction-hard", eviction)
            .flag("--eviction-pressure-transition-period", "1s")
            .start()?;
        scene.node_ready(&running).await?;
        // In use as long as the Pod is there, and the last one after that.
        add_image(&scene, "only", MIB)?;
        scene.create(&pod(&scene, "greedy", "only", &json!({}))).await?;
        scene.phase("greedy", "Running").await?;
        let crowded = Self { scene, disk, running, reserve: state.join("reserve") };
        crowded.has_reserve().await?;
        Ok(Some(crowded))
    }

    async fn has_reserve(&self) -> Result<()> {
        wait::eventually("space that is set aside", DEADLINE, async || {
            let bytes = std::fs::metadata(&self.reserve)?.len();
            ensure!(bytes >= MIB, "{bytes} bytes");
            Ok(())
        })
        .await
        .with_context(|| self.scene.agent_log())
    }

    /// Has the Pod's guest take all that is left of the disk, before the agent sees any of it.
    async fn fill(&self) -> Result<()> {
        self.running.kill(Signal::SIGSTOP)?;
        self.fill_up().await?;
        self.running.kill(Signal::SIGCONT)
    }

    async fn fill_up(&self) -> Result<()> {
        let vm = Scene::vm_of(&self.scene.pods.get("greedy").await?)?;
        // What is too little for a large file is enough for small ones.
        let write =
            "cd /Users/admin; cat /dev/zero >> greed; i=0; while echo >> crumb.$i; do i=$((i+1)); done; true";
        wait::eventually("a full disk", DEADLINE, async || {
            self.scene.mac.tart(["exec", &vm, "sh", "-c", write]).await?;
            let free = self.disk.free()?;
            ensure!(free == 0, "{free} bytes are free");
            Ok(())
        })
        .await
    }

    /// Pods run again, and what was set aside is there for the next time.
    async fn is_well(&self) -> Result<()> {
        self.scene.create(&pod(&self.scene, "after", "only", &json!({"command": ["true"]}))).await?;
        self.scene.phase("after", "Succeeded").await?;
        self.has_reserve().await
    }
}

#[tokio::test]
async fn a_pod_is_evicted_from_a_disk_that_is_full_to_the_last_byte() -> Result<()> {
    let Some(crowded) = Crowded::new("full-evict", "imagefs.available<10%").await? else { return Ok(()) };
    let scene = &crowded.scene;
    crowded.fill().await?;
    let evicted = scene.phase("greedy", "Failed").await?.status.context("no status")?;
    assert_eq!(evicted.reason.as_deref(), Some("Evicted"));
    let well = |node: &_| condition(node, "DiskPressure") == "False";
    wait::until(&scene.nodes, &scene.node, "well again", DEADLINE, well).await?;
    crowded.is_well().await
}

#[tokio::test]
async fn a_pod_is_deleted_from_a_disk_that_is_full_to_the_last_byte() -> Result<()> {
    let Some(crowded) = Crowded::new("full-delete", "").await? else { return Ok(()) };
    crowded.fill().await?;
    let scene = &crowded.scene;
    scene.kubectl.run(["delete", "pod", "greedy", "--grace-period=2", "--wait=false"]).await?;
    wait::until_gone(&scene.pods, "greedy", DEADLINE).await.with_context(|| scene.agent_log())?;
    crowded.is_well().await
}

#[tokio::test]
async fn a_vm_that_comes_up_on_a_disk_that_is_full_to_the_last_byte_is_seen_to_run() -> Result<()> {
    let Some(crowded) = Crowded::new("full-start", "").await? else { return Ok(()) };
    let scene = &crowded.scene;
    // Its guest is up, and it counts as running when its hook is done.
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    let up = json!({"postStart": {"httpGet": {"host": "127.0.0.1", "port": port}}});
    scene.create(&pod(scene, "late", "only", &json!({"lifecycle": up}))).await?;
    let (mut hook, _) = timeout(DEADLINE, listener.accept()).await.context("no hook")??;
    crowded.fill().await?;
    ensure!(hook.read(&mut [0; 4096]).await? > 0, "the hook has given up");
    hook.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await?;
    scene.phase("late", "Running").await.map(drop)
}
