//! `subPath` and `subPathExpr`.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::scene::{PodBuilder, Scene};

/// A Pod with one volume at `/private/tmp/work` in an init container, and parts of it in the main one.
fn with_init<'a>(
    scene: &'a Scene,
    name: &str,
    source: Value,
    init: &str,
    parts: &[(&str, &str)],
) -> PodBuilder<'a> {
    let whole = json!([{"name": "work", "mountPath": "/private/tmp/work"}]);
    let init = json!({"command": ["/bin/sh", "-ec", init], "volumeMounts": whole});
    let pod = scene.pod(name).volume("work", source).init_container("init", init);
    parts.iter().fold(pod, |pod, (part, at)| {
        pod.mount_with("work", format!("/private/tmp/{at}"), json!({"subPathExpr": part}))
    })
}

/// A Pod with an empty directory, and the part `part` of it at `/private/tmp/cache`.
fn with_part<'a>(scene: &'a Scene, name: &str, part: &str) -> PodBuilder<'a> {
    let part = json!({"subPathExpr": part});
    scene.pod(name).volume("cache", json!({"emptyDir": {}})).mount_with("cache", "/private/tmp/cache", part)
}

#[tokio::test]
async fn sub_paths_are_made_and_mounted() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("parts").await?;
    scene.config_map("settings", "mode", "fast").await?;
    let output = with_part(&scene, "parts", "logs/$(JOB)")
        .strict_sh("cd /private/tmp; cat mode; echo; echo made > cache/file; cat whole/logs/seven/file")
        .env("JOB", "seven")
        .mount("cache", "/private/tmp/whole")
        .volume("settings", json!({"configMap": {"name": "settings"}}))
        .mount_with("settings", "/private/tmp/mode", json!({"subPath": "mode"}))
        .output()
        .await?;
    assert_eq!(output, ["fast", "made"]);
    Ok(())
}

#[tokio::test]
async fn sub_path_expr_waits_for_its_annotation() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("named-part").await?;
    with_part(&scene, "named", "$(PART)")
        .strict_sh("ls /private/tmp/whole; echo $PART")
        .env_field("PART", "metadata.annotations['part']")
        .mount("cache", "/private/tmp/whole")
        .create()
        .await?;
    scene.event("named", "Failed", "Error: missing value for PART").await?;
    scene.kubectl.run(["annotate", "pod", "named", "part=seven"]).await?;
    let ended = scene.phase("named", "Succeeded").await?;
    assert_eq!(scene.log(&ended, "main", 0)?, ["seven", "seven"]);
    Ok(())
}

#[tokio::test]
async fn secret_sub_path_is_in_no_log_and_no_event() -> Result<()> {
    const SECRET: &str = "hunter2-correct-horse-battery-staple";
    let (scene, agent) = Scene::with_agent("secret-part").await?;
    scene.secret("keys", "password", SECRET).await?;
    let with = |name: &str, part: &str, script: &str| {
        let pod = with_part(&scene, name, part).strict_sh(script);
        pod.env_secret("WORD", "keys", "password").env("ROOT", "/$(WORD)")
    };
    with("fine", "$(WORD)", "echo made > /private/tmp/cache/file").create_until("Succeeded").await?;
    with("absolute", "$(ROOT)", "true").create().await?;
    scene.event("absolute", "Failed", "Error: error SubPath `$(ROOT)` must not be").await?;
    with("inner", "$(WORD)/in", "true").create_until("Succeeded").await?;
    scene.nowhere_on_disk(SECRET).await?;
    let objects = scene.kubectl.run(["get", "pods,events", "--output", "yaml"]).await?;
    ensure!(!objects.contains(SECRET), "it is in the API");
    for log in [agent.log()?, scene.shim_log("fine").await?, scene.shim_log("inner").await?] {
        ensure!(!log.contains(SECRET), "{log}");
    }
    Ok(())
}

#[tokio::test]
async fn main_container_mounts_a_sub_path_that_an_init_container_made() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("init-part").await?;
    let init = "cd /private/tmp/work; echo made >template; cp template config.yaml; mkdir -p releases/3; \
                echo three >releases/3/file; ln -s releases/3 current";
    let main = "cd /private/tmp; cat config.yaml current/file; echo more >new/file; ls -d new/file";
    let parts = [("config.yaml", "config.yaml"), ("current", "current"), ("not/there", "new")];
    for (name, source) in [("disk", json!({})), ("memory", json!({"medium": "Memory"}))] {
        let pod = with_init(&scene, name, json!({"emptyDir": source}), init, &parts).strict_sh(main);
        assert_eq!(pod.output().await?, ["made", "three", "new/file"], "{name}");
    }
    Ok(())
}

#[tokio::test]
async fn sub_path_link_of_an_init_container_leads_nowhere_on_the_host() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("part-link").await?;
    let outside = scene.mac.sandbox().directory("outside")?;
    let init = format!("ln -s '{}' /private/tmp/work/out", outside.display());
    let pod = with_init(&scene, "link", json!({"emptyDir": {}}), &init, &[("out/made", "part")]);
    // The link's target does not exist in the guest.
    pod.strict_sh("true").create_until("Failed").await?;
    let words = "Error: the subPath of volume mount /private/tmp/part cannot be made";
    scene.event("link", "Failed", words).await?;
    assert_eq!(std::fs::read_dir(outside)?.count(), 0);
    Ok(())
}

#[tokio::test]
async fn sub_path_expr_can_have_the_pods_address() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("part-address").await?;
    let output = scene
        .pod("address")
        .strict_sh("cd /private/tmp; echo it >part/file; cat work/$IP/file")
        .env_field("IP", "status.podIP")
        .empty_dir("work", "/private/tmp/work")
        .mount_with("work", "/private/tmp/part", json!({"subPathExpr": "$(IP)"}))
        .output()
        .await?;
    assert_eq!(output, ["it"]);
    Ok(())
}

#[tokio::test]
async fn sub_path_of_a_missing_file_is_an_empty_directory() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("no-part").await?;
    let output = scene
        .pod("absent")
        .strict_sh("cd /private/tmp/absent; ls -A; echo empty")
        .volume("absent", json!({"configMap": {"name": "none", "optional": true}}))
        .mount_with("absent", "/private/tmp/absent", json!({"subPath": "app.conf"}))
        .output()
        .await?;
    assert_eq!(output, ["empty"]);
    Ok(())
}

#[tokio::test]
async fn mount_that_needs_root_is_reported_without_sudo() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("no-sudo").await?;
    let image = "registry.test/macos/no-sudo:1";
    scene.mac.add_image(image, &json!({"uid": 501, "sudo": false}))?;
    let pod = scene.pod("locked").image(image).strict_sh("true").empty_dir("v", "/var/run/secrets/token");
    pod.create_until("Failed").await?;
    let words = "Error: volume mount /var/run/secrets/token cannot be had in the guest: its user may not write there, \
                 nor use sudo";
    scene.event("locked", "Failed", words).await
}
