//! `emptyDir` volumes, on disk and in memory.

use anyhow::{Result, ensure};
use serde_json::json;

use crate::scene::{PodView as _, Scene};

#[tokio::test]
async fn empty_dir_outlives_its_container() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("kept").await?;
    let script = "cd /private/tmp/cache; if [ -e file ]; then cat file; else echo kept > file; exit 1; fi";
    for (name, source) in [("kept", json!({})), ("fast", json!({"medium": "Memory"}))] {
        let pod = scene.pod(name).strict_sh(script).mounted("cache", json!({"emptyDir": source}));
        let ended = pod.restart_policy("OnFailure").create_until("Succeeded").await?;
        assert_eq!(scene.log(&ended, "main", 1)?, ["kept"]);
    }
    Ok(())
}

#[tokio::test]
async fn empty_dir_in_memory_is_in_the_guest_only() -> Result<()> {
    const SECRET: &str = "hunter2-correct-horse-battery-staple";
    let (scene, _agent) = Scene::with_agent("memory").await?;
    let image = "registry.test/macos/admin:1";
    scene.mac.add_image(image, &json!({"uid": 501}))?;
    let script = "cd /private/tmp; cat fast/note part/inner; df -k fast/. | awk 'NR == 2 {print $1, $2}'; \
                  dd if=/dev/zero of=fast/file bs=1024 count=2048 2>/dev/null || echo full";
    let init = format!("echo {SECRET} >/private/tmp/fast/note; echo x >/private/tmp/part/inner");
    let mounts = json!([
        {"name": "fast", "mountPath": "/private/tmp/fast"},
        {"name": "fast", "mountPath": "/private/tmp/part", "subPath": "a/b"},
    ]);
    let ended = scene
        .pod("memory")
        .image(image)
        .strict_sh(script)
        .volume("fast", json!({"emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}))
        .container(json!({"volumeMounts": mounts}))
        .init_container("first", json!({"command": ["/bin/sh", "-c", init], "volumeMounts": mounts}))
        .create_until("Succeeded")
        .await?;
    assert_eq!(scene.log(&ended, "main", 0)?, [SECRET, "x", "tmpfs 1024", "full"]);
    ensure!(!scene.volumes_dir(ended.uid_of()?).join("fast").exists(), "it was on the host");
    Ok(())
}

#[tokio::test]
async fn empty_dir_in_memory_with_one_mount_is_a_file_system_of_its_own() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("memory-at").await?;
    let image = "registry.test/macos/admin:1";
    scene.mac.add_image(image, &json!({"uid": 501}))?;
    let script = "df -k /tmp/fast | awk 'NR == 2 {print $1, $2, $6}'; echo x >/tmp/fast/mine && cat /tmp/fast/mine; \
                  [ ! -e /private/var/tart-kubelet/fast ]";
    let memory = json!({"emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}});
    for (name, user) in [("own", json!({})), ("other", json!({"runAsUser": 12345}))] {
        let pod = scene.pod(name).image(image).strict_sh(script).volume("fast", memory.clone());
        let pod = pod.mount("fast", "/tmp/fast").security_context(user);
        let output = pod.output().await?;
        assert_eq!(output, ["tmpfs 1024 /private/tmp/fast", "x"], "{name}");
    }
    Ok(())
}

#[tokio::test]
async fn pod_above_its_empty_dir_size_limit_is_evicted() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("limit").await?;
    let script = "dd if=/dev/zero of=/private/tmp/cache/file bs=1024 count=4096; sleep 1000";
    let pod =
        scene.pod("limit").strict_sh(script).mounted("cache", json!({"emptyDir": {"sizeLimit": "1Mi"}}));
    let failed = pod.create_until("Failed").await?;
    assert_eq!(failed.reason(), Some("Evicted"));
    assert_eq!(failed.message(), Some("Usage of EmptyDir volume \"cache\" exceeds the limit \"1Mi\". "));
    scene.no_vms().await
}
