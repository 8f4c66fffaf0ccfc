//! A simulated Mac, and the provider that works on it.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Api;
use tart_kubelet_tests::control_plane::ControlPlane;
use tart_kubelet_tests::mac_host::{MacHost, MacHostBuilder};
use tart_kubelet_tests::programs;
use tart_kubelet_tests::sandbox::Sandbox;
use tart_kubelet_tests::secret;
use tart_kubelet_tests::wait::until;
use tokio::io::AsyncWriteExt as _;

pub(crate) const LABEL: &str = "dev.tuist.tart-kubelet";
pub(crate) const PLIST: &str = "/Library/LaunchDaemons/dev.tuist.tart-kubelet.plist";
pub(crate) const BINARY: &str = "/usr/local/bin/tart-kubelet";

/// An upload of a debug build on a busy machine is the slowest of all.
const PROVIDER_DEADLINE: Duration = Duration::from_mins(10);
const READY_DEADLINE: Duration = Duration::from_mins(3);

/// A Mac, a control plane, and the agent that the Mac should run.
pub(crate) struct Scene {
    pub(crate) mac: MacHost,
    control_plane: &'static ControlPlane,
    node: String,
    agent: PathBuf,
    other_agent: PathBuf,
    kubeconfig: PathBuf,
}

/// How `tart-provider` ended, and what it printed.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Said {
    /// What it printed, if it succeeded.
    pub(crate) fn ok(self) -> Result<String> {
        ensure!(
            self.status.success(),
            "tart-provider failed ({}):\n{}{}",
            self.status,
            self.stdout,
            self.stderr
        );
        Ok(self.stdout)
    }

    /// What it printed, if it failed.
    pub(crate) fn failed(self) -> Result<String> {
        ensure!(!self.status.success(), "tart-provider succeeded:\n{}", self.stdout);
        Ok(self.stdout + &self.stderr)
    }
}

impl Scene {
    /// A new Mac; `None`, with a word about it, where it cannot be simulated.
    pub(crate) async fn new(node: &str) -> Result<Option<Self>> {
        let sandbox = ControlPlane::shared().await?.sandbox();
        Self::with_mac(node, MacHost::new(sandbox)?).await
    }

    /// A scene with a Mac that is described already.
    pub(crate) async fn with_mac(node: &str, builder: MacHostBuilder) -> Result<Option<Self>> {
        let control_plane = ControlPlane::shared().await?;
        let sandbox = control_plane.sandbox();
        let Some(mac) = builder.pfctl(&programs::find("pfctl")?).start().await? else { return Ok(None) };
        let (agent, other_agent) = agent_binary(sandbox)?;
        let kubeconfig = control_plane.node_kubeconfig(node)?;
        Ok(Some(Self { mac, control_plane, node: node.to_owned(), agent, other_agent, kubeconfig }))
    }

    /// The agent that the Mac should run.
    pub(crate) fn agent(&self) -> &Path {
        &self.agent
    }

    /// An agent that does the same with other bytes.
    pub(crate) fn other_agent(&self) -> &Path {
        &self.other_agent
    }

    /// Checks that the Mac, its processes and the cluster have the secrets of this scene only where they belong: the password, the SSH key and the
    /// key of the agent's kubeconfig, which every scene has, and further ones.
    pub(crate) async fn keeps_its_secrets(&self, further: &[&str]) -> Result<()> {
        let mut secrets = secret::of_kubeconfig(&self.kubeconfig)?;
        secrets.extend(further.iter().map(ToString::to_string));
        secret::are_nowhere(&self.mac, self.control_plane, &secrets).await
    }

    /// Runs `tart-provider host VERB` with this agent and further flags.
    pub(crate) async fn host(&self, verb: &str, agent: &Path, further: &[&str]) -> Result<Said> {
        let mut arguments = self.flags(agent);
        arguments.extend(further.iter().map(ToString::to_string));
        let input = if verb == "apply" { self.mac.password() } else { "" };
        if verb == "apply" {
            arguments.push("--password-stdin".to_owned());
        }
        provider(&self.mac, verb, &arguments, input).await
    }

    /// What a person sees who runs `tart-provider host VERB` in a terminal.
    pub(crate) async fn host_on_terminal(&self, verb: &str, agent: &Path) -> Result<String> {
        let program = programs::find("tart-provider")?;
        let address = format!("--ssh={}@{}", self.mac.user(), self.mac.address());
        let identity = format!("--identity={}", self.mac.private_key().display());
        let known_hosts = format!("--known-hosts={}", self.mac.known_hosts().display());
        let program = program.display().to_string();
        let mut words = vec![program, "host".to_owned(), verb.to_owned(), address, identity, known_hosts];
        words.extend(self.flags(agent));
        let line: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
        let mut command = self.mac.sandbox().command("script");
        command.args(["-q", "-e", "-c", &line.join(" "), "/dev/null"]).stdin(Stdio::null());
        let run = tokio::process::Command::from(command).kill_on_drop(true).output();
        let output = tokio::time::timeout(PROVIDER_DEADLINE, run).await.context("tart-provider hangs")??;
        let shown = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(output.status.success(), "{shown}");
        Ok(shown)
    }

    fn flags(&self, agent: &Path) -> Vec<String> {
        vec![
            format!("--node-name={}", self.node),
            format!("--agent-binary={}", agent.display()),
            format!("--kubeconfig={}", self.kubeconfig.display()),
            // Many agents run on the machine at once, and how much is left on it is not what these tests are about.
            "--agent-flag=--metrics-bind-address=127.0.0.1:0".to_owned(),
            "--agent-flag=--port=0".to_owned(),
            "--agent-flag=--eviction-hard=".to_owned(),
        ]
    }

    /// A new Mac that has been taken through all steps.
    pub(crate) async fn applied(node: &str) -> Result<Option<Self>> {
        let Some(scene) = Self::new(node).await? else { return Ok(None) };
        scene.apply().await?;
        Ok(Some(scene))
    }

    /// Takes the Mac through all steps, and waits for its Node.
    pub(crate) async fn apply(&self) -> Result<()> {
        self.host("apply", &self.agent, &[]).await?.ok()?;
        self.until_ready().await.map(drop)
    }

    /// The Node's name.
    pub(crate) fn node(&self) -> &str {
        &self.node
    }

    /// The cluster.
    pub(crate) fn control_plane(&self) -> &'static ControlPlane {
        self.control_plane
    }

    /// Waits until the Node is Ready, and says since when.
    pub(crate) async fn until_ready(&self) -> Result<Option<Time>> {
        let nodes = Api::<Node>::all(self.control_plane.client().await?);
        let ready = |node: &Node| {
            let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
            conditions?.iter().find(|is| is.type_ == "Ready" && is.status == "True").cloned()
        };
        let node = until(&nodes, &self.node, "Ready", READY_DEADLINE, |node| ready(node).is_some()).await?;
        Ok(ready(&node).and_then(|condition| condition.last_transition_time))
    }

    /// The PID of the agent, as launchd knows it.
    pub(crate) async fn pid(&self) -> Result<u32> {
        let printed = self.mac.ssh(&format!("launchctl print system/{LABEL}")).await?.ok()?;
        let line = printed.lines().find_map(|line| line.strip_prefix("\tpid = "));
        line.context("the agent does not run")?.parse().context("a PID")
    }

    /// The inode of a file of the Mac.
    pub(crate) fn inode(&self, path: &str) -> Result<u64> {
        Ok(self.mac.path(path).metadata()?.ino())
    }

    /// What `launchctl` was told to change since its `from`th call.
    pub(crate) fn launchctl_changes(&self, from: usize) -> Result<Vec<String>> {
        let calls = self.mac.calls()?.into_iter().skip(from);
        let is_change =
            |call: &String| call.starts_with("launchctl ") && !call.starts_with("launchctl print");
        Ok(calls
            .filter(is_change)
            .filter(|call| call.contains(LABEL))
            .filter(|call| !call.contains("firewall"))
            .collect())
    }
}

/// The agent, and one that does the same with other bytes.
pub(crate) fn agent_binary(sandbox: &Sandbox) -> Result<(PathBuf, PathBuf)> {
    let agent = sandbox.directory("agent-binary")?.join("tart-kubelet");
    // The symbols of a debug build are most of it.
    let stripped = Command::new("strip").arg("-o").arg(&agent).arg(programs::agent()?).status();
    ensure!(stripped.is_ok_and(|status| status.success()), "cannot strip the agent");
    let other = agent.with_extension("other");
    let mut bytes = std::fs::read(&agent)?;
    bytes.extend_from_slice(b"another release");
    std::fs::write(&other, bytes)?;
    Ok((agent, other))
}

/// Runs `tart-provider host VERB` on a Mac.
pub(crate) async fn provider(mac: &MacHost, verb: &str, arguments: &[String], input: &str) -> Result<Said> {
    let address = format!("--ssh={}@{}", mac.user(), mac.address());
    let arguments: Vec<String> = std::iter::once(address).chain(arguments.iter().cloned()).collect();
    run_provider(mac, verb, &arguments, input).await
}

/// Runs `tart-provider host VERB` with the key of a Mac, unless the arguments have another one, and says all that it can.
pub(crate) async fn run_provider(
    mac: &MacHost,
    verb: &str,
    arguments: &[String],
    input: &str,
) -> Result<Said> {
    // What it leaves on its own machine is found here.
    let home = mac.sandbox().directory("provider-home")?;
    let mut command = mac.sandbox().command(programs::find("tart-provider")?);
    command.args(["host", verb]).args(arguments).env("RUST_LOG", "trace");
    command.env("HOME", &home).env("TMPDIR", &home).current_dir(&home);
    if !arguments.iter().any(|argument| argument.starts_with("--identity=")) {
        command.arg("-i").arg(mac.private_key());
    }
    let is_of_host_key =
        |argument: &String| ["--host-key=", "--known-hosts="].iter().any(|flag| argument.starts_with(flag));
    if !arguments.iter().any(is_of_host_key) {
        command.arg("--known-hosts").arg(mac.known_hosts());
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = tokio::process::Command::from(command).kill_on_drop(true).spawn()?;
    let mut stdin = child.stdin.take().context("its stdin is not a pipe")?;
    stdin.write_all(format!("{input}\n").as_bytes()).await?;
    drop(stdin);
    let output = tokio::time::timeout(PROVIDER_DEADLINE, child.wait_with_output())
        .await
        .context("tart-provider hangs")??;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let said = Said { status: output.status, stdout: text(output.stdout), stderr: text(output.stderr) };
    for secret in [mac.password(), "client-key-data", "PRIVATE KEY", "canary"] {
        ensure!(!format!("{said:?}").contains(secret), "a secret was printed: {said:?}");
    }
    let left: Vec<_> = std::fs::read_dir(&home)?.collect();
    ensure!(left.is_empty(), "tart-provider has left files on its own machine: {left:?}");
    let calls = mac.calls()?.join("\n");
    ensure!(!calls.contains(mac.password()), "the password is in a command line:\n{calls}");
    Ok(said)
}
