//! `join` and `leave` on a whole simulated Mac: launchd runs the shipped agent, and the Node is Ready.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};
use tart_kubelet_tests::control_plane::{ControlPlane, JoinCommand};
use tart_kubelet_tests::disk::Undeletable;
use tart_kubelet_tests::mac_host::{MacHost, Outcome};
use tart_kubelet_tests::programs;
use tart_kubelet_tests::sandbox::Sandbox;
use tart_kubelet_tests::secret;
use tart_kubelet_tests::wait::{eventually, until, until_gone};

use crate::scene::{DEADLINE, IMAGE};

/// A Mac with the agent's program in its user's home, as a download leaves it, and `sudo` without a password.
pub(super) async fn start(sandbox: &Sandbox) -> Result<Option<MacHost>> {
    let Some(mac) = MacHost::new(sandbox)?.start().await? else { return Ok(None) };
    let sudo =
        "sudo -S tee /etc/sudoers.d/m1-nopasswd >/dev/null && sudo -n chmod 440 /etc/sudoers.d/m1-nopasswd";
    let input = format!("{}\nm1 ALL=(ALL) NOPASSWD: ALL\n", mac.password());
    mac.ssh_with_input(sudo, input.as_bytes()).await?.ok()?;
    let program = std::fs::read(programs::agent()?)?;
    let upload = "cat >tart-kubelet && chmod 755 tart-kubelet && codesign --force --sign - tart-kubelet";
    mac.ssh_with_input(upload, &program).await?.ok()?;
    Ok(Some(mac))
}

/// Logs the user in at the screen, now and after each boot.
pub(crate) async fn log_in(mac: &MacHost) -> Result<()> {
    const KEY: [u8; 11] = [0x7d, 0x89, 0x52, 0x23, 0xd2, 0xbc, 0xdd, 0xea, 0xa3, 0xb9, 0x1f];
    let mut password = mac.password().as_bytes().to_vec();
    password.resize(password.len() + 12 - password.len() % 12, 0);
    let disguised: Vec<u8> = password.iter().zip(KEY.iter().cycle()).map(|(byte, key)| byte ^ key).collect();
    mac.ssh_with_input(
        "sudo -n tee /etc/kcpassword >/dev/null && sudo -n chmod 600 /etc/kcpassword",
        &disguised,
    )
    .await?
    .ok()?;
    let script = "sudo -n defaults write /Library/Preferences/com.apple.loginwindow autoLoginUser m1 && \
                  sudo -n launchctl kickstart -k system/com.apple.loginwindow";
    mac.ssh(script).await?.ok()?;
    eventually("the user to be logged in", DEADLINE, async || {
        let owner = mac.ssh("stat -f %Su /dev/console").await?.ok()?;
        ensure!(owner.trim() == "m1", "{owner} has the screen");
        Ok(())
    })
    .await
}

/// Joins with the token on stdin.
pub(super) async fn join(mac: &MacHost, node: &str, command: &JoinCommand) -> Result<Outcome> {
    join_with(mac, node, command, "").await
}

/// The same with another flag of the agent.
async fn join_with(mac: &MacHost, node: &str, command: &JoinCommand, flag: &str) -> Result<Outcome> {
    let JoinCommand { api_server, token, ca_cert_hash } = command;
    let script = format!(
        "sudo -n ./tart-kubelet join {api_server} --token-file=- --discovery-token-ca-cert-hash={ca_cert_hash} \
         --node-name={node} --metrics-bind-address=127.0.0.1:0 --port=0 --eviction-hard= --timeout=90s {flag}"
    );
    mac.ssh_with_input(&script, token.as_bytes()).await
}

/// A Pod that ends when it is asked to.
fn waiting_pod(node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "waits"},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 20,
            "nodeSelector": {"kubernetes.io/hostname": node},
            "tolerations": [{"key": "tuist.dev/macos", "operator": "Exists"}],
            "containers": [{
                "name": "main", "image": IMAGE,
                "command": ["/bin/sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.1; done"],
            }],
        },
    })
}

/// The exit code and all that was said.
pub(super) fn said(outcome: &Outcome) -> String {
    format!("{}: {}{}", outcome.code(), outcome.stdout, outcome.stderr)
}

#[tokio::test]
async fn a_mac_joins_with_one_command_and_leaves_with_another() -> Result<()> {
    let control_plane = ControlPlane::shared().await?;
    let Some(mac) = start(control_plane.sandbox()).await? else { return Ok(()) };
    let command = control_plane.join_command().await?;
    let node = format!("mac-join-{}", &command.token[..6]);
    let nodes: Api<Node> = Api::all(control_plane.client().await?);

    log_in(&mac).await?;
    let joined = join(&mac, &node, &command).await?;
    let log = || std::fs::read_to_string(mac.path("/var/log/tart-kubelet.log")).unwrap_or_default();
    ensure!(joined.code() == 0, "{}\n{}\n{}", said(&joined), log(), mac.log()?);
    ensure!(joined.stdout.contains(&format!("the Node {node} is ready")), "{}", said(&joined));
    let ready = nodes.get(&node).await?.status.and_then(|status| status.conditions).unwrap_or_default();
    ensure!(
        ready.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True"),
        "{ready:?}"
    );

    // Only the user can read what has secrets, and the token is nowhere else.
    let modes = mac
        .ssh("sudo -n stat -f '%Su %Lp %N' /etc/tart-kubelet /etc/tart-kubelet/* /var/lib/tart-kubelet /var/log/tart-kubelet.log")
        .await?
        .ok()?;
    for line in modes.lines() {
        ensure!(line.starts_with("m1 700 ") || line.starts_with("m1 600 "), "{modes}");
    }
    let token = command.token.split('.').nth(1).context("a token has a secret")?.to_owned();
    ensure!(!said(&joined).contains(&token), "{}", said(&joined));
    secret::are_nowhere(&mac, control_plane, std::slice::from_ref(&token)).await?;
    // What doctor finds is told.
    ensure!(joined.stdout.contains("warning: sleep: "), "{}", said(&joined));

    let pid = |outcome: String| outcome.lines().find(|line| line.contains("pid = ")).map(str::to_owned);
    let print = "launchctl print system/dev.tuist.tart-kubelet";
    let before = pid(mac.ssh(print).await?.ok()?);
    let again = join(&mac, &node, &command).await?;
    ensure!(
        again.code() == 0 && again.stdout.contains("has joined") && again.stdout.contains("already"),
        "{}",
        said(&again)
    );
    ensure!(before.is_some() && pid(mac.ssh(print).await?.ok()?) == before, "the agent was restarted");

    let doctor = mac.ssh("sudo -n ./tart-kubelet doctor -o json").await?;
    let findings: Vec<Value> = serde_json::from_str(&doctor.stdout).with_context(|| said(&doctor))?;
    let level = |findings: &[Value], check: &str| {
        findings.iter().find(|finding| finding["check"] == check).map(|finding| finding["level"].clone())
    };
    for (check, expected) in
        [("tart", "ok"), ("GUI session", "ok"), ("API server", "ok"), ("clock", "ok"), ("sleep", "warning")]
    {
        ensure!(level(&findings, check) == Some(expected.into()), "{check}: {}", said(&doctor));
    }
    let sleeps =
        findings.iter().find(|finding| finding["check"] == "sleep").context("no word about sleep")?;
    ensure!(
        sleeps["found"].as_str().is_some_and(|found| found.contains("which keeps the Mac awake")),
        "{sleeps}"
    );
    // It leaves the other settings of the DHCP server alone.
    let leases = "/Library/Preferences/SystemConfiguration/com.apple.InternetSharing.default.plist bootpd";
    mac.ssh(&format!("sudo -n defaults write {leases} -dict-add reply_threshold_seconds -int 7"))
        .await?
        .ok()?;
    let fixed = mac.ssh("sudo -n ./tart-kubelet doctor --fix -o json").await?;
    let kept = mac.ssh(&format!("defaults read {leases}")).await?.ok()?;
    ensure!(
        kept.contains("reply_threshold_seconds = 7") && kept.contains("DHCPLeaseTimeSecs = 600"),
        "{kept}"
    );
    let findings: Vec<Value> = serde_json::from_str(&fixed.stdout).with_context(|| said(&fixed))?;
    for check in ["sleep", "DHCP lease time"] {
        ensure!(level(&findings, check) == Some("ok".into()), "{check}: {}", said(&fixed));
    }
    let status = mac.ssh("sudo -n ./tart-kubelet status -o json").await?;
    let status: Value = serde_json::from_str(&status.stdout).with_context(|| said(&status))?;
    ensure!(status["node"]["name"] == node.as_str() && status["job"]["pid"].is_u64(), "{status}");
    ensure!(
        status["certificateEnds"].is_string() && status["node"]["conditions"][0]["type"].is_string(),
        "{status}"
    );
    let findings = status["findings"].as_array().context("status has no findings")?;
    ensure!(findings.iter().any(|finding| finding["check"] == "network of guests"), "{status}");

    // A VM runs on, unless the Node is drained.
    mac.add_image(IMAGE, &json!({}))?;
    let namespace = control_plane.namespace("leave").await?;
    let pods: Api<Pod> = Api::namespaced(control_plane.client().await?, &namespace);
    pods.create(&PostParams::default(), &serde_json::from_value(waiting_pod(&node))?).await?;
    let is_running = |pod: &Pod| pod.status.as_ref().is_some_and(|is| is.phase.as_deref() == Some("Running"));
    until(&pods, "waits", "Running", DEADLINE, is_running).await?;
    let refused = mac.ssh("sudo -n ./tart-kubelet leave").await?;
    ensure!(refused.code() == 2 && refused.stderr.contains("still run here"), "{}", said(&refused));
    ensure!(refused.stderr.contains("leave --drain"), "{}", said(&refused));
    ensure!(mac.ssh(print).await?.code() == 0, "the agent has ended");

    let left = mac.ssh("sudo -n ./tart-kubelet leave --drain").await?;
    ensure!(left.code() == 0 && left.stdout.contains("this Mac has left"), "{}", said(&left));
    ensure!(left.stdout.contains("so does the program /usr/local/bin/tart-kubelet"), "{}", said(&left));
    ensure!(left.stdout.contains(&format!("kubectl uncordon {node}")), "{}", said(&left));
    until_gone(&pods, "waits", DEADLINE).await?;
    let processes = mac.ssh("ps -axo command=").await?.ok()?;
    ensure!(!processes.contains("tart run") && !processes.contains("shim"), "a VM runs on:\n{processes}");
    ensure!(nodes.get(&node).await?.spec.is_some_and(|spec| spec.unschedulable == Some(true)));
    ensure!(mac.ssh(print).await?.code() == 113);
    let rest = mac
        .ssh("sudo -n ls /etc/tart-kubelet /var/lib /Library/LaunchDaemons /etc/newsyslog.d /var/log")
        .await?;
    ensure!(
        !rest.stdout.contains("kubeconfig") && !rest.stdout.contains("dev.tuist.tart-kubelet"),
        "{}",
        said(&rest)
    );
    ensure!(
        !rest.stdout.contains("tart-kubelet.conf") && !rest.stdout.contains("tart-kubelet.log"),
        "{}",
        said(&rest)
    );
    let twice = mac.ssh("sudo -n ./tart-kubelet leave").await?;
    ensure!(twice.code() == 0 && twice.stdout.contains("has not joined"), "{}", said(&twice));
    secret::are_nowhere(&mac, control_plane, &[token]).await
}

#[tokio::test]
async fn a_mac_is_installed_with_a_kubeconfig_of_either_kind_and_uninstalled() -> Result<()> {
    let control_plane = ControlPlane::shared().await?;
    let Some(mac) = start(control_plane.sandbox()).await? else { return Ok(()) };
    log_in(&mac).await?;
    let nothing = mac.ssh("sudo -n ./tart-kubelet install").await?;
    ensure!(nothing.code() == 2 && nothing.stderr.contains("--bootstrap-kubeconfig"), "{}", said(&nothing));
    let given = control_plane.node_kubeconfig("mac-install-given")?;
    let bootstrap = control_plane.bootstrap_kubeconfig().await?;
    for (node, flag, file) in [
        ("mac-install-given", "--kubeconfig", &given),
        ("mac-install-bootstrap", "--bootstrap-kubeconfig", &bootstrap),
    ] {
        let upload = "umask 077; cat >credentials";
        mac.ssh_with_input(upload, &std::fs::read(file)?).await?.ok()?;
        let install = format!(
            "sudo -n ./tart-kubelet install {flag}=credentials --node-name={node} --metrics-bind-address=127.0.0.1:0 \
             --port=0 --eviction-hard= --max-pods=1 --timeout=90s"
        );
        let installed = mac.ssh(&install).await?;
        let ready = format!("the Node {node} is ready");
        ensure!(
            installed.code() == 0 && installed.stdout.contains(&ready),
            "{}\n{}",
            said(&installed),
            mac.log()?
        );
        let again = mac.ssh(&install).await?;
        ensure!(again.code() == 0 && again.stdout.contains("already"), "{}", said(&again));
        // The file that was copied is its owner's affair.
        mac.ssh("rm credentials").await?.ok()?;
        let secrets = secret::of_kubeconfig(file)?;
        ensure!(secrets.iter().all(|secret| !said(&installed).contains(secret)), "{}", said(&installed));
        secret::are_nowhere(&mac, control_plane, &secrets).await?;
        let job = mac.ssh("launchctl print system/dev.tuist.tart-kubelet").await?.ok()?;
        ensure!(job.contains("--max-pods=1") && job.contains(&format!("--node-name={node}")), "{job}");

        let left = mac.ssh("sudo -n ./tart-kubelet uninstall").await?;
        ensure!(left.code() == 0 && left.stdout.contains("this Mac has left"), "{}", said(&left));
        let rest = mac.ssh("sudo -n ls -A /etc/tart-kubelet /var/lib /Library/LaunchDaemons").await?;
        ensure!(!rest.stdout.contains("kubeconfig") && !rest.stdout.contains("dev.tuist"), "{}", said(&rest));
        secret::are_nowhere(&mac, control_plane, &secrets).await?;
    }
    Ok(())
}

#[tokio::test]
async fn leave_that_broke_off_is_finished_by_the_next_one() -> Result<()> {
    let control_plane = ControlPlane::shared().await?;
    let Some(mac) = start(control_plane.sandbox()).await? else { return Ok(()) };
    let command = control_plane.join_command().await?;
    let node = format!("mac-leave-{}", &command.token[..6]);
    log_in(&mac).await?;
    let state = "/var/db/nodes";
    let joined = join_with(&mac, &node, &command, &format!("--state-dir={state}")).await?;
    ensure!(joined.code() == 0, "{}\n{}", said(&joined), mac.log()?);
    let Some(kept) = Undeletable::new(mac.path(state).join("kept"))? else { return Ok(()) };
    let broken_off = mac.ssh("sudo -n ./tart-kubelet leave").await?;
    ensure!(broken_off.code() != 0, "{}", said(&broken_off));
    ensure!(mac.path(state).exists());

    drop(kept);
    let left = mac.ssh("sudo -n ./tart-kubelet leave --drain").await?;
    ensure!(left.code() == 0 && left.stdout.contains("this Mac has left"), "{}", said(&left));
    ensure!(left.stdout.contains(&node), "{}", said(&left));
    ensure!(!mac.path(state).exists(), "the next one has forgotten the state directory");
    let twice = mac.ssh("sudo -n ./tart-kubelet leave").await?;
    ensure!(twice.code() == 0 && twice.stdout.contains("has not joined"), "{}", said(&twice));
    Ok(())
}

#[tokio::test]
async fn a_mac_that_cannot_join_says_what_to_do_and_is_left_as_it_was() -> Result<()> {
    let control_plane = ControlPlane::shared().await?;
    let Some(mac) = start(control_plane.sandbox()).await? else { return Ok(()) };
    let command = control_plane.join_command().await?;
    let other = JoinCommand { ca_cert_hash: format!("sha256:{}", "00".repeat(32)), ..command.clone() };
    let wrong = join(&mac, "mac-never", &other).await?;
    ensure!(wrong.code() == 2 && wrong.stderr.contains("another cluster"), "{}", said(&wrong));
    let user = mac
        .ssh_with_input(
            &format!(
                "./tart-kubelet join {} --token-file=- --discovery-token-ca-cert-hash={}",
                command.api_server, command.ca_cert_hash
            ),
            command.token.as_bytes(),
        )
        .await?;
    ensure!(user.code() == 2 && user.stderr.contains("with sudo"), "{}", said(&user));
    let late = join(&mac, "mac-never", &control_plane.expired_join_command().await?).await?;
    ensure!(late.code() == 2 && late.stderr.contains("it may have expired"), "{}", said(&late));
    // The login window is shown.
    let nobody = join(&mac, "mac-never", &command).await?;
    ensure!(nobody.code() == 2 && nobody.stderr.contains("no user is logged in"), "{}", said(&nobody));
    let rest = mac.ssh("ls /etc /Library/LaunchDaemons").await?.ok()?;
    ensure!(!rest.contains("tart-kubelet"), "{rest}");
    Ok(())
}
