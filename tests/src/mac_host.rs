//! A whole simulated Mac: launchd, its programs and a real sshd in a root of its own, to be set up over SSH.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use mac_sim::control::{self, Domain, Reply, Request};
use mac_sim::fault::FaultDirectory;
use mac_sim::settings::{HostDirectory, Settings, TART_HOST};
use serde::Serialize;
use tokio::io::AsyncWriteExt as _;

pub use mac_sim::Fault;

use crate::mac;
use crate::process::Process;
use crate::programs;
use crate::sandbox::Sandbox;
use crate::skip;
use crate::wait::eventually;

const USER: &str = "m1";
const PASSWORD: &str = "correct horse";
/// A Mac boots in a second or two, also on a busy machine.
const BOOT_DEADLINE: Duration = Duration::from_mins(1);
/// No command that a test runs over SSH takes longer.
const SSH_DEADLINE: Duration = Duration::from_mins(2);

/// A Mac that is to be started.
#[derive(Debug, Clone)]
pub struct MacHostBuilder {
    sandbox: Sandbox,
    has_tart: bool,
    has_key: bool,
    further_keys: Vec<String>,
    private_key: Option<PathBuf>,
    pfctl: Option<PathBuf>,
    /// The Mac's directory; a small disk may be mounted on its `root`.
    path: PathBuf,
}

/// A running simulated Mac. It goes off with its last handle, and with the sandbox.
#[derive(Debug)]
pub struct MacHost {
    sandbox: Sandbox,
    process: Process,
    directory: HostDirectory,
    port: u16,
    private_key: PathBuf,
    known_hosts: PathBuf,
    fingerprint: String,
}

/// What a command over SSH did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Its exit code; 255 also means that the connection was lost.
    pub status: ExitStatus,
    /// What it wrote to stdout.
    pub stdout: String,
    /// What it wrote to stderr.
    pub stderr: String,
}

impl Outcome {
    /// stdout of a command that succeeded.
    pub fn ok(self) -> Result<String> {
        ensure!(self.status.success(), "{self:?}");
        Ok(self.stdout)
    }

    /// The exit code.
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or(-1)
    }
}

impl MacHostBuilder {
    /// The Mac without tart, as it comes from its maker.
    #[must_use]
    pub fn without_tart(mut self) -> Self {
        self.has_tart = false;
        self
    }

    /// The Mac does not know the test's key yet.
    #[must_use]
    pub fn without_key(mut self) -> Self {
        self.has_key = false;
        self
    }

    /// The Mac lets this key in, too, as `authorized_keys` has it.
    #[must_use]
    pub fn authorized_key(mut self, key: &str) -> Self {
        self.further_keys.push(key.to_owned());
        self
    }

    /// The Mac accepts the key of another one.
    #[must_use]
    pub fn with_key_of(mut self, other: &MacHost) -> Self {
        self.private_key = Some(other.private_key.clone());
        self
    }

    /// The Mac with this program as its `pfctl`.
    #[must_use]
    pub fn pfctl(mut self, program: &Path) -> Self {
        self.pfctl = Some(program.to_owned());
        self
    }

    /// The directory that becomes the Mac's disk, for a [`SmallDisk`](crate::disk::SmallDisk).
    pub fn disk(&self) -> PathBuf {
        HostDirectory::new(&self.path).root()
    }

    /// Boots the Mac; `None`, with a word about it, where this user or system cannot.
    pub async fn start(self) -> Result<Option<MacHost>> {
        let Some(openssh) = openssh(&self.sandbox)? else { return Ok(None) };
        let directory = HostDirectory::new(&self.path);
        let private_key = match &self.private_key {
            Some(key) => key.clone(),
            None => {
                let key = self.path.join("id_ed25519");
                run(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&key))?;
                key
            }
        };
        let public_key = std::fs::read_to_string(private_key.with_extension("pub"))?.trim().to_owned();
        let settings = Settings {
            user: USER.to_owned(),
            password: PASSWORD.to_owned(),
            host_name: "Mac-mini.local".to_owned(),
            authorized_keys: self
                .has_key
                .then_some(public_key)
                .into_iter()
                .chain(self.further_keys)
                .collect(),
            openssh: Some(openssh),
            tart: self.has_tart.then(programs::simulated_tart).transpose()?,
            pfctl: self.pfctl.clone(),
        };
        std::fs::create_dir(directory.simulator())?;
        std::fs::write(directory.settings(), serde_json::to_vec_pretty(&settings)?)?;
        let mut command = self.sandbox.command(programs::find("mac-sim")?);
        // The Mac has power as long as this pipe is open.
        command.arg("power").arg(&self.path).stdin(Stdio::piped());
        let process = Process::start("mac-sim", &mut command, &self.path.join("log"))?;
        let mut host = MacHost {
            sandbox: self.sandbox,
            process,
            known_hosts: self.path.join("known_hosts"),
            directory,
            port: 0,
            private_key,
            fingerprint: String::new(),
        };
        host.wait_for_boot().await?;
        host.learn_address()?;
        Ok(Some(host))
    }
}

impl MacHost {
    /// A Mac in a sandbox, with tart.
    #[expect(clippy::new_ret_no_self, reason = "a Mac is described before it is started")]
    pub fn new(sandbox: &Sandbox) -> Result<MacHostBuilder> {
        let path = sandbox.directory("mac-host")?;
        std::fs::create_dir(HostDirectory::new(&path).root())?;
        Ok(MacHostBuilder {
            sandbox: sandbox.clone(),
            has_tart: true,
            has_key: true,
            further_keys: Vec::new(),
            private_key: None,
            pfctl: None,
            path,
        })
    }

    /// Where its sshd is reached.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// The user of the Mac, who logs in over SSH.
    pub fn user(&self) -> &str {
        USER
    }

    /// That user's password.
    pub fn password(&self) -> &str {
        PASSWORD
    }

    /// The file with the private key that the Mac accepts.
    pub fn private_key(&self) -> &Path {
        &self.private_key
    }

    /// The file with its host key, as `ssh` keeps it.
    pub fn known_hosts(&self) -> &Path {
        &self.known_hosts
    }

    /// The fingerprint of its host key, as `SHA256:…`.
    pub fn host_key_fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// The sandbox that it is in.
    pub fn sandbox(&self) -> &Sandbox {
        &self.sandbox
    }

    /// Its root directory, on the machine that runs the test.
    pub fn root(&self) -> PathBuf {
        self.directory.root()
    }

    /// A file of the Mac, on the machine that runs the test.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root().join(path.trim_start_matches('/'))
    }

    /// What its simulated programs were called with, a line each.
    pub fn calls(&self) -> Result<Vec<String>> {
        let text = std::fs::read_to_string(self.directory.calls())?;
        Ok(text.lines().map(str::to_owned).collect())
    }

    /// What its launchd and its hardware say.
    pub fn log(&self) -> Result<String> {
        self.process.log()
    }

    /// Switches a fault on.
    pub fn set_fault(&self, fault: Fault, parameter: &str) -> Result<()> {
        Ok(FaultDirectory::of_host(&self.directory).switch_on(fault, parameter)?)
    }

    /// Switches a fault off. A fault that is off stays off.
    pub fn clear_fault(&self, fault: Fault) -> Result<()> {
        FaultDirectory::of_host(&self.directory).switch_off(fault)?;
        Ok(())
    }

    /// Puts an image into a registry that the Mac's tart can reach; `description` becomes its `image.json`.
    pub fn add_image(&self, name: &str, description: &impl Serialize) -> Result<PathBuf> {
        mac::add_image(&self.tart_host(), name, description)
    }

    /// `TART_SIM_HOST` of the Mac's tart, on the machine that runs the test.
    pub fn tart_host(&self) -> PathBuf {
        self.path(TART_HOST)
    }

    /// Restarts the Mac in an orderly way, and waits until it is up again.
    pub async fn reboot(&self) -> Result<()> {
        // launchd ends before or after it has answered.
        let _ = self.ask(&Request::Reboot).await;
        self.wait_for_boot().await
    }

    /// Ends all SSH connections; what was started through them goes on.
    pub async fn cut_connections(&self) -> Result<()> {
        self.ask(&Request::CutConnections).await.map(drop)
    }

    /// Waits until launchd answers.
    pub async fn wait_for_boot(&self) -> Result<()> {
        eventually("the simulated Mac to boot", BOOT_DEADLINE, async || {
            let ended = self.process.exit_status()?;
            ensure!(ended.is_none(), "it has ended: {}", self.process.last_lines());
            self.ask(&Request::List(Domain::System)).await.map(drop)
        })
        .await
        .with_context(|| self.process.last_lines())
    }

    /// What launchd says, without `launchctl`.
    async fn ask(&self, request: &Request) -> Result<Reply> {
        let (socket, request) = (self.directory.control_socket(), request.clone());
        let answer = tokio::task::spawn_blocking(move || control::ask(&socket, &request, Some(SSH_DEADLINE)));
        Ok(answer.await?.context("launchd does not answer")??)
    }

    fn learn_address(&mut self) -> Result<()> {
        let port = std::fs::read_to_string(self.directory.port())?;
        self.port = port.trim().parse().context("the Mac's port is no number")?;
        let host_key = self.directory.simulator().join("host_key.pub");
        let shown = run(Command::new("ssh-keygen").arg("-lf").arg(&host_key))?;
        let fingerprint = shown.split_whitespace().nth(1).context("ssh-keygen shows no fingerprint")?;
        fingerprint.clone_into(&mut self.fingerprint);
        let key = std::fs::read_to_string(host_key)?;
        std::fs::write(&self.known_hosts, format!("[127.0.0.1]:{} {key}", self.port))?;
        Ok(())
    }

    /// The system's `ssh`, which runs a script in the login shell of the Mac's user.
    pub fn ssh_command(&self, script: &str) -> Command {
        let mut command = self.sandbox.command("ssh");
        let known_hosts = format!("UserKnownHostsFile={}", self.known_hosts.display());
        command.args([
            "-F",
            "/dev/null",
            "-o",
            "IdentitiesOnly=yes",
            "-o",
            "BatchMode=yes",
            "-o",
            &known_hosts,
        ]);
        command.arg("-i").arg(&self.private_key).args(["-p", &self.port.to_string()]);
        command.arg(format!("{USER}@127.0.0.1")).arg(script);
        command
    }

    /// Runs a script in the login shell of the Mac's user.
    pub async fn ssh(&self, script: &str) -> Result<Outcome> {
        self.ssh_with_input(script, b"").await
    }

    /// Runs a script with something on stdin.
    pub async fn ssh_with_input(&self, script: &str, input: &[u8]) -> Result<Outcome> {
        let mut command = tokio::process::Command::from(self.ssh_command(script));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().context("cannot start ssh")?;
        let mut stdin = child.stdin.take().context("its stdin is not a pipe")?;
        let talk = async {
            // A script that does not read its input says so by its exit code.
            let ((), output) = tokio::join!(
                async move {
                    let _ = stdin.write_all(input).await;
                },
                child.wait_with_output()
            );
            output
        };
        let output = tokio::time::timeout(SSH_DEADLINE, talk).await.with_context(|| {
            format!("ssh did not end within {SSH_DEADLINE:?}\n{}", self.process.last_lines())
        })??;
        Ok(Outcome {
            status: output.status,
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }
}

/// Where sshd is; `None`, with a word about it, where a simulated Mac cannot be.
fn openssh(sandbox: &Sandbox) -> Result<Option<PathBuf>> {
    if !cfg!(target_os = "linux") || !nix::unistd::geteuid().is_root() {
        skip::say("a simulated Mac has users and mounts of its own; run it as root on Linux")?;
        return Ok(None);
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("mac-sim/openssh");
    let output =
        sandbox.command(&script).output().with_context(|| format!("cannot start {}", script.display()))?;
    if !output.status.success() {
        skip::say(String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or("no sshd"))?;
        return Ok(None);
    }
    Ok(Some(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim_end())))
}

/// Runs a short command and returns its stdout.
fn run(command: &mut Command) -> Result<String> {
    let output =
        command.stdin(Stdio::null()).output().with_context(|| format!("cannot start {command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
