//! The shipped `tart-kubelet`, run as a process.

use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::clock::Clock;
use crate::mac::Mac;
use crate::process::{self, Process};
use crate::programs;

/// An agent that is not running: its Mac, its flags and its state.
#[derive(Debug, Clone)]
pub struct Agent {
    mac: Mac,
    program: PathBuf,
    starter: Option<PathBuf>,
    directory: PathBuf,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
}

/// An agent that was started; dropping it kills it, but not its VMs.
#[derive(Debug)]
pub struct RunningAgent {
    agent: Agent,
    process: Process,
}

impl Agent {
    /// An agent for a Mac, with a state directory of its own.
    pub fn new(mac: &Mac, node_name: &str, kubeconfig: &Path) -> Result<Self> {
        let directory = mac.sandbox().directory("agent")?;
        let agent = Self {
            mac: mac.clone(),
            program: programs::agent()?,
            starter: None,
            directory,
            arguments: Vec::new(),
            environment: Vec::new(),
        };
        let state = agent.state_dir().display().to_string();
        Ok(agent
            .flag("--kubeconfig", &kubeconfig.display().to_string())
            .flag("--node-name", node_name)
            .flag("--state-dir", &state)
            .flag("--tart-binary", &mac.tart_binary().display().to_string())
            .flag("--dhcp-leases", &mac.dhcp_leases().display().to_string())
            // Many agents run on the machine at once.
            .flag("--metrics-bind-address", "127.0.0.1:0")
            .flag("--address", "127.0.0.1")
            .flag("--port", "0")
            // How much is left on the machine that runs the tests is not what most of them are about.
            .flag("--eviction-hard", "")
            // A VM has no more memory than the Node, which may be smaller than the images that tests simulate.
            .flag("--host-memory-mb", "524288"))
    }

    /// The same, with one more flag and its value.
    #[must_use]
    pub fn flag(mut self, name: &str, value: &str) -> Self {
        self.arguments.push(format!("{name}={value}"));
        self
    }

    /// The same, without a flag that was given before.
    #[must_use]
    pub fn without(mut self, name: &str) -> Self {
        self.arguments.retain(|argument| argument.split('=').next() != Some(name));
        self
    }

    /// The same, with one more flag that has no value.
    #[must_use]
    pub fn switch(mut self, name: &str) -> Self {
        self.arguments.push(name.to_owned());
        self
    }

    /// The same, with one more environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The same, run by a clock that the test moves. Its shims and its tarts are, too.
    #[must_use]
    pub fn clock(mut self, clock: &Clock) -> Self {
        self.environment.extend(clock.environment());
        self
    }

    /// The same, started by another program, which gets the agent and its arguments as its own.
    #[must_use]
    pub fn started_by(mut self, program: &Path) -> Self {
        self.starter = Some(program.to_owned());
        self
    }

    /// The same, as another program: an agent of another release.
    #[must_use]
    pub fn program(mut self, program: &Path) -> Self {
        program.clone_into(&mut self.program);
        self
    }

    /// The Mac that it is for.
    pub fn mac(&self) -> &Mac {
        &self.mac
    }

    /// The directory with its state.
    pub fn state_dir(&self) -> PathBuf {
        self.directory.join("state")
    }

    /// Runs a sub-command of its program with the agent's flags, and returns its stdout; the error has its stderr.
    pub async fn run(&self, words: &[&str]) -> Result<String> {
        let mut command = self.mac.command(&self.program);
        command.args(words).args(&self.arguments);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        process::run(command, "", Duration::from_mins(1)).await
    }

    /// Starts a sub-command of its program with the agent's flags; what it says goes to a log of its own.
    pub fn begin(&self, words: &[&str]) -> Result<Process> {
        let mut command = self.mac.command(&self.program);
        command.args(words).args(&self.arguments);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        let log = self.mac.sandbox().directory("command")?.join("log");
        Process::start(&words.join(" "), &mut command, &log)
    }

    /// Starts the agent; its log goes on where an earlier run's ended.
    pub fn start(&self) -> Result<RunningAgent> {
        let mut command = match &self.starter {
            Some(starter) => {
                let mut command = self.mac.command(starter);
                command.arg(&self.program);
                command
            }
            None => self.mac.command(&self.program),
        };
        command.args(&self.arguments).envs(self.environment.iter().map(|(name, value)| (name, value)));
        let process = Process::start("tart-kubelet", &mut command, &self.directory.join("tart-kubelet.log"))?;
        Ok(RunningAgent { agent: self.clone(), process })
    }
}

impl RunningAgent {
    /// What it was started from.
    pub fn agent(&self) -> &Agent {
        &self.agent
    }

    /// Its process.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Sends it a signal.
    pub fn kill(&self, signal: Signal) -> Result<()> {
        self.process.signal(signal)
    }

    /// Kills it at once.
    pub fn kill9(&self) -> Result<ExitStatus> {
        self.process.kill9()
    }

    /// Waits until it has ended.
    pub async fn wait_for_exit(&self, deadline: Duration) -> Result<ExitStatus> {
        self.process.wait_for_exit(deadline).await
    }

    /// Kills it if it runs, and starts it again with the same arguments and state.
    pub fn restart(self) -> Result<Self> {
        self.kill9()?;
        self.agent.start()
    }

    /// Asks its local port for a path, and returns the status and the text of the answer.
    pub async fn ask(&self, path: &str) -> Result<(u16, String)> {
        let ask = async {
            let mut stream = TcpStream::connect(self.metrics_address()?).await?;
            let request = format!("GET {path} HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            let (head, body) =
                answer.split_once("\r\n\r\n").context("an answer without an end of its head")?;
            let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
            Ok((status.context("an answer without a status")?, body.to_owned()))
        };
        let answer = tokio::time::timeout(Duration::from_secs(30), ask).await;
        answer.context("the agent's local port does not answer")?
    }

    /// A figure from its `/metrics`, by its name with labels.
    pub async fn metric(&self, name: &str) -> Result<f64> {
        let (_, page) = self.ask("/metrics").await?;
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.with_context(|| format!("no {name} in\n{page}"))?.parse().context("not a figure")
    }

    /// Where it serves health and metrics, `host:port`.
    pub fn metrics_address(&self) -> Result<String> {
        let log = self.log()?;
        let lines = log.lines().rev().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        let said = lines.filter(|line| line["message"] == "serving health and metrics");
        let address = said.map(|line| line["address"].as_str().map(str::to_owned)).next().flatten();
        address.context("the agent serves no metrics yet")
    }

    /// What it has logged so far, in all its runs.
    pub fn log(&self) -> Result<String> {
        self.process.log()
    }
}
