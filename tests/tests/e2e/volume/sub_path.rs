//! `subPath` and `subPathExpr` of containers that come after others, or of what is not there.

use anyhow::Result;
use serde_json::{Value, json};

use crate::scene::{IMAGE, Scene};
use super::content;

/// A Pod with one volume at `/private/tmp/work` in an init container, and parts of it in the main one.
fn pod(scene: &Scene, name: &str, volume: &Value, init: &str, main: &str, parts: &[(&str, &str)]) -> Value {
    let mounts: Vec<Value> = parts
        .iter()
        .map(|(part, at)| json!({"name": "work", "subPathExpr": part, "mountPath": format!("/private/tmp/{at}")}))
        .collect();
    let whole = json!([{"name": "work", "mountPath": "/private/tmp/work"}]);
    let container = json!({"command": ["/bin/sh", "-ec", main], "volumeMounts": mounts});
    let init =
        json!({"name": "init", "image": IMAGE, "command": ["/bin/sh", "-ec", init], "volumeMounts": whole});
    let mut volume = volume.clone();
    volume["name"] = json!("work");
    scene.pod(name, &container, &json!({"initContainers": [init], "volumes": [volume]}))
}

#[tokio::test]
async fn what_an_init_container_makes_is_what_the_main_one_mounts() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("init-part").await?;
    let init = "cd /private/tmp/work; echo made >template; cp template config.yaml; mkdir -p releases/3; \
                echo three >releases/3/file; ln -s releases/3 current";
    let main = "cd /private/tmp; cat config.yaml current/file; echo more >new/file; ls -d new/file";
    let parts = [("config.yaml", "config.yaml"), ("current", "current"), ("not/there", "new")];
    for (name, source) in [("disk", json!({})), ("memory", json!({"medium": "Memory"}))] {
        scene.create(&pod(&scene, name, &json!({"emptyDir": source}), init, main, &parts)).await?;
        let ended = scene.phase(name, "Succeeded").await?;
        assert_eq!(scene.log(&ended, "main", 0)?, ["made", "three", "new/file"], "{name}");
    }
    Ok(())
}

#[tokio::test]
async fn a_link_that_an_init_container_leaves_leads_nowhere_on_the_host() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("part-link").await?;
    let outside = scene.mac.sandbox().directory("outside")?;
    let init = format!("ln -s '{}' /private/tmp/work/out", outside.display());
    let pod = pod(&scene, "link", &json!({"emptyDir": {}}), &init, "true", &[("out/made", "part")]);
    scene.create(&pod).await?;
    // In the guest there is no such place, or one of its own.
    scene.phase("link", "Failed").await?;
    scene
        .told_as("link", "Failed", "Error: the subPath of volume mount /private/tmp/part cannot be made")
        .await?;
    assert_eq!(std::fs::read_dir(outside)?.count(), 0);
    Ok(())
}

#[tokio::test]
async fn a_part_can_be_named_after_the_pods_address() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("part-address").await?;
    let main = "cd /private/tmp; echo it >part/file; cat work/$IP/file";
    let cache = json!({"name": "work", "emptyDir": {}});
    let volumes = [
        (cache.clone(), json!({})),
        (cache, json!({"subPathExpr": "$(IP)", "mountPath": "/private/tmp/part"})),
    ];
    let mut pod = content::pod(&scene, "address", main, &volumes);
    let from = json!({"fieldRef": {"fieldPath": "status.podIP"}});
    pod["spec"]["containers"][0]["env"] = json!([{"name": "IP", "valueFrom": from}]);
    scene.create(&pod).await?;
    let ended = scene.phase("address", "Succeeded").await?;
    assert_eq!(scene.log(&ended, "main", 0)?, ["it"]);
    Ok(())
}

#[tokio::test]
async fn a_file_that_is_not_there_is_an_empty_directory() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("no-part").await?;
    let absent = json!({"name": "absent", "configMap": {"name": "none", "optional": true}});
    let mount = json!({"subPath": "app.conf"});
    let script = "cd /private/tmp/absent; ls -A; echo empty";
    assert_eq!(content::run(&scene, "absent", script, &[(absent, mount)]).await?, ["empty"]);
    Ok(())
}

#[tokio::test]
async fn a_guest_whose_user_cannot_become_root_says_so() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("no-sudo").await?;
    let image = "registry.test/macos/no-sudo:1";
    scene.mac.add_image(image, &json!({"uid": 501, "sudo": false}))?;
    let mount = json!({"mountPath": "/var/run/secrets/token"});
    let mut pod = content::pod(&scene, "locked", "true", &[(json!({"name": "v", "emptyDir": {}}), mount)]);
    pod["spec"]["containers"][0]["image"] = json!(image);
    scene.create(&pod).await?;
    scene.phase("locked", "Failed").await?;
    let words = "Error: volume mount /var/run/secrets/token cannot be had in the guest: its user may not write there, \
                 nor use sudo";
    scene.told_as("locked", "Failed", words).await
}
