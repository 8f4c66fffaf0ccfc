//! Images: where they come from, and what is told when they do not come.

use anyhow::{Result, ensure};
use serde_json::json;

use crate::scene::Scene;

#[tokio::test]
async fn a_missing_image_is_told_and_heals() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("image").await?;
    let image = "registry.test/macos/tahoe:26";
    scene.create(&scene.pod("image", &json!({"image": image}), &json!({}))).await?;
    scene.told("pod", "image", "check the image's name").await?;
    let shown = scene.kubectl.run(["get", "pod", "image", "--no-headers"]).await?;
    ensure!(shown.contains("ErrImagePull") || shown.contains("ImagePullBackOff"), "{shown}");
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
async fn an_image_that_may_not_be_pulled_is_told() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("never").await?;
    scene.create(&scene.pod("never", &json!({"imagePullPolicy": "Never"}), &json!({}))).await?;
    scene.told("pod", "never", "`imagePullPolicy: Never` forbids to pull it").await?;
    let shown = scene.kubectl.run(["get", "pod", "never", "--no-headers"]).await?;
    ensure!(shown.contains("ErrImageNeverPull") || shown.contains("ImagePullBackOff"), "{shown}");
    Ok(())
}
