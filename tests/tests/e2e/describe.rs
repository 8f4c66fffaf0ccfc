//! What `kubectl describe pod` tells somebody whose Pod does not run: what happened, and what to do.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tart_kubelet_tests::mac::Fault;

use crate::scene::{IMAGE, Scene};

/// Creates a Pod and waits until its description has all of these words.
async fn tells(scene: &Scene, name: &str, container: &Value, spec: &Value, words: &[&str]) -> Result<()> {
    scene.create(&scene.pod(name, container, spec)).await?;
    for words in words {
        scene.told("pod", name, words).await?;
    }
    Ok(())
}

#[tokio::test]
async fn an_image_that_cannot_be_had() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("no-image").await?;
    let image = |image: &str| json!({"image": image});
    let nothing = json!({});
    let missing = "registry.test/macos/sequioa:15";
    tells(&scene, "typo", &image(missing), &nothing, &["ErrImagePull", missing, "check the image's name"])
        .await?;
    let private = "private.test/macos/secret:1";
    scene.mac.add_image(private, &json!({}))?;
    scene.mac.protect_registry("private.test", "robot", "secret")?;
    let credentials = "check the image's name and the credentials for its registry";
    tells(&scene, "stranger", &image(private), &nothing, &["ErrImagePull", credentials]).await?;
    scene.kubectl.run(["delete", "pod", "typo", "stranger"]).await?;

    let secret = json!({"imagePullSecrets": [{"name": "pull"}]});
    let words = ["cannot use pull secret `pull`", "not found", "kubectl create secret docker-registry pull"];
    tells(&scene, "keyless", &image(private), &secret, &words).await?;
    let described = scene.kubectl.run(["describe", "pod", "keyless"]).await?;
    ensure!(!described.contains("Status {"), "that is for machines:\n{described}");
    let words = ["ErrImagePull", "check that the host reaches the registry"];
    tells(&scene, "nowhere", &image("nowhere.test/macos:1"), &nothing, &words).await
}

#[tokio::test]
async fn a_disk_without_room() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("no-room").await?;
    let nothing = json!({});
    let advice = "free some disk space on the host";
    scene.mac.set_fault(Fault::NoSpace, "pull")?;
    tells(&scene, "pull", &nothing, &nothing, &["ErrImagePull", advice]).await?;
    scene.mac.set_fault(Fault::NoSpace, "clone")?;
    tells(&scene, "clone", &nothing, &nothing, &["cannot make a VM from image", advice]).await
}

#[tokio::test]
async fn a_host_that_runs_no_further_vm() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("no-place").await?;
    scene.mac.set_fault(Fault::VmLimitStuck, "")?;
    let words = ["exceeds the system limit", "stop VMs that are not Pods, or restart the host"];
    tells(&scene, "third", &json!({}), &json!({}), &words).await
}

#[tokio::test]
async fn a_command_that_the_guest_does_not_have() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("no-command").await?;
    let container = json!({"command": ["xcodebiuld", "test"]});
    let words =
        ["StartError", "cannot start `xcodebiuld` in the guest: it has no such program; check `command`"];
    tells(&scene, "typo", &container, &json!({}), &words).await
}

#[tokio::test]
async fn a_request_that_no_mac_can_grant() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("too-large").await?;
    let container = json!({"image": IMAGE, "resources": {"requests": {"memory": "1Ti"}}});
    tells(&scene, "large", &container, &json!({}), &["FailedScheduling", "Insufficient memory"]).await?;
    // Past the scheduler, the Node says it itself.
    let bound = json!({"nodeName": scene.node});
    let words = ["OutOfmemory", "request less, or choose a larger Node"];
    tells(&scene, "bound", &container, &bound, &words).await?;
    // A limit is nothing that anybody schedules by, but the VM is as large.
    let container =
        json!({"image": IMAGE, "resources": {"requests": {"memory": "1Gi"}, "limits": {"memory": "1Ti"}}});
    let words =
        ["The memory size is greater than the maximum allowed", "lower the container's resource limits"];
    tells(&scene, "limit", &container, &json!({}), &words).await
}

#[tokio::test]
async fn a_guest_without_an_agent() -> Result<()> {
    let mut scene = Scene::new("agentless").await?;
    let image = "registry.test/macos/vanilla:1";
    scene.mac.add_image(image, &json!({"agent": false}))?;
    scene.agent = scene.agent.flag("--vm-boot-timeout", "15s");
    let agent = scene.agent.start()?;
    scene.node_ready(&agent).await?;
    let container = json!({"image": image, "command": ["/bin/echo"]});
    let words = ["GuestAgentMissing", "use an image with tart-guest-agent in it"];
    tells(&scene, "agentless", &container, &json!({}), &words).await?;
    // One that only boots needs it for its hooks and probes.
    let hook = json!({"preStop": {"exec": {"command": ["/bin/echo"]}}});
    let container = json!({"image": image, "lifecycle": hook});
    let words = ["GuestAgentMissing", "or hooks and probes that are no commands"];
    tells(&scene, "hooked", &container, &json!({}), &words).await
}
