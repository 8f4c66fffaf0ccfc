//! A fleet: a cluster of Cluster API, a simulated Scaleway with Macs, and the provider between them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::{Api, Client};
use nix::sys::signal::Signal;
use scaleway_sim::{NewServer, Scaleway, Settings};
use serde_json::{Value, json};
use tart_kubelet_tests::cluster_api::ClusterApi;
use tart_kubelet_tests::control_plane::ControlPlane;
use tart_kubelet_tests::helm::Helm;
use tart_kubelet_tests::kubeconfig::{self, Credentials};
use tart_kubelet_tests::kubectl::Kubectl;
use tart_kubelet_tests::mac_host::MacHost;
use tart_kubelet_tests::process::Process;
use tart_kubelet_tests::programs;
use tart_kubelet_tests::wait::eventually;
use tokio::sync::OnceCell;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::pem::parse_x509_pem;
use x509_parser::prelude::FromDer as _;

pub(crate) const IMAGE: &str = "registry.test/macos/sequoia:15";
/// Some Macs are bootstrapped at once on a busy machine.
pub(crate) const DEADLINE: Duration = Duration::from_mins(8);
const FLEET: &str = "fleet";
const SECRET_KEY: &str = "simulated-secret-key";
const PROJECT_ID: &str = "6a4c1f62-0a57-4c5e-9a3b-3f5a2f1f7c10";

/// A fleet.
pub(crate) struct Scene {
    pub(crate) control_plane: &'static ControlPlane,
    pub(crate) client: Client,
    pub(crate) namespace: String,
    pub(crate) scaleway: Scaleway,
    pub(crate) macs: Vec<(String, MacHost)>,
    agent: PathBuf,
    directory: PathBuf,
    public_key: String,
    provider: Option<Process>,
}

/// What the whole cluster gets once: Cluster API and the provider's kinds.
async fn prepare(control_plane: &ControlPlane) -> Result<()> {
    static DONE: OnceCell<()> = OnceCell::const_new();
    let once = async || {
        ClusterApi::shared().await?;
        let kubectl = control_plane.kubectl();
        let crds =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/chart/crds").display().to_string();
        kubectl.run(["apply", "--server-side", "-f", crds.as_str()]).await?;
        kubectl.run(["wait", "--for=condition=Established", "--timeout=60s", "-f", crds.as_str()]).await?;
        // All bootstrap tokens are in this group. With its rights any token could join as any Node.
        for binding in ["kubelet-bootstrap", "node-autoapprove-bootstrap"] {
            kubectl.run(["delete", "clusterrolebinding", binding]).await?;
        }
        anyhow::Ok(())
    };
    DONE.get_or_try_init(once).await.map(drop)
}

impl Scene {
    /// A cluster with this many free Macs in the pool; `None`, with a word about it, where Macs cannot be simulated.
    pub(crate) async fn new(prefix: &str, macs: usize) -> Result<Option<Self>> {
        let control_plane = ControlPlane::shared().await?;
        prepare(control_plane).await?;
        let sandbox = control_plane.sandbox();
        let directory = sandbox.directory("provider")?;
        let agent = directory.join("tart-kubelet");
        // The symbols of a debug build are most of it.
        let stripped = Command::new("strip").arg("-o").arg(&agent).arg(programs::agent()?).status();
        ensure!(stripped.is_ok_and(|status| status.success()), "cannot strip the agent");
        let key = directory.join("id_ed25519");
        let made =
            Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&key).status();
        ensure!(made.is_ok_and(|status| status.success()), "no SSH key");
        let public_key = std::fs::read_to_string(key.with_extension("pub"))?.trim().to_owned();
        let namespace = control_plane.namespace(prefix).await?;
        let settings = Settings {
            secret_key: SECRET_KEY.to_owned(),
            project_id: PROJECT_ID.to_owned(),
            ..Settings::default()
        };
        let mut scene = Self {
            control_plane,
            client: control_plane.client().await?,
            scaleway: Scaleway::start(settings).await?,
            macs: Vec::new(),
            agent,
            directory,
            public_key,
            provider: None,
            namespace,
        };
        for _ in 0..macs {
            if !scene.add_mac().await? {
                return Ok(None);
            }
        }
        // As an operator does who has given the key to the pool's hosts before: `prepare-fleet-ssh-key`.
        let data =
            json!({ "id_ed25519": std::fs::read_to_string(&key)?, "id_ed25519.pub": scene.public_key });
        let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": format!("{FLEET}-ssh") }, "stringData": data });
        scene.kubectl().apply(&secret.to_string()).await?;
        scene.give_rights().await?;
        scene.connect_cluster().await?;
        Ok(Some(scene))
    }

    /// A further free Mac in the pool. Whether there can be one.
    pub(crate) async fn add_mac(&mut self) -> Result<bool> {
        let builder = MacHost::new(self.control_plane.sandbox())?.pfctl(&programs::find("pfctl")?);
        let Some(mac) = builder.authorized_key(&self.public_key).start().await? else { return Ok(false) };
        mac.add_image(IMAGE, &json!({}))?;
        let name = format!("tuist-pool-{}", self.macs.len());
        let id = self.scaleway.world().order(NewServer::named(&name));
        self.scaleway.attach(&id, mac.address()).await.map_err(anyhow::Error::msg)?;
        self.scaleway.world().finish_changes();
        self.macs.push((id, mac));
        Ok(true)
    }

    /// What Scaleway does when it installs a server anew: another Mac is there.
    pub(crate) async fn install_anew(&mut self, id: &str) -> Result<()> {
        self.macs.retain(|(known, _)| known != id);
        let builder = MacHost::new(self.control_plane.sandbox())?.pfctl(&programs::find("pfctl")?);
        let mac = builder.authorized_key(&self.public_key).start().await?.context("no simulated Mac")?;
        mac.add_image(IMAGE, &json!({}))?;
        self.scaleway.attach(id, mac.address()).await.map_err(anyhow::Error::msg)?;
        self.macs.push((id.to_owned(), mac));
        Ok(())
    }

    /// Waits until a server is to be installed anew, and returns its id.
    pub(crate) async fn reinstalled(&self) -> Result<String> {
        eventually("a server that is installed anew", DEADLINE, async || {
            let world = self.scaleway.world();
            let write = world.writes().iter().find(|write| write.call == "reinstall-server");
            write.map(|write| write.server.clone()).context("none is")
        })
        .await
    }

    pub(crate) fn kubectl(&self) -> Kubectl {
        self.control_plane.kubectl().namespace(&self.namespace)
    }

    /// The accounts and rights that the real helm makes of the chart: those of the provider, and those with which Cluster API looks at the Nodes.
    async fn give_rights(&self) -> Result<()> {
        const KINDS: [&str; 5] = [
            "kind: ServiceAccount",
            "kind: ClusterRole",
            "kind: ClusterRoleBinding",
            "kind: Role",
            "kind: RoleBinding",
        ];
        const TOKEN: &str = "type: kubernetes.io/service-account-token";
        let name = format!("fullnameOverride={:?}", self.namespace);
        let server = format!("provider.apiServerURL={:?}", self.control_plane.server());
        let helm = Helm::new(self.control_plane.sandbox()).await?;
        let rendered = helm.template(&self.namespace, &[&name, &server]).await?;
        let is_right = |object: &&str| object.lines().any(|line| line == TOKEN || KINDS.contains(&line));
        let rights: Vec<_> = rendered.split("\n---\n").filter(is_right).collect();
        ensure!(rights.len() >= 10, "the chart has only {rights:?}");
        // Some are in other namespaces.
        self.control_plane.kubectl().apply(&rights.join("\n---\n")).await?;
        let provider = self.kubectl().run(["create", "token", &self.namespace, "--duration=2h"]).await?;
        self.write_kubeconfig(&self.account(), provider.trim())
    }

    /// The kubeconfig of the provider's account.
    fn account(&self) -> PathBuf {
        self.directory.join("provider.kubeconfig")
    }

    fn write_kubeconfig(&self, path: &Path, token: &str) -> Result<()> {
        let authority = &self.control_plane.authority().pair().certificate;
        kubeconfig::write(path, self.control_plane.server(), authority, &Credentials::Token(token.to_owned()))
    }

    /// The Cluster, its stub, and what Cluster API needs to look at its Nodes.
    async fn connect_cluster(&self) -> Result<()> {
        let name = &self.namespace;
        let placeholder = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "no-bootstrap" }, "stringData": { "value": "" } });
        self.kubectl().apply(&placeholder.to_string()).await?;
        ClusterApi::connect(self.control_plane, name, name, &format!("{name}-capi-remote-token")).await?;
        let cluster = json!({ "apiVersion": "v1", "kind": "List", "items": [
            { "apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1", "kind": "TuistCluster", "metadata": { "name": name },
              "spec": { "controlPlaneEndpoint": { "host": "127.0.0.1", "port": 6443 } } },
            { "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": { "name": name }, "spec": {
                "controlPlaneEndpoint": { "host": "127.0.0.1", "port": 6443 },
                "infrastructureRef": { "apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "TuistCluster", "name": name },
            } },
        ] });
        self.kubectl().apply(&cluster.to_string()).await.map(drop)
    }

    /// A `MachineDeployment`, with this in the spec of its machines beside what all have.
    pub(crate) async fn deploy(&self, name: &str, replicas: u32, spec: &Value) -> Result<()> {
        let mut machine = json!({ "fleetName": FLEET, "adoptPoolPrefix": "tuist-pool-" });
        for (key, value) in spec.as_object().context("an object")? {
            machine[key] = value.clone();
        }
        let labels = json!({ "cluster.x-k8s.io/cluster-name": self.namespace, "fleet": name });
        let objects = json!({ "apiVersion": "v1", "kind": "List", "items": [
            { "apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1", "kind": "ScalewayAppleSiliconMachineTemplate",
              "metadata": { "name": name }, "spec": { "template": { "spec": machine } } },
            { "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDeployment", "metadata": { "name": name, "labels": labels }, "spec": {
                "clusterName": self.namespace, "replicas": replicas,
                "selector": { "matchLabels": labels },
                "template": { "metadata": { "labels": labels }, "spec": {
                    "clusterName": self.namespace,
                    "bootstrap": { "dataSecretName": "no-bootstrap" },
                    "infrastructureRef": {
                        "apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "ScalewayAppleSiliconMachineTemplate", "name": name,
                    },
                } },
            } },
        ] });
        self.kubectl().apply(&objects.to_string()).await.map(drop)
    }

    /// Tells the provider to end, if it runs, so that it gives up its Lease. The rights of its account must have been enough.
    pub(crate) async fn stop_provider(&mut self) -> Result<()> {
        if let Some(provider) = self.provider.take() {
            if provider.exit_status()?.is_none() {
                provider.signal(Signal::SIGTERM)?;
                provider.wait_for_exit(DEADLINE).await?;
            }
            let log = provider.log()?;
            ensure!(!log.contains("forbidden"), "the chart gives too few rights:\n{log}");
        }
        Ok(())
    }

    /// Starts the provider, or starts it anew, with these flags beside those that all tests have.
    pub(crate) async fn start_provider(&mut self, flags: &[&str]) -> Result<()> {
        self.stop_provider().await?;
        self.provider = Some(self.another_provider("provider", flags)?);
        Ok(())
    }

    /// A provider beside the one that may run, with a log of this name.
    pub(crate) fn another_provider(&self, log: &str, flags: &[&str]) -> Result<Process> {
        let mut command = self.control_plane.sandbox().command(programs::find("tart-provider")?);
        command.arg("manager").arg("--kubeconfig").arg(self.account());
        command.args([
            format!("--namespace={}", self.namespace),
            format!("--secrets-namespace={}", self.namespace),
        ]);
        command.arg(format!("--api-server-url={}", self.control_plane.server()));
        command.arg("--tartkubelet-binary-path").arg(&self.agent).arg("--roll-min-ready-time=1s");
        for address in ["--metrics-bind-address", "--health-probe-bind-address"] {
            if !flags.iter().any(|flag| flag.starts_with(address)) {
                command.arg(format!("{address}=127.0.0.1:0"));
            }
        }
        // Many agents run on the machine at once, and how much is left on it is not what these tests are about.
        for flag in ["--metrics-bind-address=127.0.0.1:0", "--port=0", "--eviction-hard="] {
            command.arg(format!("--agent-flag={flag}"));
        }
        command.args(flags);
        command.env("SCW_API_URL", self.scaleway.url()).env("SCW_SECRET_KEY", SECRET_KEY);
        command.env("SCW_DEFAULT_PROJECT_ID", PROJECT_ID).env_remove("RUST_LOG");
        Process::start("tart-provider", &mut command, &self.directory.join(format!("{log}.log")))
    }

    pub(crate) fn provider(&self) -> Result<&Process> {
        self.provider.as_ref().context("the provider is not started")
    }

    /// The agent of the next roll: it does the same with other bytes.
    pub(crate) fn new_agent(&mut self) -> Result<()> {
        let other = self.directory.join("tart-kubelet-new");
        let mut bytes = std::fs::read(&self.agent)?;
        bytes.extend_from_slice(b"another release");
        std::fs::write(&other, bytes)?;
        self.agent = other;
        Ok(())
    }

    /// The agent of a release that does not stay. Returns the one before.
    pub(crate) fn break_agent(&mut self) -> Result<PathBuf> {
        let broken = self.directory.join("tart-kubelet-broken");
        let script = "#!/bin/sh\ncase \"$*\" in *--node-name*) exit 1 ;; esac\necho tart-kubelet 9.9.9\n";
        programs::write(&broken, script)?;
        Ok(std::mem::replace(&mut self.agent, broken))
    }

    /// The agent of the release after that.
    pub(crate) fn mend_agent(&mut self, good: PathBuf) -> Result<()> {
        self.agent = good;
        self.new_agent()
    }

    pub(crate) fn api(&self, kind: &str) -> Api<DynamicObject> {
        let (group, version, plural) = match kind {
            "ScalewayAppleSiliconMachine" => {
                ("infrastructure.cluster.x-k8s.io", "v1alpha1", "scalewayapplesiliconmachines")
            }
            "Machine" => ("cluster.x-k8s.io", "v1beta2", "machines"),
            "MachineDeployment" => ("cluster.x-k8s.io", "v1beta2", "machinedeployments"),
            other => unreachable!("{other}"),
        };
        let resource = ApiResource {
            group: group.to_owned(),
            version: version.to_owned(),
            api_version: format!("{group}/{version}"),
            kind: kind.to_owned(),
            plural: plural.to_owned(),
        };
        Api::namespaced_with(self.client.clone(), &self.namespace, &resource)
    }

    /// All objects of a kind, as JSON.
    pub(crate) async fn all(&self, kind: &str) -> Result<Vec<Value>> {
        let listed = self.api(kind).list(&ListParams::default()).await?;
        Ok(listed.items.into_iter().map(|object| json!(object)).collect())
    }

    /// Waits until a condition of all machines holds, and shows them and the provider's log if it does not.
    pub(crate) async fn machines_until(
        &self,
        what: &str,
        condition: impl Fn(&[Value]) -> bool,
    ) -> Result<Vec<Value>> {
        let waited = eventually(what, DEADLINE, async || {
            self.provider()?.ensure_running()?;
            let machines = self.all("ScalewayAppleSiliconMachine").await?;
            let shown: Vec<_> = machines.iter().map(|machine| &machine["status"]).collect();
            ensure!(condition(&machines), "machines are {}", serde_json::to_string_pretty(&shown)?);
            Ok(machines)
        });
        waited.await.with_context(|| self.provider().map(Process::last_lines).unwrap_or_default())
    }

    /// Waits until this many machines are ready and up to date.
    pub(crate) async fn ready(&self, count: usize) -> Result<Vec<Value>> {
        self.machines_until("machines that are ready", |machines| {
            machines.len() == count
                && machines
                    .iter()
                    .all(|machine| is_true(machine, "Ready") && is_true(machine, "HostUpToDate"))
        })
        .await
    }

    pub(crate) async fn nodes(&self) -> Result<Vec<Node>> {
        let machines = self.all("ScalewayAppleSiliconMachine").await?;
        let names: Vec<_> = machines.iter().map(|machine| machine["metadata"]["name"].clone()).collect();
        let nodes = Api::<Node>::all(self.client.clone()).list(&ListParams::default()).await?.items;
        Ok(nodes.into_iter().filter(|node| names.contains(&json!(node.metadata.name))).collect())
    }

    /// Runs a Pod on a Node; it says a word and stays.
    pub(crate) async fn run_pod(&self, node: &str) -> Result<String> {
        let name = format!("pod-{node}");
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
            "spec": {
                "restartPolicy": "Never", "nodeSelector": { "kubernetes.io/hostname": node },
                "terminationGracePeriodSeconds": 1,
                "tolerations": [{ "key": "tuist.dev/macos", "operator": "Exists" }],
                "containers": [{ "name": "main", "image": IMAGE, "command": ["/bin/sh", "-c", "echo it runs; exec sleep 3600"] }],
            },
        });
        self.kubectl().apply(&pod.to_string()).await?;
        Ok(name)
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Whether the cluster has nothing of a machine any more: no Node, token, Secret, certificate signing request, nor a Pod on its Node.
    pub(crate) async fn nothing_is_left_of(&self, machine: &str) -> Result<()> {
        let all = self.control_plane.kubectl();
        let nodes = all.run(["get", "nodes", "-o", "name"]).await?;
        ensure!(!nodes.contains(machine), "{nodes}");
        let selector = format!("--field-selector=spec.nodeName={machine}");
        let pods = all.run(["get", "pods", "-A", "-o", "name", &selector]).await?;
        ensure!(pods.is_empty(), "{pods}");
        let requests = Api::<CertificateSigningRequest>::all(self.client.clone());
        for request in requests.list(&ListParams::default()).await?.items {
            let (_, pem) = parse_x509_pem(&request.spec.request.0)?;
            let (_, content) = X509CertificationRequest::from_der(&pem.contents)?;
            let subject = content.certification_request_info.subject.to_string();
            ensure!(!subject.ends_with(machine), "{:?} is left: {subject}", request.metadata.name);
        }
        let secrets = self.kubectl().run(["get", "secrets", "-o", "name"]).await?;
        ensure!(!secrets.contains(machine), "{secrets}");
        let of_token = "custom-columns=M:.metadata.annotations.tuist\\.dev/machine";
        let tokens = all.run(["get", "secrets", "-n", "kube-system", "-o", of_token]).await?;
        ensure!(!tokens.contains(machine), "{tokens}");
        Ok(())
    }

    /// Whether no secret is in what the provider shows: its log, Events, objects and command lines on a Mac.
    pub(crate) async fn shows_no_secret(&self, mac: &MacHost, secrets: &[&str]) -> Result<()> {
        let mut shown = vec![self.provider()?.log()?, mac.calls()?.join("\n"), mac.log()?];
        for kind in ["events", "samm,machines,machinedeployments,clusters"] {
            shown.push(self.kubectl().run(["get", kind, "-o", "yaml"]).await?);
        }
        shown.push(self.control_plane.kubectl().run(["get", "nodes,csr", "-o", "yaml"]).await?);
        for secret in secrets {
            let at = shown.iter().find(|text| text.contains(secret));
            let near = at.and_then(|text| text.lines().find(|line| line.contains(secret)));
            ensure!(at.is_none(), "{secret} is shown: {near:?}");
        }
        Ok(())
    }

    /// The lines of the private key that opens the hosts.
    pub(crate) fn private_key(&self) -> Result<String> {
        let text = std::fs::read_to_string(self.directory.join("id_ed25519"))?;
        text.lines().nth(1).map(str::to_owned).context("a key without a line")
    }

    /// The events of a reason, as people read them.
    pub(crate) async fn events(&self, reason: &str) -> Result<String> {
        self.kubectl()
            .run(["get", "events", "-o", "wide", &format!("--field-selector=reason={reason}")])
            .await
    }
}

/// Whether a condition of an object is true.
pub(crate) fn is_true(object: &Value, condition: &str) -> bool {
    reason(object, condition).is_some_and(|(status, _)| status == "True")
}

/// The status and the reason of a condition.
pub(crate) fn reason(object: &Value, condition: &str) -> Option<(String, String)> {
    let all = object["status"]["conditions"].as_array()?;
    let known = all.iter().find(|known| known["type"] == condition)?;
    Some((known["status"].as_str()?.to_owned(), known["reason"].as_str().unwrap_or_default().to_owned()))
}

/// The name of an object.
pub(crate) fn name(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}
