//! The real kubectl.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::process;
use crate::sandbox::Sandbox;

/// Far more than the grace period that a deletion waits for by default.
const DEADLINE: Duration = Duration::from_secs(90);

/// Runs kubectl as one user.
#[derive(Debug, Clone)]
pub struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
    sandbox: Sandbox,
    namespace: Option<String>,
    deadline: Duration,
}

impl Kubectl {
    pub(crate) fn new(program: PathBuf, kubeconfig: PathBuf, sandbox: Sandbox) -> Self {
        Self { program, kubeconfig, sandbox, namespace: None, deadline: DEADLINE }
    }

    /// The same, in a namespace.
    #[must_use]
    pub fn namespace(mut self, namespace: &str) -> Self {
        self.namespace = Some(namespace.to_owned());
        self
    }

    /// The same, with another deadline.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Runs kubectl with arguments and returns its stdout; the error has its stderr.
    pub async fn run<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Result<String> {
        self.run_with_input(arguments, "").await
    }

    /// The same, with something on its stdin.
    pub async fn run_with_input<A: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = A>,
        input: &str,
    ) -> Result<String> {
        let mut command = self.command();
        command.args(arguments);
        process::run(command, input, self.deadline).await
    }

    /// `kubectl apply` of a manifest, in YAML or JSON.
    pub async fn apply(&self, manifest: &str) -> Result<String> {
        self.run_with_input(["apply", "--filename", "-"], manifest).await
    }

    /// A command to start oneself, for what does not end or is talked to: port-forward, attach, logs --follow.
    pub fn command(&self) -> Command {
        let mut command = self.sandbox.command(&self.program);
        command.arg("--kubeconfig").arg(&self.kubeconfig);
        if let Some(namespace) = &self.namespace {
            command.args(["--namespace", namespace]);
        }
        // Not the user's: tests at once, and none of it is worth keeping.
        command.env("KUBECACHEDIR", self.sandbox.path().join("kubectl"));
        command.env_remove("KUBECONFIG");
        // A kubectl lives for a moment: threads and garbage collection cost it a fifth of its processor time, and win nothing.
        command.env("GOMAXPROCS", "1").env("GOGC", "off");
        command
    }
}
