//! Records with words of a newer release: an agent that was rolled back reads them, and loses nothing.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::scene::{PodView as _, Scene, UNTIL_FINISHED, until_exists};

/// Changes one record, as a newer release would have written it.
fn rewrite(path: &std::path::Path, change: impl FnOnce(&mut Value)) -> Result<()> {
    let mut record = serde_json::from_str(&std::fs::read_to_string(path)?)?;
    change(&mut record);
    Ok(std::fs::write(path, record.to_string())?)
}

#[tokio::test]
async fn exit_code_in_a_newer_outcome_is_published() -> Result<()> {
    let (scene, agent) = Scene::with_agent("newer-outcome").await?;
    let pods = [("good", 0, "Succeeded"), ("bad", 3, "Failed")];
    let mut runs = Vec::new();
    for (name, code, _) in pods {
        let pod =
            scene.pod(name).sh(format!("{UNTIL_FINISHED}; exit {code}")).create_until("Running").await?;
        runs.push((pod.vm()?, scene.pod_dir(pod.uid_of()?).join("0")));
    }
    agent.kill9()?;
    for (vm, run) in &runs {
        scene.finish_command(vm).await;
        until_exists("the outcome", &run.join("outcome.json")).await?;
        for record in ["outcome.json", "result.json"] {
            rewrite(&run.join(record), |record| {
                record["ending"] = json!({"kind": "hibernated", "to": "disk"});
            })?;
        }
    }
    let _agent = scene.agent.start()?;
    for (name, code, phase) in pods {
        let pod = scene.phase(name, phase).await?;
        assert_eq!((pod.main().exit_code(), pod.main().restart_count()), (Some(code), Some(0)), "{name}");
        let message = pod.main().end()?.message.context("no message")?;
        ensure!(message.contains("newer release") && message.contains("hibernated"), "{message}");
    }
    assert_eq!(scene.boots()?, 2, "no VM ran again");
    Ok(())
}

#[tokio::test]
async fn record_of_another_format_stays_until_its_release_is_back() -> Result<()> {
    let (scene, agent) = Scene::with_agent("newer-format").await?;
    let pod = scene.pod("later").sh(format!("{UNTIL_FINISHED}; exit 7")).create_until("Running").await?;
    let outcome = scene.pod_dir(pod.uid_of()?).join("0/outcome.json");
    agent.kill9()?;
    scene.finish_command(&pod.vm()?).await;
    until_exists("the outcome", &outcome).await?;
    let ours = std::fs::read_to_string(&outcome)?;
    let newer = json!({"version": 2, "end": {"code": 7}}).to_string();
    std::fs::write(&outcome, &newer)?;
    let agent = scene.agent.start()?;
    scene.described("later", "another release of the agent may have written it").await?;
    assert_eq!(std::fs::read_to_string(&outcome)?, newer, "nothing is written over it");
    agent.kill9()?;
    std::fs::write(&outcome, ours)?;
    let _agent = scene.agent.start()?;
    let pod = scene.phase("later", "Failed").await?;
    assert_eq!((pod.main().exit_code(), scene.boots()?), (Some(7), 1));
    Ok(())
}

#[tokio::test]
async fn state_directory_stays_with_its_tart_home() -> Result<()> {
    let (scene, agent) = Scene::with_agent("moved-home").await?;
    scene.pod("stays").create_until("Running").await?;
    agent.kill9()?;
    let other = scene.mac.sandbox().directory("other-home")?;
    let moved = scene.agent.clone().env("TART_HOME", &other.display().to_string());
    let line = crate::agent::startup::exit_line(&moved.start()?).await?;
    let home = scene.mac.tart_home().display().to_string();
    ensure!(line.contains(&home) && line.contains("TART_HOME=") && line.contains("--state-dir"), "{line}");
    let agent = scene.agent.start()?;
    scene.delete("stays").await?;
    scene.nothing_left().await?;
    agent.kill9()?;
    // Nothing of the first home is left, so the directory may go to another one.
    scene.start(&moved).await.map(drop)
}
