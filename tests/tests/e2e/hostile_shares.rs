//! Guests that attack their shares: the agent reads and writes nothing but what is that Pod's.

use std::path::Path;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tart_kubelet_tests::wait;

use crate::scene::{DEADLINE, Scene, state_of};

/// A directory that is no business of any guest, with one file in it.
fn outside(scene: &Scene) -> Result<std::path::PathBuf> {
    let outside = scene.mac.sandbox().directory("outside")?;
    std::fs::write(outside.join("kept"), "kept")?;
    Ok(outside)
}

/// Whether it is as it was.
fn is_untouched(outside: &Path) -> Result<()> {
    let left: Vec<_> = std::fs::read_dir(outside)?.map(|entry| entry.map(|e| e.file_name())).collect();
    ensure!(left.len() == 1, "{left:?}");
    ensure!(std::fs::read_to_string(outside.join("kept"))? == "kept");
    Ok(())
}

async fn delete(scene: &Scene, pod: &str) -> Result<()> {
    scene.kubectl.run(["delete", "pod", pod, "--wait=false", "--grace-period=1"]).await?;
    wait::until_gone(&scene.pods, pod, DEADLINE).await
}

/// A Pod with a share at `/private/tmp/cache`, and a part of it at `/private/tmp/part`.
fn pod(scene: &Scene, name: &str, script: &str, part: &str, source: &Value) -> Value {
    let mut volume = source.clone();
    volume["name"] = json!("cache");
    let mounts = json!([
        {"name": "cache", "mountPath": "/private/tmp/cache"},
        {"name": "cache", "mountPath": "/private/tmp/part", "subPath": part},
    ]);
    let container = json!({"command": ["/bin/sh", "-c", script], "volumeMounts": mounts});
    scene.pod(name, &container, &json!({"restartPolicy": "OnFailure", "volumes": [volume]}))
}

#[tokio::test]
async fn whatever_a_guest_leaves_behind_is_removed_and_nothing_else() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("debris").await?;
    let outside = outside(&scene)?;
    let target = outside.display();
    // Links out and up, pipes, devices, names for the same file, what nobody may enter, and a tree without end.
    let script = format!(
        "cd /private/tmp/cache; ln -s {target} link; ln -s {target}/kept file; ln -s ../../../../.. up; mkfifo pipe; \
         mknod null c 1 3; mknod disk b 8 0; echo x >own; ln own again; mkdir locked; touch locked/in; chmod 0 locked; \
         i=0; while [ $i -lt 100 ]; do mkdir deeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeep; \
         cd deeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeep; i=$((i+1)); done; ls -a /private/tmp/cache | wc -l"
    );
    let source = json!({"emptyDir": {"sizeLimit": "100Mi"}});
    scene.create(&pod(&scene, "debris", &script, "part", &source)).await?;
    let ended = scene.phase("debris", "Succeeded").await?;
    let said = scene.log(&ended, "main", 0)?;
    let made = said.last().map(String::as_str).unwrap_or_default();
    assert_eq!(made.trim(), "13", "not all of it could be made: {said:?}");
    delete(&scene, "debris").await?;
    scene.nothing_left().await?;
    is_untouched(&outside)
}

#[tokio::test]
async fn a_part_that_has_become_something_else_is_not_followed() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("bent").await?;
    let outside = outside(&scene)?;
    let target = outside.display();
    let tricks = [
        ("link", format!("ln -s {target} part")),
        ("up", "ln -s ../../../../../.. part".to_owned()),
        ("circle", "ln -s part part".to_owned()),
        ("pipe", "mkfifo part".to_owned()),
        ("device", "mknod part b 8 0".to_owned()),
    ];
    for (name, trick) in tricks {
        // The next VM finds its part bent.
        let script = format!("cd /private/tmp/cache && rm -r part && {trick}; exit 1");
        scene.create(&pod(&scene, name, &script, "part/inner", &json!({"emptyDir": {}}))).await?;
        let words = "Error: failed to prepare subPath for volumeMount \"cache\" of container \"main\"";
        scene.told_as(name, "Failed", words).await?;
        delete(&scene, name).await?;
    }
    scene.nothing_left().await?;
    is_untouched(&outside)
}

#[tokio::test]
async fn a_directory_that_changes_while_the_agent_writes_leads_nowhere() -> Result<()> {
    let mut scene = Scene::new("race").await?;
    let outside = outside(&scene)?;
    let shared = scene.mac.sandbox().directory("shared")?;
    std::fs::create_dir(shared.join("part"))?;
    scene.agent = scene.agent.flag("--allowed-host-path", &shared.display().to_string());
    let agent = scene.agent.start()?;
    scene.node_ready(&agent).await?;
    let source = json!({"hostPath": {"path": shared, "type": "Directory"}});
    // Two Pods have the same directory of the host: one turns a part of it into a link and back, as fast as it can, while the
    // agent makes directories in there for the other one.
    let script = format!(
        "cd /private/tmp/cache; while :; do mv part aside; ln -s {} part; rm part; mv aside part; done 2>/dev/null",
        outside.display()
    );
    scene.create(&pod(&scene, "swapper", &script, "own", &source)).await?;
    scene.phase("swapper", "Running").await?;
    for round in 0..5 {
        let name = format!("victim-{round}");
        scene.create(&pod(&scene, &name, "true", &format!("part/{round}/inner"), &source)).await?;
        wait::until(&scene.pods, &name, "through, or told why not", DEADLINE, |pod| {
            let state = state_of(pod).unwrap_or_default();
            let refused = state.waiting.and_then(|waiting| waiting.reason);
            state.terminated.is_some() || refused.as_deref() == Some("CreateContainerConfigError")
        })
        .await?;
        delete(&scene, &name).await?;
    }
    delete(&scene, "swapper").await?;
    scene.nothing_left().await?;
    is_untouched(&outside)
}
