//! `hostPath` volumes: directories of the host that the agent's flags allow.

use anyhow::Result;
use serde_json::json;

use super::without_errors;
use crate::scene::Scene;

#[tokio::test]
async fn only_allowed_host_paths_are_shared() -> Result<()> {
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
    let _agent = scene.start(&scene.agent).await?;
    let dir = |path: &str, kind: &str| json!({"hostPath": {"path": at(path), "type": kind}});
    let script = "cd /private/tmp; cat open/file; echo; cat read/file; echo; echo guest > open/new; \
                  echo guest > made/new; echo guest > read/new || echo refused";
    let output = scene
        .pod("host")
        .strict_sh(script)
        // The number of the host's user whose directories these are.
        .security_context(json!({"runAsUser": 0}))
        .mounted("open", dir("open", "Directory"))
        .mounted("made", dir("open/made", "DirectoryOrCreate"))
        .mounted("read", dir("read", ""))
        .output()
        .await?;
    assert_eq!(without_errors(output), ["open", "read", "refused"]);
    assert_eq!(std::fs::read_to_string(host.join("open/new"))?, "guest\n");
    assert_eq!(std::fs::read_to_string(host.join("open/made/new"))?, "guest\n");

    std::os::unix::fs::symlink(&host, host.join("open/out"))?;
    for (name, path, words) in [
        ("outside", "", "is not allowed on this Node"),
        ("around", "open/out", "is not allowed on this Node"),
        ("absent", "open/none", "hostPath type check failed"),
    ] {
        scene.pod(name).strict_sh("true").mounted("host", dir(path, "Directory")).create().await?;
        scene.described(name, words).await?;
        scene.begin_delete(name).await?;
        scene.until_gone(name).await?;
    }
    // Whatever the flags say, no Pod gets the disks of other Pods.
    let vms = json!({"hostPath": {"path": tart_home}});
    scene.pod("vms").strict_sh("true").mounted("vms", vms).create().await?;
    scene.described("vms", "would give the Pod the VMs and images of this Node").await
}
