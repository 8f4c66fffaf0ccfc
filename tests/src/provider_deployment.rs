//! The chart's Deployment of the provider, on a control plane without a kubelet that could run it.
//!
//! A process stands for each replica. It has the arguments and the environment of the Deployment as the API server has it, and the identity of its
//! service account. What a Pod has besides is added: a kubeconfig in place of the mounted token, the agent's file of the image, and ports of its own.

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec};
use k8s_openapi::api::core::v1::{Container, Secret};
use kube::Api;
use nix::sys::signal::Signal;

use crate::control_plane::ControlPlane;
use crate::kubeconfig::{self, Credentials};
use crate::process::Process;
use crate::programs;

/// A pass that has begun gets 20 s.
const END_DEADLINE: Duration = Duration::from_mins(1);
/// Tokens are not renewed here, as a kubelet would.
const TOKEN_LIFE: &str = "--duration=24h";

/// The Pods of the Deployment, as processes; dropping it kills them.
#[derive(Debug)]
pub struct ProviderDeployment {
    namespace: String,
    name: String,
    directory: PathBuf,
    environment: Vec<(String, String)>,
    images: Vec<(String, PathBuf)>,
    replicas: Vec<Replica>,
    started: usize,
    /// What the replicas were started from.
    rolled_out: Option<DeploymentSpec>,
}

#[derive(Debug)]
struct Replica {
    process: Process,
    metrics: String,
}

impl ProviderDeployment {
    /// A Deployment whose Pods are not started yet. `environment` is what the machine has and a cluster has not, such as the address of a simulator.
    pub fn new(
        control_plane: &ControlPlane,
        namespace: &str,
        name: &str,
        environment: &[(&str, &str)],
    ) -> Result<Self> {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Ok(Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            directory: control_plane.sandbox().directory("provider")?,
            environment: environment.iter().map(own).collect(),
            images: Vec::new(),
            replicas: Vec::new(),
            started: 0,
            rolled_out: None,
        })
    }

    /// Publishes an image: the agent that it has under a tag.
    pub fn publish(&mut self, tag: &str, agent: &Path) {
        self.images.push((tag.to_owned(), agent.to_owned()));
    }

    /// Brings the processes to what the Deployment says now: new ones are started, then the old ones are told to end.
    pub async fn roll_out(&mut self, control_plane: &ControlPlane) -> Result<()> {
        let client = control_plane.client().await?;
        let deployment = Api::<Deployment>::namespaced(client, &self.namespace).get(&self.name).await?;
        let spec = deployment.spec.context("a Deployment without a spec")?;
        if self.rolled_out.as_ref() == Some(&spec) {
            return Ok(());
        }
        self.rolled_out = Some(spec.clone());
        let pod = spec.template.spec.context("a Deployment without a Pod")?;
        ensure!(pod.volumes.unwrap_or_default().is_empty(), "volumes are not mounted here");
        let container = pod.containers.first().context("a Deployment without a container")?;
        let account = pod.service_account_name.context("a Deployment without a service account")?;
        let kubeconfig = self.kubeconfig(control_plane, &account).await?;
        let old = std::mem::take(&mut self.replicas);
        for _ in 0..spec.replicas.unwrap_or(1) {
            let replica = self.start(control_plane, container, &kubeconfig).await?;
            self.replicas.push(replica);
        }
        for replica in &old {
            replica.process.signal(Signal::SIGTERM)?;
        }
        for replica in old {
            let ended = replica.process.wait_for_exit(END_DEADLINE).await?;
            ensure!(ended.success(), "a provider that was told to end: {ended}");
        }
        Ok(())
    }

    /// An error with the end of its log, when a process has died.
    pub fn ensure_running(&self) -> Result<()> {
        self.replicas.iter().try_for_each(|replica| replica.process.ensure_running())
    }

    /// Where the metrics of each replica are.
    pub fn metrics_addresses(&self) -> Vec<String> {
        self.replicas.iter().map(|replica| replica.metrics.clone()).collect()
    }

    /// The directory with the logs.
    pub fn logs(&self) -> &Path {
        &self.directory
    }

    /// What all replicas have said, those that have ended, too.
    pub fn log(&self) -> Result<String> {
        let logs = (1..=self.started).map(|number| std::fs::read_to_string(self.log_path(number)));
        Ok(logs.collect::<Result<Vec<_>, _>>()?.concat())
    }

    fn log_path(&self, number: usize) -> PathBuf {
        self.directory.join(format!("{number}.log"))
    }

    async fn kubeconfig(&self, control_plane: &ControlPlane, account: &str) -> Result<PathBuf> {
        let kubectl = control_plane.kubectl().namespace(&self.namespace);
        let token = kubectl.run(["create", "token", account, TOKEN_LIFE]).await?;
        let path = self.directory.join("kubeconfig");
        let authority = &control_plane.authority().pair().certificate;
        let token = Credentials::Token(token.trim().to_owned());
        kubeconfig::write(&path, control_plane.server(), authority, &token)?;
        Ok(path)
    }

    async fn start(
        &mut self,
        control_plane: &ControlPlane,
        container: &Container,
        kubeconfig: &Path,
    ) -> Result<Replica> {
        let image = container.image.as_deref().unwrap_or_default();
        let agent = self.images.iter().find(|(tag, _)| image.ends_with(&format!(":{tag}")));
        let (_, agent) = agent.with_context(|| format!("there is no image {image}"))?;
        let [metrics, health] = free_ports()?;
        let mut command = control_plane.sandbox().command(programs::provider()?);
        command.args(container.args.iter().flatten());
        command.arg("--kubeconfig").arg(kubeconfig).arg("--tartkubelet-binary-path").arg(agent);
        // A person who looks on does not wait for minutes.
        command.arg("--roll-min-ready-time=2s");
        command.arg(format!("--metrics-bind-address=127.0.0.1:{metrics}"));
        command.arg(format!("--health-probe-bind-address=127.0.0.1:{health}"));
        command.envs(self.environment(control_plane, container).await?).env_remove("RUST_LOG");
        self.started += 1;
        let process = Process::start("tart-provider", &mut command, &self.log_path(self.started))?;
        Ok(Replica { process, metrics: format!("127.0.0.1:{metrics}") })
    }

    /// The container's variables, with those of Secrets, and then the machine's.
    async fn environment(
        &self,
        control_plane: &ControlPlane,
        container: &Container,
    ) -> Result<Vec<(String, String)>> {
        let secrets = Api::<Secret>::namespaced(control_plane.client().await?, &self.namespace);
        let mut all = Vec::new();
        for variable in container.env.iter().flatten() {
            let from = variable.value_from.as_ref().and_then(|from| from.secret_key_ref.as_ref());
            let value = match from {
                None => variable.value.clone().unwrap_or_default(),
                Some(from) => {
                    let data = secrets.get(&from.name).await?.data.unwrap_or_default();
                    let value = data.get(&from.key);
                    let value =
                        value.with_context(|| format!("the Secret {} has no {}", from.name, from.key))?;
                    String::from_utf8(value.0.clone())?
                }
            };
            all.push((variable.name.clone(), value));
        }
        all.extend(self.environment.iter().cloned());
        Ok(all)
    }
}

/// Two ports that nothing listens on.
fn free_ports() -> Result<[u16; 2]> {
    let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port");
    // Both are held at once, or the same port might come twice.
    let (first, second) = (bind()?, bind()?);
    Ok([first.local_addr()?.port(), second.local_addr()?.port()])
}
