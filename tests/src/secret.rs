//! Looks for secrets on a simulated Mac and in the cluster: in arguments, environments, files, logs, Events and statuses.

use std::collections::BTreeSet;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::Api;
use kube::api::ListParams;

use crate::control_plane::ControlPlane;
use crate::mac_host::MacHost;

/// No file with a secret is larger.
const LARGEST: u64 = 4 << 20;
/// Files of the Mac that may have secrets, if only their owner reads them.
const PRIVATE: [&str; 2] = ["private/etc/tart-kubelet/", "private/etc/kcpassword"];

/// Arguments and environments of all processes. A process may end while they are read.
const PROCESSES: &str =
    "sudo -n sh -c 'cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null; true' | tr '\\0' '\\n'";

/// Checks that none of these secrets is on the Mac or in the cluster, but where it belongs. Nor is the password of the Mac's user, nor the SSH key
/// that opens the Mac.
pub async fn are_nowhere(mac: &MacHost, control_plane: &ControlPlane, secrets: &[String]) -> Result<()> {
    let own = [mac.password().to_owned(), a_line_of(&std::fs::read_to_string(mac.private_key())?)?];
    let secrets: Vec<&String> = secrets.iter().chain(&own).collect();
    let places = places(mac, control_plane).await?;
    for secret in &secrets {
        for (place, text) in &places {
            let line = text.lines().find(|line| line.contains(*secret));
            ensure!(line.is_none(), "{place} has {secret}: {}", line.unwrap_or_default());
        }
    }
    ensure!(mac.path("/private/etc").is_dir(), "the Mac's files cannot be read");
    in_files(&mac.root(), &mac.root(), &secrets)
}

/// What is secret in a kubeconfig, in all the ways in which it may be written: its key or its token.
pub fn of_kubeconfig(kubeconfig: &Path) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(kubeconfig)?;
    let value = |key: &str| text.lines().find_map(|line| line.trim().strip_prefix(key)?.strip_prefix(": "));
    if let Some(token) = value("token") {
        return Ok(vec![token.trim_matches('"').to_owned()]);
    }
    let key = value("client-key-data").context("the kubeconfig has neither key nor token")?;
    let pem = String::from_utf8(STANDARD.decode(key)?)?;
    Ok(vec![key.to_owned(), a_line_of(&pem)?])
}

/// A line in the middle of a key: no other key has it.
fn a_line_of(key: &str) -> Result<String> {
    let lines: Vec<&str> = key.lines().filter(|line| !line.starts_with('-') && !line.is_empty()).collect();
    lines.get(lines.len() / 2).map(|line| (*line).to_owned()).context("the key has no lines")
}

/// Arguments of all calls and processes, logs of the Mac, and what the API server shows to others.
async fn places(mac: &MacHost, control_plane: &ControlPlane) -> Result<Vec<(&'static str, String)>> {
    let client = control_plane.client().await?;
    let list = ListParams::default();
    let nodes = Api::<Node>::all(client.clone()).list(&list).await?;
    let pods = Api::<Pod>::all(client.clone()).list(&list).await?;
    let requests = Api::<CertificateSigningRequest>::all(client.clone()).list(&list).await?;
    let events = Api::<Event>::all(client).list(&list).await?;
    Ok(vec![
        ("a call on the Mac", mac.calls()?.join("\n")),
        ("a process of the Mac", mac.ssh(PROCESSES).await?.ok()?),
        ("launchd's log", mac.log()?),
        ("a Node", serde_json::to_string(&nodes.items)?),
        ("a Pod", serde_json::to_string(&pods.items)?),
        ("a CertificateSigningRequest", serde_json::to_string(&requests.items)?),
        ("an Event", serde_json::to_string(&events.items)?),
    ])
}

/// All files of the Mac.
fn in_files(root: &Path, directory: &Path, secrets: &[&String]) -> Result<()> {
    // Files and directories come and go.
    let Ok(entries) = std::fs::read_dir(directory) else { return Ok(()) };
    for entry in entries {
        let Ok(path) = entry.map(|entry| entry.path()) else { continue };
        let Ok(metadata) = path.symlink_metadata() else { continue };
        if metadata.is_dir() {
            in_files(root, &path, secrets)?;
        } else if metadata.is_file() && metadata.len() <= LARGEST {
            let Ok(bytes) = std::fs::read(&path) else { continue };
            in_file(path.strip_prefix(root)?, &metadata, &bytes, secrets)?;
        }
    }
    Ok(())
}

fn in_file(name: &Path, metadata: &Metadata, bytes: &[u8], secrets: &[&String]) -> Result<()> {
    let has = |secret: &str| bytes.windows(secret.len()).any(|window| window == secret.as_bytes());
    let found: BTreeSet<&str> =
        secrets.iter().map(|secret| secret.as_str()).filter(|secret| has(secret)).collect();
    if found.is_empty() {
        return Ok(());
    }
    let name = name.display().to_string();
    ensure!(PRIVATE.iter().any(|private| name.starts_with(private)), "/{name} has {found:?}");
    let of_others = metadata.mode() & 0o077;
    ensure!(of_others == 0, "others than its owner read /{name}, which has secrets: {:o}", metadata.mode());
    Ok(())
}
