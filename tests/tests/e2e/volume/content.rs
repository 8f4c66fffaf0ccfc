//! The content of volumes: `configMap`, `secret`, `downwardAPI` and `projected`.

use std::path::Path;

use anyhow::{Result, ensure};
use serde_json::json;
use tart_kubelet_tests::wait;

use super::without_errors;
use crate::scene::{DEADLINE, PodView as _, Scene};

/// A value that is nowhere else, so that the test can look for it.
const SECRET: &str = "hunter2-correct-horse-battery-staple";

/// The files below a directory that have `words` in them.
fn files_with(dir: &Path, words: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        // The agent may delete a file meanwhile.
        let Ok(entry) = entry else { continue };
        let (path, kind) = (entry.path(), entry.file_type()?);
        if kind.is_dir() {
            found.extend(files_with(&path, words).unwrap_or_default());
        } else if kind.is_file() {
            let bytes = std::fs::read(&path).unwrap_or_default();
            if bytes.windows(words.len()).any(|window| window == words.as_bytes()) {
                found.push(path.display().to_string());
            }
        }
    }
    Ok(found)
}

#[tokio::test]
async fn volumes_have_the_files_of_all_sources() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("files").await?;
    scene.config_map("settings", "mode", "fast").await?;
    scene.secret("login", "password", SECRET).await?;
    let items = json!([{"path": "where", "fieldRef": {"fieldPath": "metadata.name"}}]);
    let amount = |resource: &str, divisor: &str| json!({"containerName": "main", "resource": resource, "divisor": divisor});
    let amounts = json!([
        {"path": "memory", "resourceFieldRef": amount("requests.memory", "1Mi"), "mode": 288},
        {"path": "disk", "resourceFieldRef": amount("limits.ephemeral-storage", "1Ki")},
    ]);
    let some = json!([{"key": "mode", "path": "here"}, {"key": "none", "path": "not"}]);
    let word = json!([{"key": "password", "path": "deep/er/word"}]);
    let all = json!([
        {"configMap": {"name": "settings"}},
        {"secret": {"name": "login"}},
        {"downwardAPI": {"items": items}},
        {"configMap": {"name": "none", "optional": true}},
    ]);
    let script = "cd /private/tmp; cat settings/mode; echo; cat login/deep/er/word; echo; cat info/where; echo; \
                  ls all some; ls -lL login/deep/er/word amounts/memory amounts/disk | cut -c1-10; \
                  echo $(cat amounts/memory) $(cat amounts/disk)";
    let output = scene
        .pod("files")
        .strict_sh(script)
        // The number of the agent's user, who alone can read a file with mode 0400.
        .security_context(json!({"runAsUser": 0}))
        .config_map("settings")
        .mounted("amounts", json!({"downwardAPI": {"items": amounts}}))
        .mounted("some", json!({"configMap": {"name": "settings", "items": some, "optional": true}}))
        .mounted("login", json!({"secret": {"secretName": "login", "defaultMode": 256, "items": word}}))
        .mounted("info", json!({"downwardAPI": {"items": items}}))
        .mounted("all", json!({"projected": {"sources": all}}))
        .resources(json!({
            "requests": {"memory": "64Mi", "ephemeral-storage": "1Mi"}, "limits": {"ephemeral-storage": "2Mi"},
        }))
        .output()
        .await?;
    let files = ["fast", SECRET, "files", "all:", "mode", "password", "where", "", "some:", "here"];
    assert_eq!(output[..files.len()], files);
    // `ls` sorts by name.
    assert_eq!(output[files.len()..], ["-rw-r--r--", "-r--r-----", "-r--------", "64 2048"]);
    Ok(())
}

#[tokio::test]
async fn running_guest_sees_changed_config_maps_and_secrets() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("live").await?;
    scene.config_map("settings", "mode", "old").await?;
    scene.secret("login", "password", SECRET).await?;
    let script = "cd /private/tmp; cat settings/mode; echo; until grep -q new settings/mode; do sleep 0.05; done; \
                  cat settings/mode; echo; until grep -q changed login/password; do sleep 0.05; done; cat login/password";
    let pod = scene.pod("live").strict_sh(script).config_map("settings").secret("login");
    let running = pod.create_until("Running").await?;
    wait::eventually("the guest to read the old value", DEADLINE, async || {
        ensure!(!scene.log(&running, "main", 0)?.is_empty(), "nothing yet");
        Ok(())
    })
    .await?;
    scene.config_map("settings", "mode", "new").await?;
    scene.secret("login", "password", "changed").await?;
    let ended = scene.phase("live", "Succeeded").await?;
    assert_eq!(scene.log(&ended, "main", 0)?, ["old", "new", "changed"]);
    Ok(())
}

#[tokio::test]
async fn agent_watches_config_maps_and_does_not_poll() -> Result<()> {
    const CHANGES: usize = 30;
    let (scene, agent) = Scene::with_agent("heard").await?;
    scene.config_map("settings", "mode", "0").await?;
    scene.secret("login", "password", SECRET).await?;
    let pod = scene.pod("heard").strict_sh("sleep 1000").config_map("settings").secret("login");
    let volumes = scene.volumes_dir(pod.create_until("Running").await?.uid_of()?);
    let reads = async || agent.metric("rest_client_requests_total{code=\"200\",method=\"GET\"}").await;
    let before = reads().await?;
    for change in 1..=CHANGES {
        let value = change.to_string();
        scene.config_map("settings", "mode", &value).await?;
        scene.secret("login", "password", &value).await?;
        wait::eventually("the change", DEADLINE, async || {
            for file in ["settings/mode", "login/password"] {
                let found = std::fs::read_to_string(volumes.join(file))?;
                ensure!(found == value, "{file} is {found}");
            }
            Ok(())
        })
        .await?;
    }
    // An agent that polls would read twice for each change. A few reads may be new watches, or have other reasons.
    let reads = reads().await? - before;
    ensure!(reads < 10.0, "{reads} reads for {CHANGES} changes of two objects");
    Ok(())
}

#[tokio::test]
async fn running_guest_sees_a_changed_label() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("label").await?;
    let items = json!([{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]);
    let script =
        "until grep -q shade /private/tmp/info/labels; do sleep 0.05; done; cat /private/tmp/info/labels";
    let pod = scene.pod("label").strict_sh(script).mounted("info", json!({"downwardAPI": {"items": items}}));
    pod.create_until("Running").await?;
    scene.kubectl.run(["label", "pod", "label", "shade=dark"]).await?;
    let ended = scene.phase("label", "Succeeded").await?;
    assert_eq!(scene.log(&ended, "main", 0)?, ["shade=\"dark\""]);
    Ok(())
}

#[tokio::test]
async fn binary_data_arrives_unchanged() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("binary").await?;
    // The bytes 00 ff 0a 80.
    let data = json!({"blob": "AP8KgA=="});
    let map =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "bytes"}, "binaryData": data});
    scene.apply(&map).await?;
    let pod = scene.pod("binary").strict_sh("od -An -tx1 /private/tmp/bytes/blob | xargs");
    assert_eq!(pod.config_map("bytes").output().await?, ["00 ff 0a 80"]);
    Ok(())
}

#[tokio::test]
async fn running_guest_sees_optional_objects_come_and_go() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("optional").await?;
    let until =
        |condition: &str| format!("until [ {condition} ]; do sleep 0.05; done; ls settings login | xargs; ");
    let script = [
        "cd /private/tmp; ls settings login | xargs; ".to_owned(),
        until("-e settings/mode"),
        until("-e login/password"),
        until("! -e settings/mode"),
    ];
    let login = json!([{"secret": {"name": "login", "optional": true}}]);
    let pod = scene
        .pod("optional")
        .strict_sh(script.concat())
        .mounted("settings", json!({"configMap": {"name": "settings", "optional": true}}))
        .mounted("login", json!({"projected": {"sources": login}}))
        .create_until("Running")
        .await?;
    let lines = async |count: usize| {
        wait::eventually(&format!("{count} lines"), DEADLINE, async || {
            let log = scene.log(&pod, "main", 0)?;
            ensure!(log.len() >= count, "{log:?}");
            Ok(())
        })
        .await
    };
    lines(1).await?;
    scene.config_map("settings", "mode", "fast").await?;
    lines(2).await?;
    scene.secret("login", "password", SECRET).await?;
    lines(3).await?;
    scene.kubectl.run(["delete", "configmap", "settings"]).await?;
    scene.phase("optional", "Succeeded").await?;
    let expected = [
        "login: settings:",
        "login: settings: mode",
        "login: password settings: mode",
        "login: password settings:",
    ];
    assert_eq!(scene.log(&pod, "main", 0)?, expected);
    Ok(())
}

#[tokio::test]
async fn agent_restart_updates_volumes_changed_meanwhile() -> Result<()> {
    let (scene, agent) = Scene::with_agent("unseen").await?;
    scene.config_map("settings", "mode", "old").await?;
    let script = "cd /private/tmp/settings; until grep -q new mode; do sleep 0.05; done; cat mode";
    scene.pod("unseen").strict_sh(script).config_map("settings").create_until("Running").await?;
    agent.kill9()?;
    scene.config_map("settings", "mode", "new").await?;
    let _agent = scene.agent.start()?;
    let ended = scene.phase("unseen", "Succeeded").await?;
    assert_eq!(scene.log(&ended, "main", 0)?, ["new"]);
    Ok(())
}

#[tokio::test]
async fn pod_waits_for_the_missing_config_map_of_a_volume() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("missing").await?;
    let pod = scene.pod("missing").strict_sh("cat /private/tmp/settings/mode").config_map("settings");
    pod.create().await?;
    let words = "MountVolume.SetUp failed for volume \"settings\" : configmap \"settings\" not found";
    scene.described("missing", words).await?;
    assert!(scene.vms().await?.is_empty(), "the agent makes no VM before its volumes are there");
    scene.config_map("settings", "mode", "late").await?;
    let ended = scene.phase("missing", "Succeeded").await?;
    assert_eq!(scene.log(&ended, "main", 0)?, ["late"]);
    Ok(())
}

#[tokio::test]
async fn secret_volumes_of_ended_pods_are_deleted() -> Result<()> {
    let (scene, agent) = Scene::with_agent("traces").await?;
    scene.secret("login", "password", SECRET).await?;
    let script = "until [ -e /private/tmp/enough ]; do sleep 0.05; done";
    scene.pod("deleted").strict_sh(script).secret("login").create_until("Running").await?;
    let state = scene.agent.state_dir();
    ensure!(!files_with(&state, SECRET)?.is_empty(), "the search does not find what is there");
    scene.delete_all_of("deleted").await?;
    assert_eq!(files_with(&state, SECRET)?, [""; 0]);

    // A Pod that has ended, but is not deleted.
    scene.pod("over").strict_sh("true").secret("login").create_until("Succeeded").await?;
    scene.no_vms().await?;
    wait::eventually("deleted volumes", DEADLINE, async || {
        let left = files_with(&state, SECRET)?;
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    })
    .await?;
    ensure!(!agent.log()?.contains(SECRET), "the agent has logged a secret");
    Ok(())
}

#[tokio::test]
async fn read_only_mount_cannot_be_written() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("readonly").await?;
    scene.config_map("settings", "mode", "fast").await?;
    let script = "cd /private/tmp; echo one > cache/file; cat locked/file; \
                  echo two > locked/file || echo refused; echo three > settings/new || echo refused; cat cache/file";
    let output = scene
        .pod("readonly")
        .strict_sh(script)
        .empty_dir("cache", "/private/tmp/cache")
        .mount_with("cache", "/private/tmp/locked", json!({"readOnly": true}))
        .config_map("settings")
        .output()
        .await?;
    assert_eq!(without_errors(output), ["one", "refused", "refused", "one"]);
    Ok(())
}

#[tokio::test]
async fn guest_never_sees_a_mix_of_two_versions() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("mix").await?;
    let settings = |version: u32| {
        // Large enough for a write to take its time.
        let value = format!("{version} {}\n", "x".repeat(20_000));
        let data = json!({"a": value, "b": value, "c": value});
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": data})
    };
    scene.apply(&settings(0)).await?;
    // The directory may be deleted before the script reads it, but it holds one version.
    let script = "n=0; while [ \"$n\" != 20 ]; do \
                  cd -P /private/tmp/settings/..data && x=$(cksum <a) && y=$(cksum <b) && z=$(cksum <c) && read -r m _ <a || continue; \
                  [ \"$x$y\" = \"$y$z\" ] || echo mixed; n=$m; done 2>/dev/null; echo done";
    scene.pod("mix").strict_sh(script).config_map("settings").create_until("Running").await?;
    for version in 1..=20 {
        scene.apply(&settings(version)).await?;
    }
    let ended = scene.phase("mix", "Succeeded").await?;
    assert_eq!(scene.log(&ended, "main", 0)?, ["done"]);
    Ok(())
}

#[tokio::test]
async fn unsupported_volumes_are_refused() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("refused").await?;
    for (name, source, words) in [
        ("pages", json!({"emptyDir": {"medium": "HugePages"}}), "spec.volumes[0].emptyDir.medium: "),
        ("nfs", json!({"nfs": {"server": "nas", "path": "/"}}), "spec.volumes[0].nfs: "),
        ("socket", json!({"hostPath": {"path": "/x", "type": "Socket"}}), "spec.volumes[0].hostPath.type: "),
    ] {
        scene.pod(name).strict_sh("true").mounted("v", source).create_until("Failed").await?;
        scene.described(name, words).await?;
    }
    Ok(())
}
