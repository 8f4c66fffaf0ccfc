//! The components and their flags.

use std::net::{Ipv4Addr, TcpListener};
use std::process::Command;

use anyhow::{Context, Result};

use super::ControlPlane;
use crate::kubeconfig::{self, Credentials};
use crate::process::Process;

/// The loopback ports of one control plane.
#[derive(Debug)]
pub(super) struct Ports {
    pub(super) api_server: u16,
    etcd: u16,
    etcd_peers: u16,
}

impl Ports {
    /// Ports that are free now; another process may take one before a component does.
    pub(super) fn free() -> Result<Self> {
        // All are held at once, or the same port might come twice.
        let bind =
            || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port on the loopback interface");
        let listeners = [bind()?, bind()?, bind()?];
        let port = |listener: &TcpListener| listener.local_addr().map(|address| address.port());
        let [api_server, etcd, etcd_peers] = &listeners;
        Ok(Self { api_server: port(api_server)?, etcd: port(etcd)?, etcd_peers: port(etcd_peers)? })
    }
}

/// Starts the components of a control plane.
pub(super) struct Components<'a> {
    pub(super) control_plane: &'a ControlPlane,
    pub(super) ports: &'a Ports,
}

impl Components<'_> {
    pub(super) fn etcd(&self) -> Result<Process> {
        let mut etcd = self.command("etcd");
        let peers = format!("http://127.0.0.1:{}", self.ports.etcd_peers);
        etcd.arg("--data-dir").arg(self.control_plane.directory.join("etcd"));
        etcd.args(["--listen-client-urls", &self.etcd_url(), "--advertise-client-urls", &self.etcd_url()]);
        etcd.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
        etcd.args(["--initial-cluster", &format!("default={peers}")]);
        // Nothing of this survives the test anyway.
        etcd.arg("--unsafe-no-fsync");
        self.start("etcd", &mut etcd)
    }

    pub(super) fn api_server(&self, flags: &[String]) -> Result<Process> {
        let pki = &self.control_plane.pki;
        // Of another release, if a variable names one.
        let mut server = match std::env::var_os("TART_KUBELET_TEST_API_SERVER") {
            Some(program) => self.control_plane.sandbox.command(program),
            None => self.command("kube-apiserver"),
        };
        server.args(["--etcd-servers", &self.etcd_url()]);
        server.args(["--bind-address", "127.0.0.1", "--advertise-address", "127.0.0.1"]);
        server.args(["--secure-port", &self.ports.api_server.to_string()]);
        server.arg("--tls-cert-file").arg(&pki.serving_files.0);
        server.arg("--tls-private-key-file").arg(&pki.serving_files.1);
        // There is no Node that could reach the `kubernetes` Service.
        server.args(["--endpoint-reconciler-type", "none", "--service-cluster-ip-range", "10.96.0.0/16"]);

        server.args(["--authorization-mode", "Node,RBAC", "--enable-admission-plugins", "NodeRestriction"]);
        server.arg("--enable-bootstrap-token-auth");
        server.arg("--client-ca-file").arg(&pki.cluster_files.0);

        server.args(["--service-account-issuer", "https://kubernetes.default.svc.cluster.local"]);
        server.arg("--service-account-signing-key-file").arg(&pki.service_account_files.0);
        server.arg("--service-account-key-file").arg(&pki.service_account_files.1);

        server.arg("--kubelet-client-certificate").arg(&pki.kubelet_client_files.0);
        server.arg("--kubelet-client-key").arg(&pki.kubelet_client_files.1);
        // Kubelets' serving certificates are really checked.
        server.arg("--kubelet-certificate-authority").arg(&pki.cluster_files.0);
        server.args(["--kubelet-preferred-address-types", "InternalIP,Hostname"]);

        server.arg("--requestheader-client-ca-file").arg(&pki.front_proxy_files.0);
        server.args(["--requestheader-allowed-names", "front-proxy-client"]);
        server.args(["--requestheader-username-headers", "X-Remote-User"]);
        server.args(["--requestheader-group-headers", "X-Remote-Group"]);
        server.args(["--requestheader-extra-headers-prefix", "X-Remote-Extra-"]);
        server.arg("--proxy-client-cert-file").arg(&pki.front_proxy_client_files.0);
        server.arg("--proxy-client-key-file").arg(&pki.front_proxy_client_files.1);
        // No kube-proxy runs where the API server does: it has to find the endpoints of aggregated APIs itself.
        server.arg("--enable-aggregator-routing");
        server.args(flags);
        self.start("kube-apiserver", &mut server)
    }

    pub(super) fn controller_manager(&self, flags: &[String]) -> Result<Process> {
        let pki = &self.control_plane.pki;
        let mut manager = self.client_command("kube-controller-manager")?;
        manager.args([
            "--controllers",
            "*,bootstrapsigner,tokencleaner",
            "--use-service-account-credentials",
        ]);
        manager.arg("--service-account-private-key-file").arg(&pki.service_account_files.0);
        manager.arg("--root-ca-file").arg(&pki.cluster_files.0);
        manager.arg("--cluster-signing-cert-file").arg(&pki.cluster_files.0);
        manager.arg("--cluster-signing-key-file").arg(&pki.cluster_files.1);
        manager.args(flags);
        self.start("kube-controller-manager", &mut manager)
    }

    pub(super) fn scheduler(&self) -> Result<Process> {
        let mut scheduler = self.client_command("kube-scheduler")?;
        self.start("kube-scheduler", &mut scheduler)
    }

    /// What the components that talk to the API server have in common.
    fn client_command(&self, component: &str) -> Result<Command> {
        let control_plane = self.control_plane;
        let path = control_plane.directory.join(format!("{component}.kubeconfig"));
        let pair = control_plane.pki.cluster.client(&format!("system:{component}"), None)?;
        let authority = &control_plane.pki.cluster.pair().certificate;
        kubeconfig::write(&path, &control_plane.server, authority, &Credentials::Certificate(pair))?;
        let mut command = self.command(component);
        command.arg("--kubeconfig").arg(path);
        // No test reads their metrics, so they need no port. The limits are for tests that run at once.
        command.args([
            "--leader-elect=false",
            "--secure-port=0",
            "--kube-api-qps=200",
            "--kube-api-burst=400",
        ]);
        Ok(command)
    }

    fn etcd_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports.etcd)
    }

    fn command(&self, component: &str) -> Command {
        self.control_plane.sandbox.command(self.control_plane.programs.join(component))
    }

    fn start(&self, component: &str, command: &mut Command) -> Result<Process> {
        let log = self.control_plane.directory.join(format!("{component}.log"));
        Process::start(component, command, &log)
    }
}
