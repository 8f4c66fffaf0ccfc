//! Volumes: what the Pod brings in files, as its command in the guest sees it.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tart_kubelet_tests::wait;

use crate::scene::{DEADLINE, Scene};

/// A value that is nowhere else, so that it can be looked for.
const SECRET: &str = "hunter2-correct-horse-battery-staple";

/// A Pod whose shell script has `volumes`, each mounted at `/private/tmp/<name>` with what `mount` adds.
pub(crate) fn pod(scene: &Scene, name: &str, script: &str, volumes: &[(Value, Value)]) -> Value {
    let mounts: Vec<Value> = volumes
        .iter()
        .map(|(volume, mount)| {
            let name = volume["name"].as_str().unwrap_or_default();
            let mut full = json!({"name": name, "mountPath": format!("/private/tmp/{name}")});
            if let (Some(full), Some(mount)) = (full.as_object_mut(), mount.as_object()) {
                full.extend(mount.clone());
            }
            full
        })
        .collect();
    let container = json!({"command": ["/bin/sh", "-ec", script], "volumeMounts": mounts});
    let mut sources: Vec<&Value> = volumes.iter().map(|(volume, _)| volume).collect();
    sources.dedup();
    scene.pod(name, &container, &json!({"volumes": sources}))
}

fn config_map(name: &str, key: &str, value: &str) -> String {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {key: value}})
        .to_string()
}

fn secret(name: &str) -> String {
    let data = json!({"password": SECRET});
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data}).to_string()
}

/// Runs a script in a Pod to its good end, and returns what it wrote.
pub(crate) async fn run(
    scene: &Scene,
    name: &str,
    script: &str,
    volumes: &[(Value, Value)],
) -> Result<Vec<String>> {
    scene.create(&pod(scene, name, script, volumes)).await?;
    let ended = scene.phase(name, "Succeeded").await?;
    scene.log(&ended, "main", 0)
}

/// The files below a directory that have `words` in them.
fn files_with(dir: &Path, words: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        // What goes away meanwhile has nothing in it.
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
async fn files_of_all_sources_are_where_the_pod_wants_them() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("files").await?;
    scene.kubectl.apply(&config_map("settings", "mode", "fast")).await?;
    scene.kubectl.apply(&secret("login")).await?;
    let items = json!([{"path": "where", "fieldRef": {"fieldPath": "metadata.name"}}]);
    let amount = |resource: &str, divisor: &str| json!({"containerName": "main", "resource": resource, "divisor": divisor});
    let amounts = json!([
        {"path": "memory", "resourceFieldRef": amount("requests.memory", "1Mi"), "mode": 288},
        {"path": "disk", "resourceFieldRef": amount("limits.ephemeral-storage", "1Ki")},
    ]);
    let some = json!([{"key": "mode", "path": "here"}, {"key": "none", "path": "not"}]);
    let volumes = [
        (json!({"name": "settings", "configMap": {"name": "settings"}}), json!({})),
        (json!({"name": "amounts", "downwardAPI": {"items": amounts}}), json!({})),
        (
            json!({"name": "some", "configMap": {"name": "settings", "items": some, "optional": true}}),
            json!({}),
        ),
        (
            json!({"name": "login", "secret": {"secretName": "login", "defaultMode": 256,
                "items": [{"key": "password", "path": "deep/er/word"}]}}),
            json!({}),
        ),
        (json!({"name": "info", "downwardAPI": {"items": items}}), json!({})),
        (
            json!({"name": "all", "projected": {"sources": [
                {"configMap": {"name": "settings"}},
                {"secret": {"name": "login"}},
                {"downwardAPI": {"items": items}},
                {"configMap": {"name": "none", "optional": true}},
            ]}}),
            json!({}),
        ),
    ];
    let script = "cd /private/tmp; cat settings/mode; echo; cat login/deep/er/word; echo; cat info/where; echo; \
                  ls all some; ls -lL login/deep/er/word amounts/memory amounts/disk | cut -c1-10; \
                  echo $(cat amounts/memory) $(cat amounts/disk)";
    let mut pod = pod(&scene, "files", script, &volumes);
    pod["spec"]["containers"][0]["resources"] = json!({
        "requests": {"memory": "64Mi", "ephemeral-storage": "1Mi"}, "limits": {"ephemeral-storage": "2Mi"},
    });
    scene.create(&pod).await?;
    let ended = scene.phase("files", "Succeeded").await?;
    let written = scene.log(&ended, "main", 0)?;
    let files = ["fast", SECRET, "files", "all:", "mode", "password", "where", "", "some:", "here"];
    assert_eq!(written[..files.len()], files);
    // They are listed by name.
    assert_eq!(written[files.len()..], ["-rw-r--r--", "-r--r-----", "-r--------", "64 2048"]);
    Ok(())
}

#[tokio::test]
async fn what_changes_is_seen_by_a_running_guest() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("live").await?;
    scene.kubectl.apply(&config_map("settings", "mode", "old")).await?;
    scene.kubectl.apply(&secret("login")).await?;
    let volumes = [
        (json!({"name": "settings", "configMap": {"name": "settings"}}), json!({})),
        (json!({"name": "login", "secret": {"secretName": "login"}}), json!({})),
    ];
    let script = "cd /private/tmp; cat settings/mode; echo; until grep -q new settings/mode; do sleep 0.05; done; \
                  cat settings/mode; echo; until grep -q changed login/password; do sleep 0.05; done; cat login/password";
    scene.create(&pod(&scene, "live", script, &volumes)).await?;
    let running = scene.phase("live", "Running").await?;
    wait::eventually("the old one to be read", DEADLINE, async || {
        ensure!(!scene.log(&running, "main", 0)?.is_empty(), "nothing yet");
        Ok(())
    })
    .await?;
    scene.kubectl.apply(&config_map("settings", "mode", "new")).await?;
    let changed = json!({"stringData": {"password": "changed"}}).to_string();
    scene.kubectl.run(["patch", "secret", "login", "--patch", &changed]).await?;
    let ended = scene.phase("live", "Succeeded").await?;
    assert_eq!(scene.log(&ended, "main", 0)?, ["old", "new", "changed"]);
    Ok(())
}

#[tokio::test]
async fn what_changes_is_heard_of_and_not_asked_for() -> Result<()> {
    const CHANGES: usize = 30;
    let (scene, agent) = Scene::with_agent("heard").await?;
    scene.kubectl.apply(&config_map("settings", "mode", "0")).await?;
    scene.kubectl.apply(&secret("login")).await?;
    let volumes = [
        (json!({"name": "settings", "configMap": {"name": "settings"}}), json!({})),
        (json!({"name": "login", "secret": {"secretName": "login"}}), json!({})),
    ];
    scene.create(&pod(&scene, "heard", "sleep 1000", &volumes)).await?;
    let uid = scene.phase("heard", "Running").await?.metadata.uid.context("no UID")?;
    let volumes = scene.agent.state_dir().join("volumes").join(uid);
    let reads = async || agent.metric("rest_client_requests_total{code=\"200\",method=\"GET\"}").await;
    let before = reads().await?;
    for change in 1..=CHANGES {
        let value = change.to_string();
        scene.kubectl.apply(&config_map("settings", "mode", &value)).await?;
        let patch = json!({"stringData": {"password": value}}).to_string();
        scene.kubectl.run(["patch", "secret", "login", "--patch", &patch]).await?;
        wait::eventually("the change", DEADLINE, async || {
            for file in ["settings/mode", "login/password"] {
                let found = std::fs::read_to_string(volumes.join(file))?;
                ensure!(found == value, "{file} is {found}");
            }
            Ok(())
        })
        .await?;
    }
    // Two for each change would be one who asks; a few may be watches that begin anew, or have nothing to do with it.
    let reads = reads().await? - before;
    ensure!(reads < 10.0, "{reads} reads for {CHANGES} changes of two objects");
    Ok(())
}

#[tokio::test]
async fn a_changed_label_is_seen_by_a_running_guest() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("label").await?;
    let items = json!([{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]);
    let volume = json!({"name": "info", "downwardAPI": {"items": items}});
    let script =
        "until grep -q shade /private/tmp/info/labels; do sleep 0.05; done; cat /private/tmp/info/labels";
    scene.create(&pod(&scene, "label", script, &[(volume, json!({}))])).await?;
    scene.phase("label", "Running").await?;
    scene.kubectl.run(["label", "pod", "label", "shade=dark"]).await?;
    let ended = scene.phase("label", "Succeeded").await?;
    assert_eq!(scene.log(&ended, "main", 0)?, ["shade=\"dark\""]);
    Ok(())
}

#[tokio::test]
async fn bytes_that_are_no_text_arrive_as_they_are() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("binary").await?;
    // The bytes 00 ff 0a 80.
    let data = json!({"blob": "AP8KgA=="});
    let map =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "bytes"}, "binaryData": data});
    scene.kubectl.apply(&map.to_string()).await?;
    let volume = json!({"name": "bytes", "configMap": {"name": "bytes"}});
    let script = "od -An -tx1 /private/tmp/bytes/blob | xargs";
    assert_eq!(run(&scene, "binary", script, &[(volume, json!({}))]).await?, ["00 ff 0a 80"]);
    Ok(())
}

#[tokio::test]
async fn what_is_optional_comes_and_goes_in_a_running_guest() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("optional").await?;
    let volumes = [
        (json!({"name": "settings", "configMap": {"name": "settings", "optional": true}}), json!({})),
        (
            json!({"name": "login", "projected": {"sources": [{"secret": {"name": "login", "optional": true}}]}}),
            json!({}),
        ),
    ];
    let until =
        |condition: &str| format!("until [ {condition} ]; do sleep 0.05; done; ls settings login | xargs; ");
    let script = [
        "cd /private/tmp; ls settings login | xargs; ".to_owned(),
        until("-e settings/mode"),
        until("-e login/password"),
        until("! -e settings/mode"),
    ];
    scene.create(&pod(&scene, "optional", &script.concat(), &volumes)).await?;
    let pod = scene.phase("optional", "Running").await?;
    let lines = async |count: usize| {
        wait::eventually(&format!("{count} lines"), DEADLINE, async || {
            let log = scene.log(&pod, "main", 0)?;
            ensure!(log.len() >= count, "{log:?}");
            Ok(())
        })
        .await
    };
    lines(1).await?;
    scene.kubectl.apply(&config_map("settings", "mode", "fast")).await?;
    lines(2).await?;
    scene.kubectl.apply(&secret("login")).await?;
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
async fn a_change_while_there_is_no_agent_is_not_lost() -> Result<()> {
    let (scene, agent) = Scene::with_agent("unseen").await?;
    scene.kubectl.apply(&config_map("settings", "mode", "old")).await?;
    let volume = json!({"name": "settings", "configMap": {"name": "settings"}});
    let script = "cd /private/tmp/settings; until grep -q new mode; do sleep 0.05; done; cat mode";
    scene.create(&pod(&scene, "unseen", script, &[(volume, json!({}))])).await?;
    scene.phase("unseen", "Running").await?;
    agent.kill9()?;
    scene.kubectl.apply(&config_map("settings", "mode", "new")).await?;
    let _agent = scene.agent.start()?;
    let ended = scene.phase("unseen", "Succeeded").await?;
    assert_eq!(scene.log(&ended, "main", 0)?, ["new"]);
    Ok(())
}

#[tokio::test]
async fn a_missing_config_map_is_told_and_waited_for() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("missing").await?;
    let volume = json!({"name": "settings", "configMap": {"name": "settings"}});
    scene.create(&pod(&scene, "missing", "cat /private/tmp/settings/mode", &[(volume, json!({}))])).await?;
    let words = "MountVolume.SetUp failed for volume \"settings\" : configmap \"settings\" not found";
    scene.told("pod", "missing", words).await?;
    assert!(scene.vms().await?.is_empty(), "no VM is made before its volumes are there");
    scene.kubectl.apply(&config_map("settings", "mode", "late")).await?;
    let ended = scene.phase("missing", "Succeeded").await?;
    assert_eq!(scene.log(&ended, "main", 0)?, ["late"]);
    Ok(())
}

#[tokio::test]
async fn nothing_secret_remains_of_a_pod_that_is_over() -> Result<()> {
    let (scene, agent) = Scene::with_agent("traces").await?;
    scene.kubectl.apply(&secret("login")).await?;
    let volume = json!({"name": "login", "secret": {"secretName": "login"}});
    let script = "until [ -e /private/tmp/enough ]; do sleep 0.05; done";
    let login = [(volume.clone(), json!({}))];
    scene.create(&pod(&scene, "deleted", script, &login)).await?;
    scene.phase("deleted", "Running").await?;
    let state = scene.agent.state_dir();
    ensure!(!files_with(&state, SECRET)?.is_empty(), "the search does not find what is there");
    scene.kubectl.run(["delete", "pod", "deleted", "--wait=false"]).await?;
    wait::until_gone(&scene.pods, "deleted", DEADLINE).await?;
    scene.nothing_left().await?;
    assert_eq!(files_with(&state, SECRET)?, [""; 0]);

    // One that is over, but not deleted.
    run(&scene, "over", "true", &login).await?;
    scene.no_vms().await?;
    wait::eventually("volumes that are gone", DEADLINE, async || {
        let left = files_with(&state, SECRET)?;
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    })
    .await?;
    ensure!(!agent.log()?.contains(SECRET), "the agent has logged a secret");
    Ok(())
}

#[tokio::test]
async fn an_empty_dir_outlives_its_container() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("kept").await?;
    let script = "cd /private/tmp/cache; if [ -e file ]; then cat file; else echo kept > file; exit 1; fi";
    // A medium goes with its VM, so that it is not what counts here.
    for (name, source) in [("kept", json!({})), ("fast", json!({"medium": "Memory"}))] {
        let volume = json!({"name": "cache", "emptyDir": source});
        let mut pod = pod(&scene, name, script, &[(volume, json!({}))]);
        pod["spec"]["restartPolicy"] = json!("OnFailure");
        scene.create(&pod).await?;
        let ended = scene.phase(name, "Succeeded").await?;
        assert_eq!(scene.log(&ended, "main", 1)?, ["kept"]);
    }
    Ok(())
}

#[tokio::test]
async fn an_empty_dir_in_memory_is_the_guests_own() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("memory").await?;
    let image = "registry.test/macos/admin:1";
    scene.mac.add_image(image, &json!({"uid": 501}))?;
    let volume = json!({"name": "fast", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}});
    let script = "cd /private/tmp; cat fast/note part/inner; df -k fast/. | awk 'NR == 2 {print $1, $2}'; \
                  dd if=/dev/zero of=fast/file bs=1024 count=2048 2>/dev/null || echo full";
    let mounts =
        [(volume.clone(), json!({})), (volume, json!({"mountPath": "/private/tmp/part", "subPath": "a/b"}))];
    let mut pod = pod(&scene, "memory", script, &mounts);
    pod["spec"]["containers"][0]["image"] = json!(image);
    let mut init = pod["spec"]["containers"][0].clone();
    init["name"] = json!("first");
    let script = format!("echo {SECRET} >/private/tmp/fast/note; echo x >/private/tmp/part/inner");
    init["command"] = json!(["/bin/sh", "-c", script]);
    pod["spec"]["initContainers"] = json!([init]);
    scene.create(&pod).await?;
    let ended = scene.phase("memory", "Succeeded").await?;
    assert_eq!(scene.log(&ended, "main", 0)?, [SECRET, "x", "tmpfs 1024", "full"]);
    let uid = ended.metadata.uid.context("no UID")?;
    ensure!(!scene.agent.state_dir().join("volumes").join(uid).join("fast").exists(), "it was on the host");
    Ok(())
}

#[tokio::test]
async fn who_fills_an_empty_dir_beyond_its_limit_is_evicted() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("limit").await?;
    let volume = json!({"name": "cache", "emptyDir": {"sizeLimit": "1Mi"}});
    let script = "dd if=/dev/zero of=/private/tmp/cache/file bs=1024 count=4096; sleep 1000";
    scene.create(&pod(&scene, "limit", script, &[(volume, json!({}))])).await?;
    let failed = scene.phase("limit", "Failed").await?;
    let status = failed.status.context("no status")?;
    assert_eq!(status.reason.as_deref(), Some("Evicted"));
    assert_eq!(
        status.message.as_deref(),
        Some("Usage of EmptyDir volume \"cache\" exceeds the limit \"1Mi\". ")
    );
    scene.no_vms().await
}

#[tokio::test]
async fn parts_of_a_volume_are_mounted_and_made() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("parts").await?;
    scene.kubectl.apply(&config_map("settings", "mode", "fast")).await?;
    let settings = json!({"name": "settings", "configMap": {"name": "settings"}});
    let cache = json!({"name": "cache", "emptyDir": {}});
    let volumes = [
        (settings, json!({"mountPath": "/private/tmp/mode", "subPath": "mode"})),
        (cache.clone(), json!({"subPathExpr": "logs/$(JOB)"})),
        (cache, json!({"mountPath": "/private/tmp/whole"})),
    ];
    let script = "cd /private/tmp; cat mode; echo; echo made > cache/file; cat whole/logs/seven/file";
    let mut pod = pod(&scene, "parts", script, &volumes);
    pod["spec"]["containers"][0]["env"] = json!([{"name": "JOB", "value": "seven"}]);
    scene.create(&pod).await?;
    let ended = scene.phase("parts", "Succeeded").await?;
    assert_eq!(scene.log(&ended, "main", 0)?, ["fast", "made"]);
    Ok(())
}

#[tokio::test]
async fn a_part_that_an_annotation_names_is_had_once_that_is_there() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("named-part").await?;
    let cache = json!({"name": "cache", "emptyDir": {}});
    let volumes = [
        (cache.clone(), json!({"subPathExpr": "$(PART)"})),
        (cache, json!({"mountPath": "/private/tmp/whole"})),
    ];
    let mut pod = pod(&scene, "named", "ls /private/tmp/whole; echo $PART", &volumes);
    let part = json!({"fieldRef": {"fieldPath": "metadata.annotations['part']"}});
    pod["spec"]["containers"][0]["env"] = json!([{"name": "PART", "valueFrom": part}]);
    scene.create(&pod).await?;
    scene.told_as("named", "Failed", "Error: missing value for PART").await?;
    scene.kubectl.run(["annotate", "pod", "named", "part=seven"]).await?;
    let ended = scene.phase("named", "Succeeded").await?;
    assert_eq!(scene.log(&ended, "main", 0)?, ["seven", "seven"]);
    Ok(())
}

#[tokio::test]
async fn a_part_that_has_a_secret_name_is_told_to_nobody() -> Result<()> {
    let (scene, agent) = Scene::with_agent("secret-part").await?;
    scene.kubectl.apply(&secret("keys")).await?;
    let cache = json!({"name": "cache", "emptyDir": {}});
    let from = json!({"secretKeyRef": {"name": "keys", "key": "password"}});
    let with = |name: &str, part: &str, script: &str| {
        let mut pod = pod(&scene, name, script, &[(cache.clone(), json!({"subPathExpr": part}))]);
        pod["spec"]["containers"][0]["env"] =
            json!([{"name": "WORD", "valueFrom": from.clone()}, {"name": "ROOT", "value": "/$(WORD)"}]);
        pod
    };
    scene.create(&with("fine", "$(WORD)", "echo made > /private/tmp/cache/file")).await?;
    scene.phase("fine", "Succeeded").await?;
    scene.create(&with("absolute", "$(ROOT)", "true")).await?;
    scene.told_as("absolute", "Failed", "Error: error SubPath `$(ROOT)` must not be").await?;
    scene.create(&with("inner", "$(WORD)/in", "true")).await?;
    scene.phase("inner", "Succeeded").await?;
    scene.nowhere_on_disk(SECRET).await?;
    let told = scene.kubectl.run(["get", "pods,events", "--output", "yaml"]).await?;
    ensure!(!told.contains(SECRET), "it is in the API");
    for log in [agent.log()?, scene.shim_log("fine").await?, scene.shim_log("inner").await?] {
        ensure!(!log.contains(SECRET), "{log}");
    }
    Ok(())
}

#[tokio::test]
async fn a_read_only_mount_cannot_be_written_to() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("readonly").await?;
    scene.kubectl.apply(&config_map("settings", "mode", "fast")).await?;
    let cache = json!({"name": "cache", "emptyDir": {}});
    let volumes = [
        (cache.clone(), json!({})),
        (cache, json!({"mountPath": "/private/tmp/locked", "readOnly": true})),
        (json!({"name": "settings", "configMap": {"name": "settings"}}), json!({})),
    ];
    let script = "cd /private/tmp; echo one > cache/file; cat locked/file; \
                  echo two > locked/file || echo refused; echo three > settings/new || echo refused; cat cache/file";
    let mut written = run(&scene, "readonly", script, &volumes).await?;
    written.retain(|line| !line.contains("file system") && !line.contains("ermission"));
    assert_eq!(written, ["one", "refused", "refused", "one"]);
    Ok(())
}

#[tokio::test]
async fn only_allowed_directories_of_the_host_are_shared() -> Result<()> {
    let mut scene = Scene::new("host").await?;
    let host = scene.mac.sandbox().directory("host")?;
    for dir in ["open", "read"] {
        std::fs::create_dir(host.join(dir))?;
        std::fs::write(host.join(dir).join("file"), dir)?;
    }
    let at = |inside: &str| host.join(inside).display().to_string();
    let tart_home = scene.mac.tart_home().display().to_string();
    scene.agent = scene
        .agent
        .flag("--allowed-host-path", &tart_home)
        .flag("--allowed-host-path", &at("open"))
        .flag("--allowed-host-path", &format!("{}:ro", at("read")));
    let agent = scene.agent.start()?;
    scene.node_ready(&agent).await?;
    let volume = |name: &str, path: &str, kind: &str| {
        (json!({"name": name, "hostPath": {"path": at(path), "type": kind}}), json!({}))
    };
    let script = "cd /private/tmp; cat open/file; echo; cat read/file; echo; echo guest > open/new; \
                  echo guest > made/new; echo guest > read/new || echo refused";
    let volumes = [
        volume("open", "open", "Directory"),
        volume("made", "open/made", "DirectoryOrCreate"),
        volume("read", "read", ""),
    ];
    let mut written = run(&scene, "host", script, &volumes).await?;
    written.retain(|line| !line.contains("file system") && !line.contains("ermission"));
    assert_eq!(written, ["open", "read", "refused"]);
    assert_eq!(std::fs::read_to_string(host.join("open/new"))?, "guest\n");
    assert_eq!(std::fs::read_to_string(host.join("open/made/new"))?, "guest\n");

    std::os::unix::fs::symlink(&host, host.join("open/out"))?;
    for (name, path, words) in [
        ("outside", "", "is not allowed on this Node"),
        ("around", "open/out", "is not allowed on this Node"),
        ("absent", "open/none", "hostPath type check failed"),
    ] {
        scene.create(&pod(&scene, name, "true", &[volume("host", path, "Directory")])).await?;
        scene.told("pod", name, words).await?;
        scene.kubectl.run(["delete", "pod", name, "--wait=false"]).await?;
        wait::until_gone(&scene.pods, name, DEADLINE).await?;
    }
    // Whatever the flags say, no Pod has the disks of the others.
    let vms = (json!({"name": "vms", "hostPath": {"path": tart_home}}), json!({}));
    scene.create(&pod(&scene, "vms", "true", &[vms])).await?;
    scene.told("pod", "vms", "would give the Pod the VMs and images of this Node").await
}

#[tokio::test]
async fn a_reader_never_sees_a_mix() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("mix").await?;
    let settings = |version: u32| {
        // Large enough for a write to take its time.
        let value = format!("{version} {}\n", "x".repeat(20_000));
        let data = json!({"a": value, "b": value, "c": value});
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": data})
            .to_string()
    };
    scene.kubectl.apply(&settings(0)).await?;
    let volume = json!({"name": "settings", "configMap": {"name": "settings"}});
    // What has been entered may be gone before it is read, but it is one version or another.
    let script = "n=0; while [ \"$n\" != 20 ]; do \
                  cd -P /private/tmp/settings/..data && x=$(cksum <a) && y=$(cksum <b) && z=$(cksum <c) && read -r m _ <a || continue; \
                  [ \"$x$y\" = \"$y$z\" ] || echo mixed; n=$m; done 2>/dev/null; echo done";
    scene.create(&pod(&scene, "mix", script, &[(volume, json!({}))])).await?;
    scene.phase("mix", "Running").await?;
    for version in 1..=20 {
        scene.kubectl.apply(&settings(version)).await?;
    }
    let ended = scene.phase("mix", "Succeeded").await?;
    assert_eq!(scene.log(&ended, "main", 0)?, ["done"]);
    Ok(())
}

#[tokio::test]
async fn what_a_vm_cannot_have_is_refused_in_words() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("refused").await?;
    for (name, source, words) in [
        ("pages", json!({"emptyDir": {"medium": "HugePages"}}), "spec.volumes[0].emptyDir.medium: "),
        ("nfs", json!({"nfs": {"server": "nas", "path": "/"}}), "spec.volumes[0].nfs: "),
        ("socket", json!({"hostPath": {"path": "/x", "type": "Socket"}}), "spec.volumes[0].hostPath.type: "),
    ] {
        let mut volume = source;
        volume["name"] = json!("v");
        scene.create(&pod(&scene, name, "true", &[(volume, json!({}))])).await?;
        scene.phase(name, "Failed").await?;
        scene.told("pod", name, words).await?;
    }
    Ok(())
}
