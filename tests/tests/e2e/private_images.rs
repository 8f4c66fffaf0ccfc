//! Private images: whoever its registry would not let have one does not get it because somebody else has pulled it.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tart_kubelet_tests::mac::Fault;

use crate::images::waits_for;
use crate::scene::Scene;

const IMAGE: &str = "private.test/macos/secret:1";

/// A Mac whose registry wants a password.
async fn scene(name: &str) -> Result<Scene> {
    let scene = Scene::new(name).await?;
    scene.mac.add_image(IMAGE, &json!({}))?;
    scene.mac.protect_registry("private.test", "robot", "s3cr3t")?;
    Ok(scene)
}

impl Scene {
    async fn pull_secret(&self, name: &str, server: &str, username: &str) -> Result<()> {
        let (server, user) = (format!("--docker-server={server}"), format!("--docker-username={username}"));
        let create =
            ["create", "secret", "docker-registry", name, &server, &user, "--docker-password=s3cr3t"];
        self.kubectl.run(create).await.map(drop)
    }

    /// A Pod that ends at once, with these pull secrets.
    async fn with_secrets(&self, name: &str, policy: &str, secrets: &[&str]) -> Result<()> {
        let container = json!({"image": IMAGE, "imagePullPolicy": policy, "command": ["true"]});
        let secrets: Vec<Value> = secrets.iter().map(|name| json!({"name": name})).collect();
        self.create(&self.pod(name, &container, &json!({"imagePullSecrets": secrets}))).await
    }
}

#[tokio::test]
async fn a_private_image_is_for_pods_that_may_pull_it() -> Result<()> {
    let scene = scene("private-here").await?;
    let agent = scene.agent.start()?;
    scene.node_ready(&agent).await?;
    scene.pull_secret("pull", "private.test", "robot").await?;
    scene.with_secrets("first", "IfNotPresent", &["pull"]).await?;
    let first = scene.phase("first", "Succeeded").await?;
    // Whoever knows its digest cannot have it by the name of another registry.
    let statuses = first.status.and_then(|status| status.container_statuses).unwrap_or_default();
    let (_, digest) = statuses[0].image_id.split_once('@').context("no digest")?;
    let guess = json!({"image": format!("other.test/macos/guess@{digest}"), "imagePullPolicy": "Never"});
    scene.create(&scene.pod("guess", &guess, &json!({}))).await?;
    waits_for(&scene, "guess", "ErrImageNeverPull", "").await?;
    scene.kubectl.run(["delete", "pod", "guess"]).await?;

    // It is here, and not for these; an agent that starts anew knows that, too.
    scene.with_secrets("bare", "IfNotPresent", &[]).await?;
    waits_for(&scene, "bare", "ErrImagePull", "the credentials for its registry").await?;
    agent.kill9()?;
    let _agent = scene.agent.start()?;
    scene.with_secrets("never", "Never", &[]).await?;
    waits_for(&scene, "never", "ErrImageNeverPull", "").await?;
    scene.kubectl.run(["delete", "pod", "never"]).await?;
    waits_for(&scene, "bare", "ErrImagePull", "the credentials for its registry").await?;

    // Whoever has the same secret need not even ask: its registry is away.
    scene.mac.set_fault(Fault::Pull, "offline")?;
    scene.with_secrets("second", "Never", &["pull"]).await?;
    scene.phase("second", "Succeeded").await?;
    // Another secret has to show that it is as good.
    scene.pull_secret("other", "private.test", "robot").await?;
    scene.with_secrets("other", "IfNotPresent", &["other"]).await?;
    waits_for(&scene, "other", "ErrImagePull", "").await?;
    scene.mac.clear_fault(Fault::Pull)?;
    scene.phase("other", "Succeeded").await?;

    // Once the registry gives it to anybody, anybody has it.
    scene.mac.open_registry("private.test")?;
    scene.phase("bare", "Succeeded").await?;
    scene.with_secrets("never", "Never", &[]).await?;
    scene.phase("never", "Succeeded").await.map(drop)
}

#[tokio::test]
async fn what_somebody_has_put_on_the_mac_is_for_every_pod() -> Result<()> {
    let scene = scene("private-theirs").await?;
    let login = scene.mac.host().join("login.json");
    let auths = json!({"auths": {"private.test": {"username": "robot", "password": "s3cr3t"}}});
    std::fs::write(&login, auths.to_string())?;
    let agent = scene.agent.start()?;
    scene.node_ready(&agent).await?;
    let words = ["images", "pull", "--docker-config", &login.display().to_string(), IMAGE];
    let said = agent.agent().run(&words).await?;
    ensure!(said.contains("is private.test/macos/secret@sha256:"), "{said}");
    scene.with_secrets("bare", "IfNotPresent", &[]).await?;
    scene.phase("bare", "Succeeded").await.map(drop)
}

#[tokio::test]
async fn a_pod_that_has_had_its_image_starts_again_without_its_secret() -> Result<()> {
    let scene = scene("private-again").await?;
    let agent = scene.agent.start()?;
    scene.node_ready(&agent).await?;
    scene.pull_secret("pull", "private.test", "robot").await?;
    let once = json!([
        "/bin/sh",
        "-c",
        "[ -e /opt/cache/again ] && exit 0; until [ -e /private/tmp/go ]; do sleep 0.05; done; touch /opt/cache/again; exit 1"
    ]);
    let mounts = json!([{"name": "cache", "mountPath": "/opt/cache"}]);
    let container =
        json!({"image": IMAGE, "imagePullPolicy": "IfNotPresent", "command": once, "volumeMounts": mounts});
    let spec = json!({"imagePullSecrets": [{"name": "pull"}], "restartPolicy": "OnFailure",
        "volumes": [{"name": "cache", "emptyDir": {}}]});
    scene.create(&scene.pod("again", &container, &spec)).await?;
    let vm = Scene::vm_of(&scene.phase("again", "Running").await?)?;
    scene.kubectl.run(["delete", "secret", "pull"]).await?;
    scene.let_go(&vm).await;
    scene.phase("again", "Succeeded").await.map(drop)
}

#[tokio::test]
async fn every_secret_that_fits_is_tried_the_most_exact_first() -> Result<()> {
    let scene = scene("private-tries").await?;
    let agent = scene.agent.start()?;
    scene.node_ready(&agent).await?;
    // The kubelet's rules: wildcards in the host, and paths.
    scene.pull_secret("wrong", "private.test/macos", "stranger").await?;
    scene.pull_secret("elsewhere", "private.test/linux", "nobody").await?;
    scene.pull_secret("right", "*.test", "robot").await?;
    let keys = ["right", "elsewhere", "wrong"];
    scene.with_secrets("tries", "IfNotPresent", &keys).await?;
    scene.phase("tries", "Succeeded").await.map(drop)
}
