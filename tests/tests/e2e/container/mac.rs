//! What is particular about VMs on a Mac: its user's clipboard, serial numbers, its DHCP server, its files, and old guest agents.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tart_kubelet_tests::mac::Fault;

use crate::scene::{IMAGE, PodView as _, Scene, UNTIL_FINISHED};

#[tokio::test]
async fn guest_has_no_part_in_the_clipboard_of_the_macs_user() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("clipboard").await?;
    let clipboard = scene.mac.host().join("clipboard");
    std::fs::write(&clipboard, "secret")?;
    let script = "echo read: $(sudo pbpaste); echo changed | sudo pbcopy";
    assert_eq!(scene.pod("paste").sh(script).output().await?, ["read:"]);
    assert_eq!(std::fs::read_to_string(&clipboard)?, "secret");
    Ok(())
}

#[tokio::test]
async fn pod_chooses_the_serial_number_of_its_vm() -> Result<()> {
    let scene = Scene::new("serial").await?;
    // The machine identifier holds the serial number.
    let identity = |vm: &str| -> Result<(String, String)> {
        let config = std::fs::read(scene.vm_dir(vm).join("config.json"))?;
        let config: Value = serde_json::from_slice(&config)?;
        let text = |key: &str| config[key].as_str().map(str::to_owned).with_context(|| key.to_owned());
        Ok((text("ecid")?, text("macAddress")?))
    };
    let annotation = "tart-kubelet.tuist.dev/serial";
    for (flag, pods, is_images) in [
        ("random", None, false),
        ("random", Some("image"), true),
        ("image", Some("random"), false),
        ("image", None, true),
    ] {
        let _agent = scene.start(&scene.agent.clone().flag("--vm-serial", flag)).await?;
        let name = format!("{flag}-{}", pods.unwrap_or("none"));
        let pod = scene.pod(&name).sh(UNTIL_FINISHED);
        let pod = if let Some(choice) = pods { pod.annotation(annotation, choice) } else { pod };
        let vm = pod.create_until("Running").await?.vm()?;
        let (base, own) = (identity(&scene.only_base().await?)?, identity(&vm)?);
        ensure!((base.0 == own.0) == is_images, "{name}");
        ensure!(base.1 != own.1, "{name}: no two VMs have one MAC address");
        scene.delete(&name).await?;
    }
    Ok(())
}

#[tokio::test]
async fn guest_with_a_nameless_lease_hides_no_address() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("nameless").await?;
    scene.mac.set_fault(Fault::GuestName, "")?;
    let hollow = "registry.test/macos/hollow:1";
    scene.mac.add_image(hollow, &json!({"agent": false}))?;
    let pod = scene.pod("nameless").image(hollow).create_until("Running").await?;
    ensure!(pod.ip().is_some());
    let refused = scene.mac.tart(["ip", &pod.vm()?]).await.unwrap_err();
    ensure!(format!("{refused:#}").contains("only a key"), "{refused:#}");
    Ok(())
}

#[tokio::test]
async fn command_runs_with_a_guest_agent_that_does_not_know_the_address() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("old").await?;
    let old = "registry.test/macos/old:1";
    scene.mac.add_image(old, &json!({"agentVersion": "0.4.1"}))?;
    assert_eq!(scene.pod("old").image(old).sh("echo done").output().await?, ["done"]);
    Ok(())
}

#[tokio::test]
async fn share_that_the_guests_user_cannot_use_is_reported() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("shares").await?;
    scene.secret("keys", "token", "secret").await?;
    let closed = json!({"secret": {"secretName": "keys", "defaultMode": 0o400}});
    let pod = scene.pod("closed").image(IMAGE).volume("keys", closed).mount("keys", "/Users/admin/keys");
    let pod = pod.empty_dir("data", "/Users/admin/data");
    // The tests run as root, and the guest's user is not root.
    let script = "cat keys/token; mkdir data/mine && echo written >data/mine/file && cat data/mine/file";
    assert_eq!(pod.sh(script).output().await?, ["cat: keys/token: Permission denied", "written"]);
    scene.event("closed", "SharePermissions", "user 501 of the guest cannot read all of volume keys").await?;
    scene.event("closed", "SharePermissions", "what user 501 of the guest creates in volume data").await?;
    let open = scene.pod("root").sh("cat /private/tmp/keys/token").secret("keys");
    let open = open.security_context(json!({"runAsUser": 0}));
    open.create_until("Succeeded").await.map(drop)
}
