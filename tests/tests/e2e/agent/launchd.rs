//! The agent as a job of launchd, on a simulated Mac that is reached over SSH only.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use serde_json::json;
use tart_kubelet_tests::control_plane::ControlPlane;
use tart_kubelet_tests::mac_host::MacHost;
use tart_kubelet_tests::{programs, wait};

use crate::install::mac::log_in;
use crate::scene::{DEADLINE, IMAGE, NodeView, PodView, SLEEP};

const LABEL: &str = "dev.tuist.tart-kubelet";

/// A job that keeps the agent running as the Mac's user.
fn property_list(node: &str) -> String {
    let arguments = [
        "/usr/local/bin/tart-kubelet".to_owned(),
        format!("--node-name={node}"),
        "--kubeconfig=/etc/tart-kubelet/kubeconfig".to_owned(),
        "--state-dir=/var/lib/tart-kubelet".to_owned(),
        "--tart-binary=/opt/homebrew/bin/tart".to_owned(),
        "--metrics-bind-address=127.0.0.1:0".to_owned(),
        "--port=0".to_owned(),
        "--eviction-hard=".to_owned(),
        "--node-ip=127.0.0.1".to_owned(),
    ];
    let arguments = arguments.join("</string><string>");
    format!(
        "<plist version=\"1.0\"><dict><key>Label</key><string>{LABEL}</string>\
         <key>ProgramArguments</key><array><string>{arguments}</string></array>\
         <key>UserName</key><string>m1</string><key>KeepAlive</key><true/><key>AbandonProcessGroup</key><true/>\
         <key>EnvironmentVariables</key><dict><key>HOME</key><string>/Users/m1</string></dict>\
         <key>StandardErrorPath</key><string>/var/log/tart-kubelet.log</string>\
         <key>StandardOutPath</key><string>/var/log/tart-kubelet.log</string></dict></plist>\n"
    )
}

/// Installs the agent as an administrator would by hand.
async fn install(mac: &MacHost, node: &str, kubeconfig: &str) -> Result<()> {
    let password = mac.password();
    let sudoers = "sudo -S -p '' tee /etc/sudoers.d/m1 >/dev/null";
    let rule = format!("{password}\nm1 ALL=(ALL) NOPASSWD: ALL\n");
    mac.ssh_with_input(sudoers, rule.as_bytes()).await?.ok()?;
    log_in(mac).await?;
    let prepare = "sudo -n install -d -o m1 -g staff -m 700 /etc/tart-kubelet /var/lib/tart-kubelet && \
        sudo -n install -d /usr/local/bin && sudo -n touch /var/log/tart-kubelet.log && \
        sudo -n chown m1:staff /var/log/tart-kubelet.log";
    mac.ssh(prepare).await?.ok()?;
    mac.ssh_with_input("umask 077; cat >/etc/tart-kubelet/kubeconfig", kubeconfig.as_bytes()).await?.ok()?;
    let new = "/usr/local/bin/.tart-kubelet.new";
    let upload = format!(
        "sudo -n tee {new} >/dev/null && sudo -n chmod 755 {new} && sudo -n codesign --force --sign - {new} && \
         sudo -n mv {new} /usr/local/bin/tart-kubelet"
    );
    mac.ssh_with_input(&upload, &std::fs::read(programs::agent()?)?).await?.ok()?;
    let load = format!(
        "sudo -n tee /Library/LaunchDaemons/{LABEL}.plist >/dev/null && \
         sudo -n launchctl bootstrap system /Library/LaunchDaemons/{LABEL}.plist"
    );
    mac.ssh_with_input(&load, property_list(node).as_bytes()).await?.ok().map(drop)
}

#[tokio::test]
async fn agent_under_launchd_runs_pods_and_leaves_their_vms_alone_when_it_is_restarted() -> Result<()> {
    let control_plane = ControlPlane::shared().await?;
    let Some(mac) = MacHost::new(control_plane.sandbox())?.start().await? else { return Ok(()) };
    let namespace = control_plane.namespace("launchd").await?;
    let node = format!("mac-{namespace}");
    mac.add_image(IMAGE, &json!({}))?;
    let kubeconfig = std::fs::read_to_string(control_plane.node_kubeconfig(&node)?)?;
    install(&mac, &node, &kubeconfig).await?;

    let logs = || std::fs::read_to_string(mac.path("/var/log/tart-kubelet.log")).unwrap_or_default();
    let client = control_plane.client().await?;
    let nodes: Api<Node> = Api::all(client.clone());
    let is_ready = |node: &Node| node.condition("Ready") == "True";
    wait::until(&nodes, &node, "ready", DEADLINE, is_ready).await.with_context(logs)?;

    let pods: Api<Pod> = Api::namespaced(client, &namespace);
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "tolerations": [{"key": "tuist.dev/macos", "operator": "Exists"}],
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "main", "image": IMAGE, "command": SLEEP}],
        },
    });
    control_plane.kubectl().namespace(&namespace).apply(&pod.to_string()).await?;
    let is_running = |pod: &Pod| pod.phase() == "Running";
    wait::until(&pods, "p", "running", DEADLINE, is_running).await.with_context(logs)?;

    let vms = "pgrep -f '[t]art run'; launchctl print system/dev.tuist.tart-kubelet | grep '^.pid'";
    let before = mac.ssh(vms).await?.ok()?;
    mac.ssh(&format!("sudo -n launchctl kickstart -k system/{LABEL}")).await?.ok()?;
    let after = mac.ssh(vms).await?.ok()?;
    let (vm, agent) = before.trim_end().rsplit_once('\n').context("no VM runs")?;
    let (same_vm, other_agent) = after.trim_end().rsplit_once('\n').context("the VM is gone")?;
    ensure!(vm == same_vm && agent != other_agent, "{before}\n{after}");
    Ok(())
}
