//! What `kubectl describe pod` says of a Pod that does not run: what happened, and what the user can do.

use anyhow::{Result, ensure};
use serde_json::json;
use tart_kubelet_tests::mac::Fault;

use crate::scene::{PodBuilder, Scene};

/// Creates a Pod and waits until its description has all of these words.
async fn describes(scene: &Scene, pod: PodBuilder<'_>, words: &[&str]) -> Result<()> {
    let name = pod.name().to_owned();
    pod.create().await?;
    for words in words {
        scene.described(&name, words).await?;
    }
    Ok(())
}

#[tokio::test]
async fn events_explain_a_failed_image_pull() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("no-image").await?;
    let missing = "registry.test/macos/sequioa:15";
    let words = ["ErrImagePull", missing, "check the image's name"];
    describes(&scene, scene.pod("typo").image(missing), &words).await?;
    let private = "private.test/macos/secret:1";
    scene.mac.add_image(private, &json!({}))?;
    scene.mac.protect_registry("private.test", "robot", "secret")?;
    let words = ["ErrImagePull", "check the image's name and the credentials for its registry"];
    describes(&scene, scene.pod("stranger").image(private), &words).await?;
    scene.kubectl.run(["delete", "pod", "typo", "stranger"]).await?;

    let words = ["cannot use pull secret `pull`", "not found", "kubectl create secret docker-registry pull"];
    describes(&scene, scene.pod("keyless").image(private).pull_secrets(&["pull"]), &words).await?;
    let described = scene.kubectl.run(["describe", "pod", "keyless"]).await?;
    ensure!(!described.contains("Status {"), "that is for machines:\n{described}");
    let words = ["ErrImagePull", "check that the host reaches the registry"];
    describes(&scene, scene.pod("nowhere").image("nowhere.test/macos:1"), &words).await
}

#[tokio::test]
async fn events_explain_a_full_disk() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("no-room").await?;
    let advice = "free some disk space on the host";
    scene.mac.set_fault(Fault::NoSpace, "pull")?;
    describes(&scene, scene.pod("pull"), &["ErrImagePull", advice]).await?;
    scene.mac.set_fault(Fault::NoSpace, "clone")?;
    describes(&scene, scene.pod("clone"), &["cannot make a VM from image", advice]).await
}

#[tokio::test]
async fn events_explain_leaked_vm_slots() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("no-place").await?;
    scene.mac.set_fault(Fault::VmLimitStuck, "")?;
    let words = ["exceeds the system limit", "stop VMs that are not Pods, or restart the host"];
    describes(&scene, scene.pod("third"), &words).await
}

#[tokio::test]
async fn events_explain_a_missing_program() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("no-command").await?;
    let words =
        ["StartError", "cannot start `xcodebiuld` in the guest: it has no such program; check `command`"];
    describes(&scene, scene.pod("typo").command(["xcodebiuld", "test"]), &words).await
}

#[tokio::test]
async fn events_explain_a_request_that_is_too_large() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("too-large").await?;
    let large = |name: &str| scene.pod(name).resources(json!({"requests": {"memory": "1Ti"}}));
    describes(&scene, large("large"), &["FailedScheduling", "Insufficient memory"]).await?;
    // Past the scheduler, the Node refuses the Pod itself.
    let words = ["OutOfmemory", "request less, or choose a larger Node"];
    describes(&scene, large("bound").bound(), &words).await?;
    // The scheduler ignores limits, but the VM is as large as the limit says.
    let resources = json!({"requests": {"memory": "1Gi"}, "limits": {"memory": "1Ti"}});
    let words =
        ["The memory size is greater than the maximum allowed", "lower the container's resource limits"];
    describes(&scene, scene.pod("limit").resources(resources), &words).await
}

#[tokio::test]
async fn events_explain_an_image_without_a_guest_agent() -> Result<()> {
    let mut scene = Scene::new("agentless").await?;
    let image = "registry.test/macos/vanilla:1";
    scene.mac.add_image(image, &json!({"agent": false}))?;
    scene.agent = scene.agent.flag("--vm-boot-timeout", "15s");
    let _agent = scene.start(&scene.agent).await?;
    let words = ["GuestAgentMissing", "use an image with tart-guest-agent in it"];
    describes(&scene, scene.pod("agentless").image(image).command(["/bin/echo"]), &words).await?;
    // A Pod that only boots needs the guest agent for its hooks and probes.
    let hook = json!({"exec": {"command": ["/bin/echo"]}});
    let words = ["GuestAgentMissing", "or hooks and probes that are no commands"];
    describes(&scene, scene.pod("hooked").image(image).pre_stop(hook), &words).await
}
