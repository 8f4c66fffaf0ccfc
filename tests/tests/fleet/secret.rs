//! Looks for secrets on both machines and in the cluster: in arguments, environments, files, logs, Events and statuses.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Event, Node};
use kube::Api;
use kube::api::ListParams;

use super::scene::Scene;

/// No file with a secret is larger.
const LARGEST: u64 = 4 << 20;
/// Files of the Mac that may have secrets, if only their owner reads them.
const PRIVATE: [&str; 2] = ["private/etc/tart-kubelet/", "private/etc/kcpassword"];

/// Arguments and environments of all processes. A process may end while they are read.
const PROCESSES: &str =
    "sudo -n sh -c 'cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null; true' | tr '\\0' '\\n'";

/// Checks that a secret is nowhere, and those that every Mac has: the password, and the key of the agent's kubeconfig.
pub(crate) async fn is_nowhere(scene: &Scene, secret: &str) -> Result<()> {
    let key = scene.kubeconfig_key()?;
    for secret in [secret, scene.mac.password(), &key] {
        in_words(scene, secret).await.with_context(|| format!("looking for {secret}"))?;
        in_files(scene, &scene.mac.root(), secret).with_context(|| format!("looking for {secret}"))?;
    }
    Ok(())
}

/// Arguments of all calls and processes, logs of the Mac, and what the API server shows.
async fn in_words(scene: &Scene, secret: &str) -> Result<()> {
    let client = scene.control_plane().client().await?;
    let list = ListParams::default();
    let nodes = Api::<Node>::all(client.clone()).list(&list).await?;
    let events = Api::<Event>::all(client).list(&list).await?;
    let places = [
        ("a call on the Mac", scene.mac.calls()?.join("\n")),
        ("a process of the Mac", scene.mac.ssh(PROCESSES).await?.ok()?),
        ("launchd's log", scene.mac.log()?),
        ("a Node", serde_json::to_string(&nodes.items)?),
        ("an Event", serde_json::to_string(&events.items)?),
    ];
    for (place, text) in places {
        let line = text.lines().find(|line| line.contains(secret));
        ensure!(line.is_none(), "{place} has it: {}", line.unwrap_or_default());
    }
    Ok(())
}

/// All files of the Mac.
fn in_files(scene: &Scene, directory: &Path, secret: &str) -> Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        // Files come and go.
        let Ok(metadata) = path.symlink_metadata() else { continue };
        if metadata.is_dir() {
            in_files(scene, &path, secret)?;
        }
        if !metadata.is_file() || metadata.len() > LARGEST {
            continue;
        }
        let Ok(bytes) = std::fs::read(&path) else { continue };
        if !bytes.windows(secret.len()).any(|window| window == secret.as_bytes()) {
            continue;
        }
        let name = path.strip_prefix(scene.mac.root())?.display().to_string();
        ensure!(PRIVATE.iter().any(|private| name.starts_with(private)), "/{name} has it");
        let of_others = metadata.mode() & 0o077;
        ensure!(of_others == 0, "others than its owner read /{name}: {:o}", metadata.mode());
    }
    Ok(())
}
