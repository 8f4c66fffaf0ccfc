//! What the provider costs when it rolls a fleet of Macs, four at a time.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use tart_kubelet_tests::mac_host::{MacHost, MacHostBuilder};
use tart_kubelet_tests::programs;
use tart_kubelet_tests::sandbox::Sandbox;
use tokio::io::AsyncWriteExt as _;
use tokio::time::sleep;

/// How many Macs there are, and how many of them a smaller rollout takes.
const MACS: usize = 40;
const FEW: usize = 10;
/// As many at a time as the provider takes by itself.
const CONCURRENCY: usize = 4;
/// The size of an agent's binary with everything in it, as the Go design had it.
const BINARY: u64 = 50_000_000;
/// The kernel keeps the highest value, so that nothing in between is missed.
const LOOK: Duration = Duration::from_millis(20);

/// Forty whole simulated Macs, each with its own sshd and launchd. Their agents find no API server, and wait for it.
pub(crate) struct Fleet {
    macs: Vec<MacHost>,
    directory: PathBuf,
}

/// The most memory that the provider had, in MB.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peaks {
    /// With few Macs.
    pub(crate) few: f64,
    /// With all of them.
    pub(crate) all: f64,
}

impl Fleet {
    /// Starts the Macs and installs an agent on each; `None`, with a word about it, where there can be none.
    pub(crate) async fn start(sandbox: &Sandbox) -> Result<Option<Self>> {
        let pfctl = programs::find("pfctl")?;
        let Some(first) = MacHost::new(sandbox)?.pfctl(&pfctl).start().await? else { return Ok(None) };
        let builders: Result<Vec<_>> =
            (1..MACS).map(|_| Ok(MacHost::new(sandbox)?.pfctl(&pfctl).with_key_of(&first))).collect();
        let others: Vec<Option<MacHost>> = stream::iter(builders?.into_iter().map(MacHostBuilder::start))
            .buffer_unordered(CONCURRENCY)
            .try_collect()
            .await?;
        let macs: Vec<_> = std::iter::once(first).chain(others.into_iter().flatten()).collect();
        let fleet = Self { macs, directory: sandbox.directory("rollout")? };
        fleet.write_files()?;
        let prepared: Vec<()> = stream::iter(fleet.macs.iter().map(|mac| fleet.prepare(mac)))
            .buffer_unordered(CONCURRENCY)
            .try_collect()
            .await?;
        ensure!(prepared.len() == MACS, "only {} Macs have started", prepared.len());
        fleet.run("apply", MACS, &programs::agent()?).await?;
        Ok(Some(fleet))
    }

    /// Rolls few Macs to a new binary, and then all of them to another one.
    pub(crate) async fn peaks(&self) -> Result<Peaks> {
        Ok(Peaks {
            few: self.run("roll", FEW, &self.padded_agent("few")?).await?,
            all: self.run("roll", MACS, &self.padded_agent("all")?).await?,
        })
    }

    fn write_files(&self) -> Result<()> {
        let keys: Result<Vec<String>, _> =
            self.macs.iter().map(|mac| std::fs::read_to_string(mac.known_hosts())).collect();
        std::fs::write(self.directory.join("known_hosts"), keys?.concat())?;
        // No server listens on port 1.
        let kubeconfig = "apiVersion: v1\nkind: Config\ncurrent-context: a\nclusters:\n- name: a\n  cluster: {server: 'https://127.0.0.1:1'}\n\
            users:\n- name: a\n  user: {token: a}\ncontexts:\n- name: a\n  context: {cluster: a, user: a}\n";
        Ok(std::fs::write(self.directory.join("kubeconfig"), kubeconfig)?)
    }

    /// An agent of [`BINARY`] bytes, other ones for each name.
    fn padded_agent(&self, name: &str) -> Result<PathBuf> {
        let path = self.directory.join(name);
        std::fs::copy(programs::agent()?, &path)?;
        let file = std::fs::File::options().append(true).open(&path)?;
        let length = file.metadata()?.len();
        ensure!(length < BINARY, "the agent has {length} bytes; build it with --release");
        file.set_len(BINARY - 1)?;
        std::io::Write::write_all(&mut &file, &name.as_bytes()[..1])?;
        Ok(path)
    }

    async fn prepare(&self, mac: &MacHost) -> Result<()> {
        let mut command = mac.sandbox().command(programs::provider()?);
        command.args(["host", "prepare", "--password-stdin"]).arg(format!(
            "--ssh={}@{}",
            mac.user(),
            mac.address()
        ));
        command.arg("-i").arg(mac.private_key());
        wait(command, &format!("{}\n", mac.password())).await.map(drop)
    }

    /// Takes the first Macs to an agent, and returns the most memory that the provider had meanwhile.
    async fn run(&self, verb: &str, count: usize, agent: &Path) -> Result<f64> {
        let first = self.macs.first().context("there is no Mac")?;
        let mut command = first.sandbox().command(programs::provider()?);
        command
            .args(["host", verb, &format!("--concurrency={CONCURRENCY}")])
            .arg("-i")
            .arg(first.private_key());
        for (number, mac) in self.macs.iter().take(count).enumerate() {
            command.arg(format!("--ssh=bench-{number}={}@{}", mac.user(), mac.address()));
        }
        for (flag, file) in [("--known-hosts", "known_hosts"), ("--kubeconfig", "kubeconfig")] {
            command.arg(flag).arg(self.directory.join(file));
        }
        command.arg("--agent-binary").arg(agent);
        command.args(["--agent-flag=--metrics-bind-address=127.0.0.1:0", "--agent-flag=--port=0"]);
        wait(command, "").await
    }
}

/// Runs the provider to its end, and returns the most memory that it had, in MB.
#[expect(clippy::cast_precision_loss, reason = "no process has 2^52 bytes")]
async fn wait(mut command: Command, input: &str) -> Result<f64> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = tokio::process::Command::from(command).kill_on_drop(true).spawn()?;
    let status = format!("/proc/{}/status", child.id().context("the provider has ended")?);
    child.stdin.take().context("its stdin is not a pipe")?.write_all(input.as_bytes()).await?;
    let mut peak = 0_u64;
    let end = child.wait_with_output();
    tokio::pin!(end);
    let output = loop {
        tokio::select! {
            output = &mut end => break output?,
            () = sleep(LOOK) => {
                let text = std::fs::read_to_string(&status).unwrap_or_default();
                let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
                peak = peak.max(line.and_then(|number| number.parse().ok()).unwrap_or_default());
            }
        }
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    ensure!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    Ok((peak << 10) as f64 / 1e6)
}
