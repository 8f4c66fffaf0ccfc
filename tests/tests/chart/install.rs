//! A release of the chart on a real cluster: installed, upgraded, rolled back. The provider runs beside it, as the chart's Deployment says and with the
//! rights of its account.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Value, json};
use tart_kubelet_tests::cluster_api::ClusterApi;
use tart_kubelet_tests::control_plane::ControlPlane;
use tart_kubelet_tests::helm::{Helm, chart};
use tart_kubelet_tests::kubeconfig::{self, Credentials};
use tart_kubelet_tests::kubectl::Kubectl;
use tart_kubelet_tests::process::Process;
use tart_kubelet_tests::programs;
use tart_kubelet_tests::wait::eventually;

pub(super) const DEADLINE: Duration = Duration::from_mins(3);
pub(super) const RELEASE: &str = "office";
const FULL_NAME: &str = "office-tart-provider";
const FLEET: &str = "office-tart-provider-macos-fleet";

/// A release.
pub(super) struct Release {
    pub(super) control_plane: &'static ControlPlane,
    pub(super) helm: Helm,
    pub(super) kubectl: Kubectl,
}

impl Release {
    /// A cluster with Cluster API and a list of two Macs, at whose addresses nothing answers.
    pub(super) async fn new() -> Result<Self> {
        let control_plane = ControlPlane::shared().await?;
        ClusterApi::shared().await?;
        let namespace = control_plane.namespace("chart").await?;
        let helm = Helm::new(control_plane.sandbox()).await?.on(control_plane, &namespace);
        let kubectl = control_plane.kubectl().namespace(&namespace);
        let mac = "ssh: admin@127.0.0.1:1\npassword: canary\n";
        let macs = json!({ "tuist-pool-1": mac, "tuist-pool-2": mac });
        let list = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "macs" }, "stringData": macs });
        kubectl.apply(&list.to_string()).await?;
        Ok(Self { control_plane, helm, kubectl })
    }

    /// `helm install` or `upgrade`, with what differs from the rest.
    pub(super) async fn deploy(&self, what: &str, values: &[&str]) -> Result<()> {
        let chart = chart().display().to_string();
        let server = format!("provider.apiServerURL={:?}", self.control_plane.server());
        let mut arguments = vec![what, RELEASE, &chart, "--set-json", &server];
        let common = [
            r#"pool.macList.secretName="macs""#,
            r#"macosFleet={"enabled":true,"replicas":2,"machine":{"zone":"local"}}"#,
        ];
        for value in common.iter().chain(values) {
            arguments.extend(["--set-json", value]);
        }
        self.helm.run(arguments).await.map(drop)
    }

    pub(super) async fn get(&self, kind: &str) -> Result<Vec<Value>> {
        let read: Value = serde_json::from_str(&self.kubectl.run(["get", kind, "-o", "json"]).await?)?;
        Ok(read["items"].as_array().cloned().unwrap_or_default())
    }

    /// The identities of all Machines, and of those of the provider.
    pub(super) async fn machines(&self) -> Result<Vec<String>> {
        let mut all = self.get("machines.cluster.x-k8s.io").await?;
        all.extend(self.get("scalewayapplesiliconmachines").await?);
        let is_going = |one: &Value| one["metadata"]["deletionTimestamp"].is_string();
        ensure!(!all.iter().any(is_going), "a machine is being deleted: {all:?}");
        let mut uids: Vec<_> = all
            .iter()
            .map(|one| format!("{} {} {}", one["kind"], one["metadata"]["name"], one["metadata"]["uid"]))
            .collect();
        uids.sort();
        Ok(uids)
    }

    async fn template(&self) -> Result<Value> {
        let read =
            self.kubectl.run(["get", "scalewayapplesiliconmachinetemplates", FLEET, "-o", "json"]).await?;
        Ok(serde_json::from_str::<Value>(&read)?["spec"]["template"]["spec"].clone())
    }

    /// A request for a serving certificate by the Node of a machine, with its name and address.
    async fn ask_for_certificate(&self, machine: &str) -> Result<()> {
        let mut params = rcgen::CertificateParams::new(vec![machine.to_owned(), "127.0.0.1".to_owned()])?;
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:nodes");
        params.distinguished_name.push(rcgen::DnType::CommonName, format!("system:node:{machine}"));
        let pem = params.serialize_request(&rcgen::KeyPair::generate()?)?.pem()?;
        let request = json!({
            "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": { "name": machine },
            "spec": {
                "request": BASE64_STANDARD.encode(pem), "signerName": "kubernetes.io/kubelet-serving",
                "usages": ["digital signature", "server auth"],
            },
        });
        let node = self.control_plane.node_kubeconfig(machine)?;
        let as_node = self.control_plane.kubectl_as(&node);
        as_node.run_with_input(["create", "-f", "-"], &request.to_string()).await.map(drop)
    }

    /// Starts the provider with the arguments of the chart's Deployment, as its account.
    pub(super) async fn provider(&self) -> Result<Process> {
        let deployments = self.get("deployments").await?;
        let spec = deployments.first().context("no Deployment")?["spec"].clone();
        ensure!(spec["replicas"] == 2, "{spec}");
        let container = &spec["template"]["spec"]["containers"][0];
        ensure!(container["resources"]["limits"]["memory"] == "512Mi", "{container}");
        let account = spec["template"]["spec"]["serviceAccountName"].as_str().context("an account")?;
        let token = self.kubectl.run(["create", "token", account]).await?;
        let directory = self.control_plane.sandbox().directory("chart")?;
        let kubeconfig = directory.join("kubeconfig");
        let authority = &self.control_plane.authority().pair().certificate;
        let token = Credentials::Token(token.trim().to_owned());
        kubeconfig::write(&kubeconfig, self.control_plane.server(), authority, &token)?;
        let mut command = self.control_plane.sandbox().command(programs::provider()?);
        for argument in container["args"].as_array().context("arguments")? {
            command.arg(argument.as_str().context("a text")?);
        }
        command.arg("--kubeconfig").arg(&kubeconfig).arg("--tartkubelet-binary-path").arg("/bin/sh");
        command.args(["--metrics-bind-address=127.0.0.1:0", "--health-probe-bind-address=127.0.0.1:0"]);
        command.env_remove("RUST_LOG");
        Process::start("tart-provider", &mut command, &directory.join("log"))
    }
}

#[tokio::test]
async fn an_upgrade_and_a_rollback_lose_no_machine_and_the_rights_suffice() -> Result<()> {
    let release = Release::new().await?;
    release.deploy("install", &[]).await?;
    let provider = release.provider().await?;

    // Cluster API makes Machines, and the provider claims a Mac for each.
    eventually("two machines with hosts", DEADLINE, async || {
        provider.ensure_running()?;
        let machines = release.get("scalewayapplesiliconmachines").await?;
        let held = machines.iter().filter(|one| one["status"]["serverID"].is_string()).count();
        ensure!(held == 2 && machines.len() == 2, "{machines:?}\n{}", provider.last_lines());
        Ok(())
    })
    .await?;
    let before = release.machines().await?;
    ensure!(before.len() == 4, "{before:?}");
    ensure!(
        before.iter().all(|one| one.contains(&format!("\"{FLEET}-"))),
        "names of machines begin with the fleet's: {before:?}"
    );

    release
        .deploy(
            "upgrade",
            &[
                "macosFleet.machine.hostCPU=4",
                r#"provider.image.tag="2.0.0""#,
                "macosFleet.orphanReclaim.activeReclaim=true",
            ],
        )
        .await?;
    ensure!(release.template().await?["hostCPU"] == 4, "the template is as before");
    let deployment =
        release.get("deployments").await?[0]["spec"]["template"]["spec"]["containers"][0].clone();
    let image = deployment["image"].as_str().unwrap_or_default();
    ensure!(image.ends_with(":2.0.0"), "{deployment}");
    let reclaims = format!("--orphan-reclaim-claim-name-prefix={FULL_NAME}-");
    ensure!(deployment["args"].to_string().contains(&reclaims), "{deployment}");
    assert_eq!(release.machines().await?, before, "the upgrade has changed machines");

    release.helm.run(["rollback", RELEASE, "1"]).await?;
    ensure!(release.template().await?["hostCPU"].is_null(), "the template is not rolled back");
    assert_eq!(release.machines().await?, before, "the rollback has changed machines");
    let history = release.helm.run(["history", RELEASE, "-o", "json"]).await?;
    let history: Value = serde_json::from_str(&history)?;
    ensure!(history.as_array().is_some_and(|all| all.len() == 3), "{history}");

    // A Mac that does not answer is tried with a join token of its own.
    eventually("an attempt to bootstrap", DEADLINE, async || {
        let events = release.kubectl.run(["get", "events.events.k8s.io"]).await?;
        ensure!(events.contains("BootstrapFailed"), "{events}\n{}", provider.last_lines());
        Ok(())
    })
    .await?;

    // The Node of a machine asks for a certificate of its kubelet API, and gets it.
    let machines = release.get("scalewayapplesiliconmachines").await?;
    let machine = machines[0]["metadata"]["name"].as_str().context("a name")?.to_owned();
    release.ask_for_certificate(&machine).await?;
    eventually("an approved certificate", DEADLINE, async || {
        let said =
            release.kubectl.run(["get", "csr", &machine, "-o", "jsonpath={.status.conditions}"]).await?;
        ensure!(said.contains("MachineMatches"), "{said}\n{}", provider.last_lines());
        Ok(())
    })
    .await?;

    // Given back, nothing is left of the machines.
    release.deploy("upgrade", &["macosFleet.replicas=0"]).await?;
    eventually("no machines", DEADLINE, async || {
        provider.ensure_running()?;
        let left = release.get("scalewayapplesiliconmachines").await?;
        ensure!(left.is_empty(), "{left:?}\n{}", provider.last_lines());
        ensure!(release.get("machines.cluster.x-k8s.io").await?.is_empty(), "Machines are left");
        Ok(())
    })
    .await?;
    let macs =
        release.kubectl.run(["get", "secret", "macs", "-o", "jsonpath={.metadata.annotations}"]).await?;
    ensure!(!macs.contains("claim.tuist.dev"), "a Mac is still claimed: {macs}");
    let log = provider.log()?;
    ensure!(!log.contains("forbidden"), "the chart gives too few rights:\n{log}");

    // Without machines, uninstalling leaves nothing.
    release.helm.run(["uninstall", RELEASE, "--wait"]).await?;
    eventually("nothing of the release", DEADLINE, async || {
        for kind in ["clusters.cluster.x-k8s.io", "tuistclusters", "machinedeployments", "deployments"] {
            let left = release.get(kind).await?;
            ensure!(left.is_empty(), "{left:?}");
        }
        Ok(())
    })
    .await
}

/// The commands of the documentation that make the kubeconfig with which Cluster API sees the Nodes, run as they are there.
#[tokio::test]
async fn the_documented_commands_let_cluster_api_see_the_nodes() -> Result<()> {
    let control_plane = ControlPlane::shared().await?;
    ClusterApi::shared().await?;
    let namespace = control_plane.namespace("connect").await?;
    let helm = Helm::new(control_plane.sandbox()).await?.on(control_plane, &namespace);
    let chart_path = chart().display().to_string();
    helm.run(["install", "connect", &chart_path]).await?;
    let page = std::fs::read_to_string(chart().join("../../docs/run-a-fleet.md"))?;
    let (_, section) = page.split_once("## Let Cluster API see the Nodes").context("no such section")?;
    let commands =
        section.split("```sh\n").nth(1).and_then(|rest| rest.split("```").next()).context("no commands")?;
    let commands = commands.replace(
        "ns=macs name=macs-tart-provider",
        &format!("set -eu; ns={namespace} name=connect-tart-provider"),
    );
    let directory = control_plane.sandbox().directory("connect")?;
    let kubectl = control_plane.kubectl().command();
    let path = std::path::Path::new(kubectl.get_program()).parent().context("a directory")?;
    let mut command = control_plane.sandbox().command("sh");
    command
        .args(["-c", &commands])
        .current_dir(&directory)
        .env("KUBECONFIG", control_plane.admin_kubeconfig());
    command.env("PATH", format!("{}:{}", path.display(), std::env::var("PATH")?));
    // The token is there a moment after its Secret.
    let kubectl = control_plane.kubectl().namespace(&namespace);
    eventually("the token of the account", DEADLINE, async || {
        let token =
            ["get", "secret", "connect-tart-provider-capi-remote-token", "-o", "jsonpath={.data.token}"];
        ensure!(!kubectl.run(token).await?.is_empty(), "none");
        Ok(())
    })
    .await?;
    tart_kubelet_tests::process::run(command, "", DEADLINE).await?;

    let secret =
        kubectl.run(["get", "secret", "connect-tart-provider-capi-kubeconfig", "-o", "json"]).await?;
    let secret: Value = serde_json::from_str(&secret)?;
    ensure!(
        secret["metadata"]["labels"]["cluster.x-k8s.io/cluster-name"] == "connect-tart-provider-capi",
        "{secret}"
    );
    // The address of the Service is not reachable here; with that of the API server the credentials are tried.
    let server = format!("--server={}", control_plane.server());
    let as_remote = control_plane.kubectl_as(&directory.join("workload"));
    as_remote.run(["get", "nodes", &server]).await?;
    let refused = as_remote.run(["get", "secrets", &server]).await;
    ensure!(refused.is_err_and(|error| format!("{error:#}").contains("Forbidden")), "it reads Secrets");
    Ok(())
}

/// A question to the API server: verb, group, resource with subresource, name, namespace. An empty name is any, an empty namespace is all.
type Question = (&'static str, &'static str, &'static str, &'static str, &'static str);

/// What the provider's account must not be able to do.
const FORBIDDEN: [Question; 12] = [
    ("get", "", "secrets", "", "default"),
    ("get", "", "secrets", "", ""),
    ("list", "", "secrets", "", OWN),
    ("patch", "", "secrets", "", "kube-system"),
    ("create", "rbac.authorization.k8s.io", "clusterrolebindings", "", ""),
    ("create", "", "pods", "", OWN),
    ("create", "", "pods/exec", "", OWN),
    ("create", "", "serviceaccounts/token", "", OWN),
    ("patch", "", "nodes", "", ""),
    ("approve", "certificates.k8s.io", "signers", "kubernetes.io/kube-apiserver-client", ""),
    ("delete", "cluster.x-k8s.io", "clusters", "", OWN),
    ("get", "infrastructure.cluster.x-k8s.io", "scalewayapplesiliconmachines", "", "default"),
];
/// What shows that the questions are about the right account.
const ALLOWED: [Question; 3] = [
    ("get", "", "secrets", "", OWN),
    ("approve", "certificates.k8s.io", "signers", "kubernetes.io/kubelet-serving", ""),
    ("patch", "cluster.x-k8s.io", "clusters/status", "", OWN),
];
/// Stands for the namespace of the release.
const OWN: &str = "OWN";

/// Whether a user may do it.
async fn can(kubectl: &Kubectl, user: &Value, question: Question, own: &str) -> Result<bool> {
    let (verb, group, resource, name, namespace) = question;
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let mut spec = user.clone();
    spec["resourceAttributes"] = json!({
        "verb": verb, "group": group, "resource": resource, "subresource": subresource, "name": name,
        "namespace": if namespace == OWN { own } else { namespace },
    });
    let review =
        json!({ "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec });
    let said = kubectl.run_with_input(["create", "-f", "-", "-o", "json"], &review.to_string()).await?;
    let answer: Value = serde_json::from_str(&said)?;
    answer["status"]["allowed"].as_bool().context("no answer")
}

#[tokio::test]
async fn the_account_of_the_provider_has_no_other_rights() -> Result<()> {
    let control_plane = ControlPlane::shared().await?;
    ClusterApi::shared().await?;
    let namespace = control_plane.namespace("rights").await?;
    let helm = Helm::new(control_plane.sandbox()).await?.on(control_plane, &namespace);
    let chart = chart().display().to_string();
    helm.run(["install", "rights", &chart]).await?;
    let kubectl = control_plane.kubectl();
    let account = json!({
        "user": format!("system:serviceaccount:{namespace}:rights-tart-provider"),
        "groups": ["system:serviceaccounts", "system:authenticated"],
    });
    for question in ALLOWED {
        ensure!(can(&kubectl, &account, question, &namespace).await?, "it cannot {question:?}");
    }
    for question in FORBIDDEN {
        ensure!(!can(&kubectl, &account, question, &namespace).await?, "it can {question:?}");
    }
    // Nor can a join token of the provider do more than ask.
    let token =
        json!({ "user": "system:bootstrap:abcdef", "groups": ["system:bootstrappers:tart-provider"] });
    let request = |subresource| ("create", "certificates.k8s.io", subresource, "", "");
    ensure!(
        can(&kubectl, &token, request("certificatesigningrequests"), "").await?,
        "a token cannot ask for a certificate"
    );
    ensure!(
        !can(&kubectl, &token, request("certificatesigningrequests/nodeclient"), "").await?,
        "a token's request is approved by itself"
    );
    Ok(())
}
