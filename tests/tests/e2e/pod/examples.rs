//! The files in `examples/`: the API server takes each of them, and the agent runs its Pods.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tart_kubelet_tests::agent::RunningAgent;

use crate::scene::{DEADLINE, Scene};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples");
/// Every example selects its Node in these words.
const SELECTOR: &str = "{ kubernetes.io/os: darwin }";
const PUBLIC_IMAGE: &str = "ghcr.io/cirruslabs/macos-sequoia-base:latest";
const PRIVATE_IMAGE: &str = "ghcr.io/example/macos-private:26";

/// All examples, each with a test below.
const BOOT_ONLY_VM: &str = "boot-only-vm.yaml";
const CONFIGMAP_AND_SECRET: &str = "configmap-and-secret.yaml";
const DEPLOYMENT: &str = "deployment.yaml";
const JOB: &str = "job.yaml";
const PRIVATE: &str = "private-image.yaml";

impl Scene {
    /// A Mac with the images of all examples, and its agent. The Mac is as large as a real one, whatever machine runs the tests.
    async fn with_example_images(name: &str) -> Result<(Self, RunningAgent)> {
        let mut scene = Self::new(name).await?;
        // The guest's user has the agent's number, as on a Mac whose user and whose image are the usual ones.
        let description = json!({"uid": nix::unistd::geteuid().as_raw()});
        scene.mac.add_image(PUBLIC_IMAGE, &description)?;
        scene.mac.add_image(PRIVATE_IMAGE, &description)?;
        scene.agent = scene.agent.flag("--host-cpu", "12").flag("--host-memory-mb", "32768");
        let agent = scene.start(&scene.agent).await?;
        Ok((scene, agent))
    }

    /// Applies an example: as it is, for the API server to check every field, and then for this scene's Node.
    async fn apply_example(&self, name: &str) -> Result<()> {
        let path = Path::new(FOLDER).join(name);
        let strictly = ["apply", "--dry-run=server", "--validate=strict", "--filename"].map(PathBuf::from);
        self.kubectl.run(strictly.iter().chain([&path])).await?;
        let manifest = std::fs::read_to_string(&path)?;
        ensure!(manifest.contains(SELECTOR), "{name} does not select its Node by `{SELECTOR}`");
        // Other tests have Macs in the same cluster.
        let here = format!("{{ kubernetes.io/os: darwin, kubernetes.io/hostname: {} }}", self.node);
        self.kubectl.apply(&manifest.replace(SELECTOR, &here)).await.map(drop)
    }

    /// Waits as a user does, with `kubectl wait` or `kubectl rollout status`.
    async fn wait_with(&self, arguments: &[&str]) -> Result<()> {
        let limit = format!("--timeout={}s", DEADLINE.as_secs());
        let waiting = self.kubectl.clone().deadline(2 * DEADLINE);
        let waited = waiting.run(arguments.iter().copied().chain([limit.as_str()])).await;
        waited.map(drop).with_context(|| format!("the agent says: {}", self.agent_log()))
    }
}

#[test]
fn every_example_has_a_test() -> Result<()> {
    let entries = std::fs::read_dir(FOLDER)?.collect::<Result<Vec<_>, _>>()?;
    let names = entries.iter().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let found: BTreeSet<String> = names.filter(|name| name != "README.md").collect();
    let tested = [BOOT_ONLY_VM, CONFIGMAP_AND_SECRET, DEPLOYMENT, JOB, PRIVATE];
    assert_eq!(found, tested.map(str::to_owned).into());
    Ok(())
}

#[tokio::test]
async fn the_job_completes() -> Result<()> {
    let (scene, _agent) = Scene::with_example_images("example-job").await?;
    scene.apply_example(JOB).await?;
    scene.wait_with(&["wait", "--for=condition=Complete", "job/build"]).await
}

#[tokio::test]
async fn the_deployment_becomes_available_and_takes_a_change() -> Result<()> {
    let (scene, _agent) = Scene::with_example_images("example-deployment").await?;
    scene.apply_example(DEPLOYMENT).await?;
    scene.wait_with(&["wait", "--for=condition=Available", "deployment/runner"]).await?;
    // Both places of the Mac are taken, so this takes the strategy that the example has.
    scene.kubectl.run(["set", "env", "deployment/runner", "CHANGED=yes"]).await?;
    scene.wait_with(&["rollout", "status", "deployment/runner"]).await
}

#[tokio::test]
async fn the_boot_only_vm_becomes_ready() -> Result<()> {
    let (scene, _agent) = Scene::with_example_images("example-boot").await?;
    scene.apply_example(BOOT_ONLY_VM).await?;
    scene.wait_with(&["wait", "--for=condition=Ready", "pod/desktop"]).await
}

#[tokio::test]
async fn the_private_image_is_pulled_with_the_secret_of_the_example() -> Result<()> {
    let (scene, _agent) = Scene::with_example_images("example-private").await?;
    scene.mac.protect_registry("ghcr.io", "robot", "change-me")?;
    scene.apply_example(PRIVATE).await?;
    scene.wait_with(&["wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/private"]).await
}

#[tokio::test]
async fn the_pod_with_a_configmap_and_a_secret_reads_both() -> Result<()> {
    let (scene, _agent) = Scene::with_example_images("example-settings").await?;
    scene.apply_example(CONFIGMAP_AND_SECRET).await?;
    scene.wait_with(&["wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/settings"]).await?;
    let log = scene.log(&scene.pods.get("settings").await?, "main", 0)?.join("\n");
    ensure!(log.contains("the scheme is App") && log.contains("<plist"), "{log}");
    Ok(())
}
