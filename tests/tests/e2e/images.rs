//! Images: where they come from, and what is told when they do not come.

use std::os::unix::fs::PermissionsExt;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tart_kubelet_tests::wait;

use crate::scene::{DEADLINE, Scene};

/// Waits until a Pod's container shows what it waits for.
async fn waits_for(scene: &Scene, pod: &str, reason: &str, words: &str) -> Result<()> {
    let what = format!("waiting: {reason}, {words}");
    let waiting = wait::until(&scene.pods, pod, &what, DEADLINE, |pod| {
        let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
        let mut waiting = statuses.filter_map(|status| status.state.as_ref()?.waiting.as_ref());
        waiting.any(|waiting| {
            waiting.reason.as_deref() == Some(reason)
                && waiting.message.as_ref().is_some_and(|message| message.contains(words))
        })
    });
    waiting.await.map(drop)
}

#[tokio::test]
async fn a_long_pull_tells_how_far_it_has_come() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("progress").await?;
    let image = "registry.test/macos/large:1";
    scene.mac.add_image(image, &json!({"pullSeconds": 45}))?;
    scene.create(&scene.pod("large", &json!({"image": image}), &json!({}))).await?;
    scene.told("pod", "large", "% are here").await?;
    scene.phase("large", "Running").await?;
    scene
        .told("pod", "large", "image `registry.test/macos/large:1` is registry.test/macos/large@sha256:")
        .await
}

#[tokio::test]
async fn a_missing_image_is_told_and_heals() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("image").await?;
    let image = "registry.test/macos/tahoe:26";
    scene.create(&scene.pod("image", &json!({"image": image}), &json!({}))).await?;
    // As elsewhere: the error, the back-off, and the next error.
    waits_for(&scene, "image", "ErrImagePull", "check the image's name").await?;
    let words = format!("Back-off pulling image \"{image}\": ErrImagePull: cannot pull image");
    waits_for(&scene, "image", "ImagePullBackOff", &words).await?;
    scene.told("pod", "image", "BackOff").await?;
    waits_for(&scene, "image", "ErrImagePull", "check the image's name").await?;
    scene.mac.add_image(image, &json!({}))?;
    scene.phase("image", "Running").await.map(drop)
}

#[tokio::test]
async fn a_private_image_needs_a_pull_secret() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("private").await?;
    let image = "private.test/macos/secret:1";
    scene.mac.add_image(image, &json!({}))?;
    scene.mac.protect_registry("private.test", "robot", "s3cr3t:with:colons")?;

    scene.create(&scene.pod("without", &json!({"image": image}), &json!({}))).await?;
    scene.told("pod", "without", "the credentials for its registry").await?;
    let missing = json!({"imagePullSecrets": [{"name": "pull"}]});
    scene.create(&scene.pod("with", &json!({"image": image}), &missing)).await?;
    scene.told("pod", "with", "cannot use pull secret `pull`").await?;

    let login =
        ["--docker-server=private.test", "--docker-username=robot", "--docker-password=s3cr3t:with:colons"];
    let create = ["create", "secret", "docker-registry", "pull"];
    scene.kubectl.run(create.into_iter().chain(login)).await?;
    scene.phase("with", "Running").await?;
    ensure!(!scene.agent_log().contains("s3cr3t"), "a password is in the log");
    let events = scene.kubectl.run(["get", "events", "--output", "json"]).await?;
    ensure!(!events.contains("s3cr3t"), "a password is in an Event");
    Ok(())
}

#[tokio::test]
async fn only_the_pull_sees_credentials_and_nothing_is_pruned() -> Result<()> {
    let scene = Scene::new("witness").await?;
    let image = "private.test/macos/secret:1";
    scene.mac.add_image(image, &json!({}))?;
    scene.mac.protect_registry("private.test", "robot", "s3cr3t")?;
    // A tart that writes down with what it is called, one line per variable.
    let (program, notes) = (scene.mac.host().join("witness"), scene.mac.host().join("witness.log"));
    let script = format!(
        "#!/bin/sh\nenv | grep ^TART_ | while read -r line; do echo \"$$ $* | $line\"; done >>'{}'\nexec '{}' \"$@\"\n",
        notes.display(),
        scene.mac.tart_binary().display()
    );
    std::fs::write(&program, script)?;
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755))?;
    // What the agent itself was started with is nobody's business.
    let agent = scene
        .agent
        .clone()
        .flag("--tart-binary", &program.display().to_string())
        .env("TART_REGISTRY_USERNAME", "operator")
        .env("TART_REGISTRY_PASSWORD", "0p3r4t0r")
        .start()?;
    scene.node_ready(&agent).await?;
    let create = ["create", "secret", "docker-registry", "pull", "--docker-server=private.test"];
    let login = ["--docker-username=robot", "--docker-password=s3cr3t"];
    scene.kubectl.run(create.into_iter().chain(login)).await?;
    let create = ["create", "secret", "docker-registry", "other", "--docker-server=other.test"];
    let login = ["--docker-username=else", "--docker-password=3ls3wh3r3"];
    scene.kubectl.run(create.into_iter().chain(login)).await?;
    let secrets = json!({"imagePullSecrets": [{"name": "other"}, {"name": "pull"}]});
    let container = json!({"image": image, "command": ["true"]});
    scene.create(&scene.pod("private", &container, &secrets)).await?;
    scene.create(&scene.pod("public", &json!({"command": ["true"]}), &secrets)).await?;
    scene.phase("private", "Succeeded").await?;
    scene.phase("public", "Succeeded").await?;

    let notes = std::fs::read_to_string(&notes)?;
    for secret in ["0p3r4t0r", "operator", "3ls3wh3r3"] {
        ensure!(!notes.contains(secret), "{notes}");
    }
    let private = format!("pull {image}");
    for line in notes.lines() {
        let (call, variable) = line.split_once(" | ").context("a strange note")?;
        let (process, command) = call.split_once(' ').context("a strange note")?;
        if variable.starts_with("TART_REGISTRY_") {
            assert_eq!(command, private, "{line}");
            ensure!(!command.contains("s3cr3t"), "{line}");
        }
        let kept = format!("{process} {command} | TART_NO_AUTO_PRUNE=");
        ensure!(notes.lines().any(|line| line.starts_with(&kept)), "{call} may prune");
    }
    for variable in ["HOSTNAME=private.test", "USERNAME=robot", "PASSWORD=s3cr3t"] {
        ensure!(
            notes.contains(&format!("{private} | TART_REGISTRY_{variable}\n")),
            "no {variable} in {notes}"
        );
    }
    for command in ["clone ", "set ", "run ", "delete "] {
        ensure!(
            notes.lines().any(|line| line.split_once(' ').is_some_and(|(_, call)| call.starts_with(command)))
        );
    }
    Ok(())
}

#[tokio::test]
async fn an_image_that_may_not_be_pulled_is_told() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("never").await?;
    scene.create(&scene.pod("never", &json!({"imagePullPolicy": "Never"}), &json!({}))).await?;
    let words = "`imagePullPolicy: Never` forbids to pull it";
    scene.told("pod", "never", words).await?;
    waits_for(&scene, "never", "ErrImageNeverPull", words).await
}
