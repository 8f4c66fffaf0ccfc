//! The suite's container images, as images of VMs.
//!
//! A container's image has an entry point, to which `args` are arguments. A VM's image has none: the agent looks for a program by
//! the first of the `args`. So these images have each sub-command of the suite's own program as a program.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tart_kubelet_tests::mac::Mac;
use tart_kubelet_tests::{process, programs};

use crate::suite::Suite;

const DEADLINE: Duration = Duration::from_mins(1);

/// The user of an image, for the repositories that the specs of a kubelet use.
fn user(repository: &str) -> Option<Value> {
    match repository {
        "agnhost" | "nginx" | "pause" => Some(json!({})),
        "busybox" => Some(json!({"user": "root", "uid": 0})),
        "nonroot" => Some(json!({"user": "nonroot", "uid": 1234})),
        _ => None,
    }
}

/// Puts the suite's images into the registries that the Mac can reach.
pub(crate) async fn add_all(mac: &Mac, suite: &Suite) -> Result<()> {
    // A link to a link would be none to the program.
    let agnhost = fs::canonicalize(suite.program("agnhost")).context("agnhost is missing")?;
    let sub_commands = sub_commands(&agnhost).await?;
    for name in suite.images().await? {
        let path = name.rsplit_once(':').map_or(name.as_str(), |(path, _)| path);
        let repository = path.rsplit('/').next().unwrap_or(path);
        // Other registries are those that a Node must not reach.
        let Some(mut description) = user(repository).filter(|_| name.starts_with("registry.k8s.io/")) else {
            continue;
        };
        // The suite mounts volumes at directories in `/`, which macOS neither has nor lets a guest make.
        description["sealed"] = json!(false);
        // Some of its variables have names that other shells do not pass on. The shell of macOS does.
        description["shell"] = json!("/bin/bash");
        // Its limits are for containers: far below what macOS needs, and a VM is never larger than its Pod's limit.
        description["cpuMin"] = json!(1);
        description["memoryMinMiB"] = json!(1);
        let root = mac.add_image(&name, &description)?.join("rootfs");
        write_files(&root, &agnhost, &sub_commands)
            .with_context(|| format!("cannot make the files of {name}"))?;
    }
    Ok(())
}

/// Asks the suite's program for its sub-commands.
async fn sub_commands(agnhost: &Path) -> Result<Vec<String>> {
    let mut help = Command::new(agnhost);
    help.arg("--help");
    let text = process::run(help, "", DEADLINE).await?;
    let listed = text.lines().skip_while(|line| *line != "Available Commands:").skip(1);
    let listed = listed.take_while(|line| !line.is_empty());
    let names: Vec<_> = listed.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect();
    ensure!(!names.is_empty(), "agnhost lists no sub-commands");
    Ok(names)
}

fn write_files(root: &Path, agnhost: &Path, sub_commands: &[String]) -> Result<()> {
    let directory = root.join("usr/local/bin");
    fs::create_dir_all(&directory)?;
    for name in ["agnhost", "agnhost-2"] {
        // The same file for all images, where the disk allows it: it is large.
        if fs::hard_link(agnhost, root.join(name)).is_err() {
            fs::copy(agnhost, root.join(name))?;
        }
    }
    for name in sub_commands {
        let script = format!("#!/bin/sh\nexec /agnhost {name} \"$@\"\n");
        programs::write(&directory.join(name), &script)?;
    }
    let busybox = directory.join("busybox");
    fs::copy(programs::debian("busybox-static", "bin/busybox")?, &busybox)?;
    fs::set_permissions(&busybox, fs::Permissions::from_mode(0o755))?;
    let applets = Command::new(&busybox).arg("--list").output().context("cannot start busybox")?;
    for applet in String::from_utf8_lossy(&applets.stdout).lines() {
        let link = directory.join(applet);
        if !link.exists() {
            symlink("busybox", link)?;
        }
    }
    Ok(())
}
