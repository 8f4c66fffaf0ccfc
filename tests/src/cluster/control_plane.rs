//! A real Kubernetes control plane: etcd, kube-apiserver, kube-controller-manager, kube-scheduler.
//!
//! It is set up as kubeadm does it: TLS, the Node authorizer and RBAC, `NodeRestriction`, bootstrap tokens, and signing of kubelet
//! certificates.

mod components;
mod objects;
mod pki;
mod serving_certificate;

use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use base64::{Engine, prelude::BASE64_STANDARD};
use kube::Client;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use sha2::{Digest as _, Sha256};
use tokio::sync::OnceCell;

use crate::certificates::{Authority, Pair};
use crate::kubeconfig::{self, Credentials};
use crate::kubectl::Kubectl;
use crate::process::Process;
use crate::programs;
use crate::sandbox::Sandbox;
use crate::wait::eventually;

use components::{Components, Ports};
use pki::Pki;

const PROGRAMS: [&str; 5] =
    ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"];
const START_DEADLINE: Duration = Duration::from_secs(90);
/// A port that was free a moment ago may be taken by the time that a component listens on it.
const ATTEMPTS: u32 = 3;

/// A running control plane; dropping it kills it.
#[derive(Debug)]
pub struct ControlPlane {
    sandbox: Sandbox,
    directory: PathBuf,
    programs: PathBuf,
    server: String,
    pki: Pki,
    admin: PathBuf,
    components: Vec<Process>,
    cluster_info: OnceCell<()>,
}

/// What a user needs to join a cluster, as `kubeadm token create --print-join-command` prints it.
#[derive(Debug, Clone)]
pub struct JoinCommand {
    /// The address of the API server, `host:port`.
    pub api_server: String,
    /// A bootstrap token.
    pub token: String,
    /// The hash of the public key of the cluster's CA.
    pub ca_cert_hash: String,
}

/// How a control plane is to differ from the usual one.
#[derive(Debug, Clone, Default)]
pub struct Builder {
    api_server_flags: Vec<String>,
    controller_manager_flags: Vec<String>,
}

impl Builder {
    /// How long the certificates live that the cluster signs.
    #[must_use]
    pub fn cluster_signing_duration(self, duration: Duration) -> Self {
        self.controller_manager_flag(&format!("--cluster-signing-duration={}s", duration.as_secs()))
    }

    /// How long a Node may be silent before it is Unknown.
    #[must_use]
    pub fn node_monitor_grace_period(self, period: Duration) -> Self {
        self.controller_manager_flag(&format!("--node-monitor-grace-period={}s", period.as_secs()))
            // It looks every 5 s otherwise, which may be longer than the period.
            .controller_manager_flag("--node-monitor-period=1s")
    }

    /// Any other flag of kube-apiserver, as `--name=value`.
    #[must_use]
    pub fn api_server_flag(mut self, flag: &str) -> Self {
        self.api_server_flags.push(flag.to_owned());
        self
    }

    /// Any other flag of kube-controller-manager, as `--name=value`.
    #[must_use]
    pub fn controller_manager_flag(mut self, flag: &str) -> Self {
        self.controller_manager_flags.push(flag.to_owned());
        self
    }

    /// Starts the control plane and returns when it is usable.
    pub async fn start(&self, sandbox: &Sandbox) -> Result<ControlPlane> {
        let programs = programs::control_plane(sandbox, &PROGRAMS).await?;
        let mut attempt = 1;
        loop {
            match self.try_start(sandbox, &programs).await {
                Err(error) if attempt < ATTEMPTS && lost_a_port(&error) => attempt += 1,
                result => return result.context("the control plane did not start"),
            }
        }
    }

    async fn try_start(&self, sandbox: &Sandbox, programs: &Path) -> Result<ControlPlane> {
        let directory = sandbox.directory("control-plane")?;
        let ports = Ports::free()?;
        let mut control_plane = ControlPlane {
            sandbox: sandbox.clone(),
            programs: programs.to_owned(),
            server: format!("https://127.0.0.1:{}", ports.api_server),
            pki: Pki::new(&directory)?,
            admin: directory.join("admin.kubeconfig"),
            components: Vec::new(),
            cluster_info: OnceCell::new(),
            directory,
        };
        let admin = control_plane.pki.cluster.client("admin", Some("system:masters"))?;
        control_plane.write_kubeconfig(&control_plane.admin, admin)?;
        let client = control_plane.client().await?;

        let components = Components { control_plane: &control_plane, ports: &ports };
        let etcd = components.etcd()?;
        let api_server = components.api_server(&self.api_server_flags)?;
        control_plane.components.extend([etcd, api_server]);
        control_plane.while_running(objects::api_server_ready(&client, START_DEADLINE)).await?;

        let components = Components { control_plane: &control_plane, ports: &ports };
        let controller_manager = components.controller_manager(&self.controller_manager_flags)?;
        let scheduler = components.scheduler()?;
        control_plane.components.extend([controller_manager, scheduler]);
        let usable = async {
            objects::allow_nodes_to_join(&client).await?;
            objects::namespace_ready(&client, "default", START_DEADLINE).await
        };
        control_plane.while_running(usable).await?;
        Ok(control_plane)
    }
}

impl ControlPlane {
    /// The control plane that all tests of one process share; the first to ask starts it.
    pub async fn shared() -> Result<&'static Self> {
        static SHARED: OnceCell<ControlPlane> = OnceCell::const_new();
        SHARED.get_or_try_init(async || Self::builder().start(&Sandbox::shared()?).await).await
    }

    /// A control plane for one test that needs another configuration.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The sandbox that it runs in.
    pub fn sandbox(&self) -> &Sandbox {
        &self.sandbox
    }

    /// The API server's URL.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// The authority of the cluster: it signs the API server's certificate, its clients' and the kubelets'.
    pub fn authority(&self) -> &Authority {
        &self.pki.cluster
    }

    /// The certificate that the API server shows to kubelets.
    pub fn kubelet_client(&self) -> &Pair {
        &self.pki.kubelet_client
    }

    /// A kubeconfig that may do everything.
    pub fn admin_kubeconfig(&self) -> &Path {
        &self.admin
    }

    /// Makes a kubeconfig with the identity of a Node, as a kubelet has it after TLS bootstrap.
    pub fn node_kubeconfig(&self, node: &str) -> Result<PathBuf> {
        self.user_kubeconfig(&format!("system:node:{node}"), Some("system:nodes"))
    }

    /// Makes a kubeconfig for any user, who may be in a group.
    pub fn user_kubeconfig(&self, user: &str, group: Option<&str>) -> Result<PathBuf> {
        let path = self.directory.join(format!("{}.kubeconfig", user.replace([':', '/'], "-")));
        self.write_kubeconfig(&path, self.pki.cluster.client(user, group)?)?;
        Ok(path)
    }

    /// Makes a bootstrap token that the API server accepts, and a kubeconfig that has nothing but it.
    pub async fn bootstrap_kubeconfig(&self) -> Result<PathBuf> {
        let (id, token) = objects::create_bootstrap_token(&self.client().await?).await?;
        let path = self.directory.join(format!("bootstrap-{id}.kubeconfig"));
        kubeconfig::write(
            &path,
            &self.server,
            &self.authority().pair().certificate,
            &Credentials::Token(token),
        )?;
        // The API server learns of a new token by its own watch.
        let client = kubeconfig::client(&path).await?;
        eventually("a bootstrap token that is accepted", START_DEADLINE, async || {
            Ok(client.apiserver_version().await.map(drop)?)
        })
        .await?;
        Ok(path)
    }

    /// Makes a bootstrap token, for which the cluster has signed its information.
    pub async fn join_command(&self) -> Result<JoinCommand> {
        let command = self.join_command_until(None).await?;
        let id = command.token.split('.').next().unwrap_or_default();
        objects::cluster_info_signed(&self.client().await?, id, START_DEADLINE).await?;
        Ok(command)
    }

    /// The same with a token that is no longer valid.
    pub async fn expired_join_command(&self) -> Result<JoinCommand> {
        self.join_command_until(Some("2020-01-01T00:00:00Z")).await
    }

    async fn join_command_until(&self, expiration: Option<&str>) -> Result<JoinCommand> {
        let client = self.client().await?;
        let authority = &self.authority().pair().certificate;
        let shown = async || {
            let data = BASE64_STANDARD.encode(authority);
            let server = &self.server;
            let cluster = format!("{{server: '{server}', certificate-authority-data: {data}}}");
            let kubeconfig =
                format!("apiVersion: v1\nkind: Config\nclusters:\n- cluster: {cluster}\n  name: ''\n");
            objects::show_cluster_info(&client, &kubeconfig).await
        };
        self.cluster_info.get_or_try_init(shown).await?;
        let (_, token) = objects::create_token(&client, expiration).await?;
        let der = CertificateDer::from_pem_slice(authority.as_bytes())?;
        let (_, certificate) = x509_parser::parse_x509_certificate(&der)?;
        let hash = Sha256::digest(certificate.public_key().raw);
        let digits = hash.iter().fold(String::new(), |digits, byte| digits + &format!("{byte:02x}"));
        let api_server = self.server.trim_start_matches("https://").to_owned();
        Ok(JoinCommand { api_server, token, ca_cert_hash: format!("sha256:{digits}") })
    }

    /// A client that may do everything; it belongs to the runtime of the caller.
    pub async fn client(&self) -> Result<Client> {
        kubeconfig::client(&self.admin).await
    }

    /// Makes a namespace `<prefix>-<random>` in which Pods can be created at once.
    pub async fn namespace(&self, prefix: &str) -> Result<String> {
        let client = self.client().await?;
        let name = objects::create_namespace(&client, prefix).await?;
        objects::namespace_ready(&client, &name, START_DEADLINE).await?;
        Ok(name)
    }

    /// The real kubectl, as a user who may do everything.
    pub fn kubectl(&self) -> Kubectl {
        self.kubectl_as(&self.admin)
    }

    /// The real kubectl with any kubeconfig.
    pub fn kubectl_as(&self, kubeconfig: &Path) -> Kubectl {
        Kubectl::new(self.programs.join("kubectl"), kubeconfig.to_owned(), self.sandbox.clone())
    }

    /// The directory with the components' logs, `<component>.log`.
    pub fn logs(&self) -> &Path {
        &self.directory
    }

    fn write_kubeconfig(&self, path: &Path, pair: Pair) -> Result<()> {
        let authority = &self.pki.cluster.pair().certificate;
        kubeconfig::write(path, &self.server, authority, &Credentials::Certificate(pair))
    }

    /// Waits for something that needs all components, and fails as soon as one of them dies.
    async fn while_running<T>(&self, wait: impl Future<Output = Result<T>>) -> Result<T> {
        let death = eventually("a component to die", START_DEADLINE * 2, async || {
            let death = self.components.iter().find_map(|component| component.ensure_running().err());
            death.context("all are running")
        });
        tokio::select! {
            result = wait => match self.components.iter().try_for_each(Process::ensure_running) {
                Ok(()) => result.with_context(|| self.last_lines()),
                Err(death) => Err(death),
            },
            death = death => Err(death?),
        }
    }

    fn last_lines(&self) -> String {
        self.components.iter().map(Process::last_lines).collect::<Vec<_>>().join("\n")
    }
}

fn lost_a_port(error: &anyhow::Error) -> bool {
    format!("{error:#}").contains("address already in use")
}
