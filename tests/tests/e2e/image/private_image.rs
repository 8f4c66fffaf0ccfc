//! Private images: a Pod without access to the registry does not get an image because another Pod has pulled it.

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tart_kubelet_tests::mac::Fault;

use crate::scene::{PodBuilder, PodView as _, Scene, UNTIL_FINISHED};

const IMAGE: &str = "private.test/macos/secret:1";

/// A Mac whose registry asks for a password.
async fn scene(name: &str) -> Result<Scene> {
    let scene = Scene::new(name).await?;
    scene.mac.add_image(IMAGE, &json!({}))?;
    scene.mac.protect_registry("private.test", "robot", "s3cr3t")?;
    Ok(scene)
}

impl Scene {
    /// Creates a pull secret with the registry's password.
    async fn login(&self, name: &str, server: &str, user: &str) -> Result<()> {
        self.pull_secret(name, server, user, "s3cr3t").await
    }

    /// A Pod of the private image that ends at once, with these pull secrets.
    fn private_pod(&self, name: &str, policy: &str, secrets: &[&str]) -> PodBuilder<'_> {
        self.pod(name).image(IMAGE).pull_policy(policy).command(["true"]).pull_secrets(secrets)
    }
}

#[tokio::test]
async fn private_image_is_refused_without_access_to_its_registry() -> Result<()> {
    let scene = scene("private-here").await?;
    let agent = scene.start(&scene.agent).await?;
    scene.login("pull", "private.test", "robot").await?;
    let first = scene.private_pod("first", "IfNotPresent", &["pull"]).create_until("Succeeded").await?;
    // A Pod that knows the digest cannot have the image by the name of another registry.
    let id = first.main().image_id().context("no image")?;
    let (_, digest) = id.split_once('@').context("no digest")?;
    let guess = format!("other.test/macos/guess@{digest}");
    scene.pod("guess").image(guess).pull_policy("Never").create().await?;
    scene.waiting("guess", "ErrImageNeverPull", "").await?;
    scene.delete("guess").await?;

    // The image is on the Mac, but not for Pods without the secret. The next agent knows that, too.
    scene.private_pod("bare", "IfNotPresent", &[]).create().await?;
    scene.waiting("bare", "ErrImagePull", "the credentials for its registry").await?;
    agent.kill9()?;
    let _agent = scene.agent.start()?;
    scene.private_pod("never", "Never", &[]).create().await?;
    scene.waiting("never", "ErrImageNeverPull", "").await?;
    scene.delete("never").await?;
    scene.waiting("bare", "ErrImagePull", "the credentials for its registry").await?;

    // A Pod with the same secret needs no registry.
    scene.mac.set_fault(Fault::Pull, "offline")?;
    scene.private_pod("second", "Never", &["pull"]).create_until("Succeeded").await?;
    // The agent checks another secret with the registry.
    scene.login("other", "private.test", "robot").await?;
    scene.private_pod("other", "IfNotPresent", &["other"]).create().await?;
    scene.waiting("other", "ErrImagePull", "").await?;
    scene.mac.clear_fault(Fault::Pull)?;
    scene.phase("other", "Succeeded").await?;

    // When the registry is public, every Pod has the image.
    scene.mac.open_registry("private.test")?;
    scene.phase("bare", "Succeeded").await?;
    scene.private_pod("never", "Never", &[]).create_until("Succeeded").await.map(drop)
}

#[tokio::test]
async fn image_that_a_user_pulled_is_for_every_pod() -> Result<()> {
    let scene = scene("private-theirs").await?;
    let login = scene.mac.host().join("login.json");
    let auths = json!({"auths": {"private.test": {"username": "robot", "password": "s3cr3t"}}});
    std::fs::write(&login, auths.to_string())?;
    let agent = scene.start(&scene.agent).await?;
    let words = ["images", "pull", "--docker-config", &login.display().to_string(), IMAGE];
    let said = agent.agent().run(&words).await?;
    ensure!(said.contains("is private.test/macos/secret@sha256:"), "{said}");
    scene.private_pod("bare", "IfNotPresent", &[]).create_until("Succeeded").await.map(drop)
}

#[tokio::test]
async fn pod_restarts_without_its_pull_secret() -> Result<()> {
    let scene = scene("private-again").await?;
    let _agent = scene.start(&scene.agent).await?;
    scene.login("pull", "private.test", "robot").await?;
    let vm = scene
        .private_pod("again", "IfNotPresent", &["pull"])
        .sh(format!("[ -e /opt/cache/again ] && exit 0; {UNTIL_FINISHED}; touch /opt/cache/again; exit 1"))
        .empty_dir("cache", "/opt/cache")
        .restart_policy("OnFailure")
        .create_until("Running")
        .await?
        .vm()?;
    scene.kubectl.run(["delete", "secret", "pull"]).await?;
    scene.finish_command(&vm).await;
    scene.phase("again", "Succeeded").await.map(drop)
}

#[tokio::test]
async fn pull_secrets_are_tried_most_exact_first() -> Result<()> {
    let scene = scene("private-tries").await?;
    let _agent = scene.start(&scene.agent).await?;
    // The kubelet's rules: wildcards in the host, and paths.
    scene.login("wrong", "private.test/macos", "stranger").await?;
    scene.login("elsewhere", "private.test/linux", "nobody").await?;
    scene.login("right", "*.test", "robot").await?;
    let keys = ["right", "elsewhere", "wrong"];
    scene.private_pod("tries", "IfNotPresent", &keys).create_until("Succeeded").await.map(drop)
}

#[tokio::test]
async fn private_image_stays_private_when_the_record_is_lost() -> Result<()> {
    for is_spoilt in [true, false] {
        let scene = scene(if is_spoilt { "private-spoilt" } else { "private-lost" }).await?;
        let agent = scene.start(&scene.agent).await?;
        scene.login("pull", "private.test", "robot").await?;
        scene.private_pod("first", "IfNotPresent", &["pull"]).create_until("Succeeded").await?;
        agent.kill9()?;
        let record = scene.agent.state_dir().join("images.json");
        if is_spoilt {
            std::fs::write(&record, "{")?;
        } else {
            std::fs::remove_file(&record)?;
        }
        let _agent = scene.agent.start()?;
        scene.private_pod("never", "Never", &[]).create().await?;
        scene.waiting("never", "ErrImageNeverPull", "").await?;
        scene.delete("never").await?;
        scene.private_pod("bare", "IfNotPresent", &[]).create().await?;
        scene.waiting("bare", "ErrImagePull", "the credentials for its registry").await?;
        scene.delete("bare").await?;
        // The registry grants it, and is not asked again.
        scene.private_pod("second", "IfNotPresent", &["pull"]).create_until("Succeeded").await?;
        scene.mac.set_fault(Fault::Pull, "offline")?;
        scene.private_pod("third", "Never", &["pull"]).create_until("Succeeded").await?;
    }
    Ok(())
}

#[tokio::test]
async fn images_are_pulled_while_the_keychain_is_locked() -> Result<()> {
    let scene = scene("locked").await?;
    let _agent = scene.start(&scene.agent).await?;
    scene.mac.set_fault(Fault::KeychainLocked, "")?;
    scene.login("pull", "private.test", "robot").await?;
    scene.private_pod("private", "Always", &["pull"]).create_until("Succeeded").await?;
    // tart says that it has no credentials, which a public image needs none of.
    scene.pod("public").command(["true"]).pull_policy("Always").create_until("Succeeded").await.map(drop)
}
