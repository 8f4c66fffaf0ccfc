//! The disk reserve of the agent: it recovers from a disk that is full to the last byte, with no image to delete.

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

use super::{MIB, add_image, idle_agent, pod, small_disk};
use crate::scene::{DEADLINE, PodView as _, Scene};

/// A Mac whose tart and agent share a small disk, and a Pod on it.
struct SharedDisk {
    scene: Scene,
    disk: SmallDisk,
    running: RunningAgent,
    /// The file that the agent keeps as a reserve.
    reserve: PathBuf,
}

impl SharedDisk {
    async fn new(name: &str, eviction: &str) -> Result<Option<Self>> {
        let Some((scene, disk)) = small_disk(name, 200 * MIB).await? else { return Ok(None) };
        let state = scene.mac.tart_home().join("state");
        let running = scene
            .start(
                &idle_agent(&scene)
                    .flag("--state-dir", &state.display().to_string())
                    .flag("--eviction-hard", eviction)
                    .flag("--eviction-pressure-transition-period", "1s")
                    // A hook calls the test itself.
                    .switch("--allow-local-probe-hosts"),
            )
            .await?;
        // The agent never deletes this image: the Pod uses it, and later it is the last one.
        add_image(&scene, "only", MIB)?;
        pod(&scene, "greedy", "only").create_until("Running").await?;
        let shared = Self { scene, disk, running, reserve: state.join("reserve") };
        shared.has_reserve().await?;
        Ok(Some(shared))
    }

    async fn has_reserve(&self) -> Result<()> {
        wait::eventually("a disk reserve", DEADLINE, async || {
            let bytes = std::fs::metadata(&self.reserve)?.len();
            ensure!(bytes >= MIB, "{bytes} bytes");
            Ok(())
        })
        .await
        .with_context(|| self.scene.agent_log())
    }

    /// Has the guest fill the disk while the agent is stopped.
    async fn fill(&self) -> Result<()> {
        self.running.kill(Signal::SIGSTOP)?;
        self.fill_up().await?;
        self.running.kill(Signal::SIGCONT)
    }

    async fn fill_up(&self) -> Result<()> {
        let vm = self.scene.pods.get("greedy").await?.vm()?;
        // Small files fill what a large one leaves.
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

    /// Checks that Pods run again, and that the reserve is back.
    async fn is_well(&self) -> Result<()> {
        pod(&self.scene, "after", "only").command(["true"]).create_until("Succeeded").await?;
        self.has_reserve().await
    }
}

#[tokio::test]
async fn agent_evicts_a_pod_on_a_full_disk() -> Result<()> {
    let Some(shared) = SharedDisk::new("full-evict", "imagefs.available<10%").await? else { return Ok(()) };
    let scene = &shared.scene;
    shared.fill().await?;
    assert_eq!(scene.phase("greedy", "Failed").await?.reason(), Some("Evicted"));
    scene.node_condition("DiskPressure", "False").await?;
    shared.is_well().await
}

#[tokio::test]
async fn agent_deletes_a_pod_on_a_full_disk() -> Result<()> {
    let Some(shared) = SharedDisk::new("full-delete", "").await? else { return Ok(()) };
    shared.fill().await?;
    let scene = &shared.scene;
    scene.begin_delete_within("greedy", 2).await?;
    scene.until_gone("greedy").await?;
    shared.is_well().await
}

#[tokio::test]
async fn agent_sees_a_vm_start_on_a_full_disk() -> Result<()> {
    let Some(shared) = SharedDisk::new("full-start", "").await? else { return Ok(()) };
    let scene = &shared.scene;
    // The guest is up. The Pod counts as running when its hook is done.
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    let up = json!({"httpGet": {"host": "127.0.0.1", "port": port}});
    pod(scene, "late", "only").post_start(up).create().await?;
    let (mut hook, _) = timeout(DEADLINE, listener.accept()).await.context("no hook")??;
    shared.fill().await?;
    ensure!(hook.read(&mut [0; 4096]).await? > 0, "the hook has given up");
    hook.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await?;
    scene.phase("late", "Running").await.map(drop)
}
