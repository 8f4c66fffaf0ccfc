//! `install` and `join` on a Mac that has an agent already: another program, another kubeconfig, credentials that no longer work.

use std::net::TcpListener;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tart_kubelet_tests::control_plane::ControlPlane;
use tart_kubelet_tests::mac_host::{Fault, MacHost, Outcome};
use tart_kubelet_tests::programs;
use tart_kubelet_tests::wait::eventually;

use super::mac::{join, log_in, said, start};
use crate::scene::DEADLINE;

const LABEL: &str = "dev.tuist.tart-kubelet";
const BINARY: &str = "/usr/local/bin/tart-kubelet";
const PREVIOUS: &str = "/usr/local/bin/.tart-kubelet.previous";
const NEWSYSLOG: &str = "/etc/newsyslog.d/tart-kubelet.conf";

async fn pid(mac: &MacHost) -> Result<u32> {
    let printed = mac.ssh(&format!("launchctl print system/{LABEL}")).await?.ok()?;
    let line = printed.lines().find_map(|line| line.strip_prefix("\tpid = "));
    line.context("the agent does not run")?.parse().context("a PID")
}

async fn binary(mac: &MacHost) -> Result<String> {
    mac.ssh(&format!("shasum -a 256 {BINARY}")).await?.ok()
}

/// A Mac on which `install` has been run with a kubeconfig.
struct InstalledMac {
    mac: MacHost,
    node: &'static str,
    flags: String,
}

impl InstalledMac {
    async fn new(control_plane: &ControlPlane, node: &'static str) -> Result<Option<Self>> {
        let Some(mac) = start(control_plane.sandbox()).await? else { return Ok(None) };
        log_in(&mac).await?;
        // The Mac's ports are this machine's.
        let metrics = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let flags = format!(
            "--kubeconfig=credentials --node-name={node} --metrics-bind-address={metrics} --port=0 --eviction-hard= \
             --timeout=90s"
        );
        let installed = Self { mac, node, flags };
        installed.upload_credentials(control_plane).await?;
        installed.install("./tart-kubelet").await?.ok()?;
        Ok(Some(installed))
    }

    async fn install(&self, program: &str) -> Result<Outcome> {
        self.mac.ssh(&format!("sudo -n {program} install {}", self.flags)).await
    }

    /// Gives the Mac a new kubeconfig of its Node, and returns the key in it.
    async fn upload_credentials(&self, control_plane: &ControlPlane) -> Result<String> {
        let kubeconfig = std::fs::read(control_plane.node_kubeconfig(self.node)?)?;
        self.mac.ssh_with_input("umask 077; cat >credentials", &kubeconfig).await?.ok()?;
        let text = String::from_utf8(kubeconfig)?;
        let key = text.lines().find_map(|line| line.trim().strip_prefix("client-key-data: "));
        Ok(key.context("the kubeconfig has no key")?.to_owned())
    }

    async fn is_ready(&self, control_plane: &ControlPlane) -> Result<bool> {
        let node = Api::<Node>::all(control_plane.client().await?).get(self.node).await?;
        let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
        Ok(conditions.iter().any(|is| is.type_ == "Ready" && is.status == "True"))
    }
}

#[tokio::test]
async fn an_update_that_dies_gives_way_to_the_old_program_and_one_that_stays_replaces_it() -> Result<()> {
    let control_plane = ControlPlane::shared().await?;
    let Some(installed) = InstalledMac::new(control_plane, "mac-update").await? else { return Ok(()) };
    let mac = &installed.mac;
    eventually("the collector to pass", DEADLINE, async || {
        let status = mac.ssh("sudo -n ./tart-kubelet status -o json").await?;
        let status: Value = serde_json::from_str(&status.stdout).with_context(|| said(&status))?;
        ensure!(status["lastCollectorPass"].is_string(), "{status}");
        Ok(())
    })
    .await?;

    mac.set_fault(Fault::CodesignKillNew, LABEL)?;
    let mut program = std::fs::read(programs::agent()?)?;
    program.extend_from_slice(b"another release");
    let upload = "cat >newer && chmod 755 newer && codesign --force --sign - newer";
    mac.ssh_with_input(upload, &program).await?.ok()?;
    let old = binary(mac).await?;
    let failed = installed.install("./newer").await?;
    ensure!(failed.code() == 2 && failed.stderr.contains("code signature is not valid"), "{}", said(&failed));
    let words = format!("the old one was put back and runs as PID {}", pid(mac).await?);
    ensure!(failed.stderr.contains(&words), "{}", said(&failed));
    ensure!(binary(mac).await? == old, "the new program is still there");
    ensure!(installed.is_ready(control_plane).await?);

    mac.clear_fault(Fault::CodesignKillNew)?;
    let before = pid(mac).await?;
    mac.ssh(&format!("sudo -n rm {NEWSYSLOG}")).await?.ok()?;
    let updated = installed.install("./newer").await?;
    ensure!(
        updated.code() == 0 && updated.stdout.contains("bringing its agent up to date"),
        "{}",
        said(&updated)
    );
    ensure!(binary(mac).await? != old && pid(mac).await? != before);
    ensure!(!mac.path(PREVIOUS).exists(), "the previous program is left behind");
    ensure!(mac.path(NEWSYSLOG).exists(), "an update writes no file that the agent's log needs");

    // As docs/quickstart.md has it: the program comes to its place first.
    let before = pid(mac).await?;
    let place = format!("cp tart-kubelet new && sudo -n chown root:wheel new && sudo -n mv -f new {BINARY}");
    mac.ssh(&place).await?.ok()?;
    let in_place = installed.install(BINARY).await?;
    ensure!(in_place.code() == 0 && !in_place.stdout.contains("already;"), "{}", said(&in_place));
    ensure!(pid(mac).await? != before, "the old program still runs");
    let again = installed.install(BINARY).await?;
    ensure!(again.code() == 0 && again.stdout.contains("nothing has been changed"), "{}", said(&again));
    Ok(())
}

#[tokio::test]
async fn another_kubeconfig_is_given_to_the_agent_and_a_cordoned_node_is_told() -> Result<()> {
    let control_plane = ControlPlane::shared().await?;
    let Some(installed) = InstalledMac::new(control_plane, "mac-rotated").await? else { return Ok(()) };
    let mac = &installed.mac;
    let before = pid(mac).await?;
    let key = installed.upload_credentials(control_plane).await?;
    let rotated = installed.install(BINARY).await?;
    ensure!(rotated.code() == 0 && !rotated.stdout.contains("already"), "{}", said(&rotated));
    let kubeconfig = mac.ssh("sudo -n cat /etc/tart-kubelet/kubeconfig").await?.ok()?;
    ensure!(kubeconfig.contains(&key), "the Mac has the old kubeconfig");
    ensure!(pid(mac).await? != before, "the agent was not restarted");

    let nodes = Api::<Node>::all(control_plane.client().await?);
    let cordon = Patch::Merge(json!({ "spec": { "unschedulable": true } }));
    nodes.patch(installed.node, &PatchParams::default(), &cordon).await?;
    let again = installed.install(BINARY).await?;
    let words = format!("the Node is cordoned, and gets no Pods: `kubectl uncordon {}`", installed.node);
    ensure!(again.code() == 0 && again.stdout.contains("already"), "{}", said(&again));
    ensure!(again.stdout.contains(&words), "{}", said(&again));
    Ok(())
}

#[tokio::test]
async fn a_mac_whose_certificate_is_of_no_use_joins_again() -> Result<()> {
    let control_plane = ControlPlane::shared().await?;
    let Some(mac) = start(control_plane.sandbox()).await? else { return Ok(()) };
    log_in(&mac).await?;
    let command = control_plane.join_command().await?;
    let node = format!("mac-again-{}", &command.token[..6]);
    // As `kubeadm token create --print-join-command` prints it.
    let joined = mac
        .ssh(&format!(
            "sudo -n ./tart-kubelet join {} --token {} --discovery-token-ca-cert-hash {} --node-name={node} \
             --metrics-bind-address=127.0.0.1:0 --port=0 --eviction-hard= --timeout=90s",
            command.api_server, command.token, command.ca_cert_hash
        ))
        .await?;
    ensure!(joined.code() == 0 && joined.stdout.contains("is ready"), "{}\n{}", said(&joined), mac.log()?);
    let before = pid(&mac).await?;
    let spoil = "for file in /var/lib/tart-kubelet/pki/*; do echo spoilt >\"$file\"; done";
    mac.ssh(&format!("sudo -n sh -c '{spoil}'")).await?.ok()?;
    let again = join(&mac, &node, &command).await?;
    ensure!(again.code() == 0 && again.stdout.contains("is ready"), "{}\n{}", said(&again), mac.log()?);
    ensure!(pid(&mac).await? != before, "the agent was not restarted");
    let status = mac.ssh("sudo -n ./tart-kubelet status -o json").await?;
    let status: Value = serde_json::from_str(&status.stdout).with_context(|| said(&status))?;
    ensure!(status["certificateEnds"].is_string() && status["node"]["error"].is_null(), "{status}");
    Ok(())
}
