//! The shipped `tart-kubelet`, run as a process.

use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::Result;
use nix::sys::signal::Signal;

use crate::mac::Mac;
use crate::process::Process;
use crate::programs;

/// An agent that is not running: its Mac, its flags and its state.
#[derive(Debug, Clone)]
pub struct Agent {
    mac: Mac,
    program: PathBuf,
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
            program: programs::find("tart-kubelet")?,
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
            // How much is left on the machine that runs the tests is not what most of them are about.
            .flag("--eviction-hard", ""))
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

    /// The Mac that it is for.
    pub fn mac(&self) -> &Mac {
        &self.mac
    }

    /// The directory with its state.
    pub fn state_dir(&self) -> PathBuf {
        self.directory.join("state")
    }

    /// Starts the agent; its log goes on where an earlier run's ended.
    pub fn start(&self) -> Result<RunningAgent> {
        let mut command = self.mac.command(&self.program);
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

    /// What it has logged so far, in all its runs.
    pub fn log(&self) -> Result<String> {
        self.process.log()
    }
}
