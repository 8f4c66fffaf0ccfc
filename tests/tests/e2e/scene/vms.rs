//! The VMs on the scene's Mac, and what runs in them.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Result, bail, ensure};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tart_kubelet_tests::wait;

use super::{DEADLINE, PodView as _, Scene, UP};

/// How the names of base VMs begin.
const BASE: &str = "tk-base-";

/// The base VM of an image by digest: `host/repository@sha256:…`.
pub(crate) fn base_of(image: &str) -> String {
    let hash = Sha256::digest(image);
    hash.iter().take(16).fold(BASE.to_owned(), |name, byte| format!("{name}{byte:02x}"))
}

impl Scene {
    async fn list(&self) -> Result<Vec<Value>> {
        let list = self.mac.tart(["list", "--source", "local", "--format", "json"]).await?;
        Ok(serde_json::from_str(&list)?)
    }

    /// The names of the Mac's VMs without base VMs.
    pub(crate) async fn vms(&self) -> Result<Vec<String>> {
        Ok(names(&self.list().await?).into_iter().filter(|name| !name.starts_with(BASE)).collect())
    }

    /// The names of the base VMs, from which the VMs of Pods are cloned.
    pub(crate) async fn bases(&self) -> Result<Vec<String>> {
        Ok(names(&self.list().await?).into_iter().filter(|name| name.starts_with(BASE)).collect())
    }

    /// The only base VM.
    pub(crate) async fn only_base(&self) -> Result<String> {
        match self.bases().await?.as_slice() {
            [base] => Ok(base.clone()),
            other => bail!("not one base: {other:?}"),
        }
    }

    /// The names of the VMs that run.
    pub(crate) async fn running_vms(&self) -> Result<Vec<String>> {
        let mut list = self.list().await?;
        list.retain(|vm| vm["State"] == "running");
        Ok(names(&list))
    }

    /// Waits until so many VMs run.
    pub(crate) async fn run_vms(&self, count: usize) -> Result<()> {
        wait::eventually(&format!("{count} running VMs"), DEADLINE, async || {
            let running = self.running_vms().await?;
            ensure!(running.len() == count, "{running:?} run");
            Ok(())
        })
        .await
    }

    /// Waits until the Mac has no VM.
    pub(crate) async fn no_vms(&self) -> Result<()> {
        wait::eventually("a Mac without VMs", DEADLINE, async || {
            let vms = self.vms().await?;
            ensure!(vms.is_empty(), "it has {vms:?}");
            Ok(())
        })
        .await
    }

    /// Waits until the Mac has this VM and no other.
    pub(crate) async fn only_vm(&self, vm: &str) -> Result<()> {
        wait::eventually("a Mac with one VM", DEADLINE, async || {
            let vms = self.vms().await?;
            ensure!(vms == [vm], "it has {vms:?}, not only {vm}");
            Ok(())
        })
        .await
    }

    /// The directory of a VM in tart's home.
    pub(crate) fn vm_dir(&self, vm: &str) -> PathBuf {
        self.mac.tart_home().join("vms").join(vm)
    }

    /// How often a VM has booted on this Mac: each clone has a MAC address, and so a lease, of its own.
    pub(crate) fn boots(&self) -> Result<usize> {
        let leases = match std::fs::read_to_string(self.mac.host().join("dhcpd_leases")) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            other => other?,
        };
        let owners = leases.lines().filter(|line| line.trim_start().starts_with("hw_address="));
        Ok(owners.collect::<BTreeSet<_>>().len())
    }

    /// The tart commands that were called since the fault `calls` is on.
    pub(crate) fn tart_calls(&self) -> Result<Vec<String>> {
        let calls = std::fs::read_to_string(self.mac.host().join("calls"))?;
        Ok(calls.lines().map(str::to_owned).collect())
    }

    /// How often a tart command was called since the fault `calls` is on.
    pub(crate) fn count_calls(&self, command: &str) -> Result<usize> {
        Ok(self.tart_calls()?.iter().filter(|call| *call == command).count())
    }

    /// Forgets the calls so far.
    pub(crate) fn forget_calls(&self) -> Result<()> {
        match std::fs::remove_file(self.mac.host().join("calls")) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Waits until a tart command was called.
    pub(crate) async fn called(&self, command: &str) -> Result<()> {
        wait::eventually(&format!("a call of `tart {command}`"), DEADLINE, async || {
            ensure!(self.count_calls(command)? > 0, "{:?}", self.tart_calls()?);
            Ok(())
        })
        .await
    }

    /// Runs a script in a Pod's current VM, in the directory `/private/tmp`.
    pub(crate) async fn sh(&self, pod: &str, script: &str) -> Result<String> {
        let vm = self.pods.get(pod).await?.vm()?;
        self.mac.tart(["exec", &vm, "/bin/sh", "-c", &format!("cd /private/tmp && {script}")]).await
    }

    /// Waits until a file exists in a guest.
    pub(crate) async fn guest_file(&self, vm: &str, path: &str) -> Result<()> {
        wait::eventually(&format!("{path} in the guest"), DEADLINE, async || {
            self.mac.tart(["exec", vm, "test", "-e", path]).await.map(drop)
        })
        .await
    }

    /// Waits until a command has created the file [`UP`]: a Pod runs before its command has set its signal handlers.
    pub(crate) async fn command_up(&self, vm: &str) -> Result<()> {
        self.guest_file(vm, UP).await
    }

    /// Has a guest shut itself down. The guest may be gone before it has answered.
    pub(crate) async fn shut_down(&self, vm: &str) {
        let _ = self.mac.tart(["exec", vm, "sudo", "shutdown", "-h", "now"]).await;
    }

    /// Has a script end that waits for it ([`super::UNTIL_FINISHED`]). The guest may be gone before it has answered.
    pub(crate) async fn finish_command(&self, vm: &str) {
        let _ = self.mac.tart(["exec", vm, "touch", "/private/tmp/go"]).await;
    }
}

fn names(list: &[Value]) -> Vec<String> {
    list.iter().filter_map(|vm| vm["Name"].as_str().map(str::to_owned)).collect()
}
