//! The real helm, and the chart of this workspace.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;

use crate::control_plane::ControlPlane;
use crate::process;
use crate::programs;
use crate::sandbox::Sandbox;

/// An install talks to the API server some dozens of times.
const DEADLINE: Duration = Duration::from_mins(3);

/// Where the chart is.
pub fn chart() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/chart")
}

/// Runs helm, with a cluster or without.
#[derive(Debug, Clone)]
pub struct Helm {
    program: PathBuf,
    sandbox: Sandbox,
    cluster: Option<(PathBuf, String)>,
}

impl Helm {
    /// Without a cluster, for what only renders.
    pub async fn new(sandbox: &Sandbox) -> Result<Self> {
        let program = programs::control_plane(sandbox, &["helm"]).await?.join("helm");
        Ok(Self { program, sandbox: sandbox.clone(), cluster: None })
    }

    /// In a namespace of a cluster, as a user who may do everything.
    #[must_use]
    pub fn on(mut self, control_plane: &ControlPlane, namespace: &str) -> Self {
        self.cluster = Some((control_plane.admin_kubeconfig().to_owned(), namespace.to_owned()));
        self
    }

    /// The program.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Runs helm with arguments and returns its stdout; the error has its stderr.
    pub async fn run<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Result<String> {
        let mut command = self.sandbox.command(&self.program);
        for (variable, directory) in
            [("HELM_CACHE_HOME", "cache"), ("HELM_CONFIG_HOME", "config"), ("HELM_DATA_HOME", "data")]
        {
            command.env(variable, self.sandbox.path().join("helm").join(directory));
        }
        command.env_remove("KUBECONFIG");
        if let Some((kubeconfig, namespace)) = &self.cluster {
            command.arg("--kubeconfig").arg(kubeconfig).args(["--namespace", namespace]);
        }
        command.args(arguments);
        process::run(command, "", DEADLINE).await
    }

    /// The chart with these values, as helm would send it to a cluster.
    pub async fn template(&self, namespace: &str, values: &[&str]) -> Result<String> {
        let chart = chart().display().to_string();
        let mut arguments = vec!["template", "macs", &chart, "--namespace", namespace];
        for value in values {
            arguments.extend(["--set-json", value]);
        }
        self.run(arguments).await
    }
}
