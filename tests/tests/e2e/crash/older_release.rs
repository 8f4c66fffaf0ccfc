//! Agent and shim of different releases, both ways: `make test-older` builds the older agent.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use tart_kubelet_tests::agent::Agent;
use tart_kubelet_tests::programs;

use crate::scene::{PodView as _, Scene, UNTIL_FINISHED, until_exists};

/// The agent of the scene as an older release of it.
fn older(scene: &Scene) -> Result<Agent> {
    let path = std::env::var_os("TART_KUBELET_OLDER_BINARY").map(PathBuf::from);
    let path = path.context("TART_KUBELET_OLDER_BINARY names no agent: run `make test-older`")?;
    ensure!(
        std::fs::read(&path)? != std::fs::read(programs::agent()?)?,
        "{} is not another release",
        path.display()
    );
    Ok(scene.agent.clone().program(&path))
}

impl Scene {
    /// Creates a Pod that waits for the test and then ends with a code; returns its VM.
    async fn until_told(&self, name: &str, code: i32) -> Result<String> {
        self.pod(name).sh(format!("{UNTIL_FINISHED}; exit {code}")).create_until("Running").await?.vm()
    }

    async fn ended(&self, name: &str, phase: &str, code: i32) -> Result<()> {
        let pod = self.phase(name, phase).await?;
        assert_eq!((pod.main().exit_code(), pod.main().restart_count()), (Some(code), Some(0)), "{name}");
        Ok(())
    }
}

#[tokio::test]
#[ignore = "needs an older agent: make test-older"]
async fn newer_agent_adopts_what_an_older_one_has_started() -> Result<()> {
    let scene = Scene::new("forward").await?;
    let agent = scene.start(&older(&scene)?).await?;
    let job = scene.until_told("job", 7).await?;
    let boots = scene.pod("boots").create_until("Running").await?.vm()?;
    agent.kill9()?;
    let _agent = scene.start(&scene.agent).await?;
    assert_eq!(scene.pods.get("boots").await?.vm()?, boots);
    scene.finish_command(&job).await;
    scene.ended("job", "Failed", 7).await?;
    // The older shim reads the newer agent's request.
    scene.delete("boots").await?;
    scene.delete("job").await?;
    scene.nothing_left().await?;
    assert_eq!(scene.boots()?, 2, "no VM ran again");
    Ok(())
}

#[tokio::test]
#[ignore = "needs an older agent: make test-older"]
async fn older_agent_adopts_what_a_newer_one_has_started_and_the_newer_one_takes_it_back() -> Result<()> {
    let scene = Scene::new("back").await?;
    let newer = scene.start(&scene.agent).await?;
    let (seen, unseen) = (scene.until_told("seen", 3).await?, scene.until_told("unseen", 0).await?);
    newer.kill9()?;

    let older = scene.start(&older(&scene)?).await?;
    scene.finish_command(&seen).await;
    scene.ended("seen", "Failed", 3).await?;
    let own = scene.until_told("own", 9).await?;
    let directory = scene.pod_dir(scene.pods.get("unseen").await?.uid_of()?).join("0");
    older.kill9()?;

    // The newer shim records an end that no agent sees.
    scene.finish_command(&unseen).await;
    until_exists("the outcome", &directory.join("outcome.json")).await?;

    let _newer = scene.start(&scene.agent).await?;
    scene.ended("unseen", "Succeeded", 0).await?;
    scene.finish_command(&own).await;
    scene.ended("own", "Failed", 9).await?;
    for name in ["seen", "unseen", "own"] {
        scene.delete(name).await?;
    }
    scene.nothing_left().await?;
    assert_eq!(scene.boots()?, 3, "no VM ran again");
    Ok(())
}

#[tokio::test]
#[ignore = "needs an older agent: make test-older"]
async fn older_agent_stops_a_vm_of_a_newer_shim() -> Result<()> {
    let scene = Scene::new("stops").await?;
    let newer = scene.start(&scene.agent).await?;
    scene.pod("stops").create_until("Running").await?;
    newer.kill9()?;
    let older = scene.start(&older(&scene)?).await?;
    scene.delete("stops").await?;
    scene.nothing_left().await?;
    older.kill9()?;
    let _newer = scene.start(&scene.agent).await?;
    scene.pod("next").sh("exit 0").create_until("Succeeded").await.map(drop)
}
