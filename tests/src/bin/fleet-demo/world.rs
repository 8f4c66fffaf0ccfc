//! The fleet and all that it stands on: a control plane, Cluster API, a simulated Scaleway with Macs, a simulated GitHub, Helm and the provider.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::ListParams;
use kube::{Api, Client};
use scaleway_sim::{Scaleway, Settings};
use serde_json::{Value, json};
use tart_kubelet_tests::cluster_api::ClusterApi;
use tart_kubelet_tests::control_plane::ControlPlane;
use tart_kubelet_tests::github::{APP_ID, Github, INSTALLATION_ID, ORG};
use tart_kubelet_tests::helm::{Helm, chart};
use tart_kubelet_tests::kubectl::Kubectl;
use tart_kubelet_tests::mac_pool::MacPool;
use tart_kubelet_tests::provider_deployment::ProviderDeployment;
use tart_kubelet_tests::sandbox::Sandbox;
use tart_kubelet_tests::{actions_runner, programs};
use tokio::sync::Mutex;

use super::kinds::{self, Kind, PROVIDER_MACHINE};
use super::print::{print, say};

/// The namespace of the release, and the release.
pub(crate) const RELEASE: &str = "macs";
/// What the names of the chart's objects begin with.
pub(crate) const FULL_NAME: &str = "macs-tart-provider";
/// The fleet that Pods run on.
pub(crate) const FLEET: &str = "macs-tart-provider-macos-fleet";
/// The fleet of the builder.
pub(crate) const BUILDERS: &str = "macs-tart-provider-builders-fleet";
/// What Pods run.
pub(crate) const IMAGE: &str = "registry.test/macos/sequoia:15";
/// The tags of the provider's image, before and after the roll.
pub(crate) const TAGS: [&str; 2] = ["demo-1", "demo-2"];
const SECRET_KEY: &str = "simulated-secret-key";
const PROJECT_ID: &str = "6a4c1f62-0a57-4c5e-9a3b-3f5a2f1f7c10";
/// No state of the fleet takes longer, on a busy machine.
pub(crate) const DEADLINE: Duration = Duration::from_mins(8);
/// Macs that are free, and one that bears the name of a machine that no cluster has any more.
const FREE: [&str; 4] = ["tuist-pool-1", "tuist-pool-2", "tuist-pool-3", "tuist-pool-4"];
pub(crate) const STRANDED: &str = "macs-tart-provider-macos-fleet-old42-x7k2p";

/// The fleet.
pub(crate) struct World {
    pub(crate) control_plane: ControlPlane,
    pub(crate) cluster_api: ClusterApi,
    pub(crate) client: Client,
    pub(crate) pool: MacPool,
    pub(crate) github: Github,
    pub(crate) provider: Mutex<ProviderDeployment>,
    helm: Helm,
    values: PathBuf,
}

impl World {
    /// Everything but the release; `None`, with a word about it, where Macs cannot be simulated.
    pub(crate) async fn new(sandbox: &Sandbox) -> Result<Option<Self>> {
        say("starting a control plane: etcd, kube-apiserver, kube-controller-manager, kube-scheduler");
        let control_plane = ControlPlane::builder().start(sandbox).await?;
        say("starting Cluster API core");
        let cluster_api = ClusterApi::start(&control_plane).await?;
        let kubectl = control_plane.kubectl();
        // All bootstrap tokens are in this group. With its rights any token could join as any Node. The chart gives its own tokens theirs.
        for binding in ["kubelet-bootstrap", "node-autoapprove-bootstrap"] {
            kubectl.run(["delete", "clusterrolebinding", binding]).await?;
        }

        say("booting five simulated Macs at a simulated Scaleway: four are free, one is stranded");
        let directory = sandbox.directory("fleet")?;
        let key = ssh_key(&directory)?;
        let public_key = std::fs::read_to_string(key.with_extension("pub"))?.trim().to_owned();
        let settings = Settings {
            secret_key: SECRET_KEY.to_owned(),
            project_id: PROJECT_ID.to_owned(),
            ..Settings::default()
        };
        let scaleway = Scaleway::start(settings).await?;
        let image = json!({ "pullSeconds": 2, "bootDelay": 1 });
        let pool = MacPool::new(sandbox, scaleway, &public_key, IMAGE, image);
        for name in FREE.into_iter().chain([STRANDED]) {
            if pool.order(name).await?.is_none() {
                return Ok(None);
            }
        }

        let github = Github::start(&directory).await?;
        let helm = Helm::new(sandbox).await?.on(&control_plane, RELEASE);
        let url = pool.scaleway().url();
        let mut provider =
            ProviderDeployment::new(&control_plane, RELEASE, FULL_NAME, &[("SCW_API_URL", &url)])?;
        let agent = directory.join("tart-kubelet");
        // The symbols of a debug build are most of it.
        run(Command::new("strip").arg("-o").arg(&agent).arg(programs::agent()?))?;
        provider.publish(TAGS[0], &agent);
        provider.publish(TAGS[1], &next_release(&agent)?);
        let values = directory.join("demo.yaml");
        // JSON is YAML.
        std::fs::write(&values, values_of(&control_plane, &github, &directory)?.to_string())?;
        let world = Self {
            client: control_plane.client().await?,
            control_plane,
            cluster_api,
            pool,
            github,
            provider: Mutex::new(provider),
            helm,
            values,
        };
        world.secrets(&key, &public_key).await?;
        Ok(Some(world))
    }

    /// kubectl in the release's namespace.
    pub(crate) fn kubectl(&self) -> Kubectl {
        self.control_plane.kubectl().namespace(RELEASE)
    }

    /// kubectl where the Pods are.
    pub(crate) fn pods_kubectl(&self) -> Kubectl {
        self.control_plane.kubectl()
    }

    /// Shows a command, runs it and shows what it says.
    pub(crate) async fn show(&self, kubectl: &Kubectl, arguments: &[&str]) -> Result<String> {
        say(&format!("$ kubectl {}", arguments.join(" ")));
        let said = kubectl.clone().deadline(DEADLINE).run(arguments).await?;
        print(&said);
        Ok(said)
    }

    /// Shows and runs `helm install` or `helm upgrade` of the release, and brings the provider to what it says.
    pub(crate) async fn deploy(&self, verb: &str, sets: &[&str]) -> Result<()> {
        let shown: String = sets.iter().flat_map(|set| [" --set ", *set]).collect();
        let chart = chart().display().to_string();
        let (file, values) = match verb {
            "install" => (" -f demo.yaml", vec!["-f".to_owned(), self.values.display().to_string()]),
            _ => (" --reuse-values", vec!["--reuse-values".to_owned()]),
        };
        say(&format!("$ helm {verb} {RELEASE} packaging/chart -n {RELEASE}{file}{shown}"));
        let mut arguments = vec![verb.to_owned(), RELEASE.to_owned(), chart];
        arguments.extend(values);
        for set in sets {
            arguments.extend(["--set".to_owned(), (*set).to_owned()]);
        }
        let said = self.helm.run(arguments).await?;
        let notes = said.split_once("NOTES:\n").map_or("", |(_, notes)| notes);
        let fleets = notes.lines().filter(|line| line.contains("from free hosts"));
        print(&fleets.flat_map(|line| [line, "\n"]).collect::<String>());
        self.provider.lock().await.roll_out(&self.control_plane).await
    }

    /// All objects of a kind of the release, as JSON.
    pub(crate) async fn all(&self, kind: Kind) -> Result<Vec<Value>> {
        let listed = kind.api(&self.client, RELEASE).list(&ListParams::default()).await?;
        Ok(listed.items.into_iter().map(|object| json!(object)).collect())
    }

    /// The provider's machines of a fleet.
    pub(crate) async fn machines(&self, fleet: &str) -> Result<Vec<Value>> {
        let mut all = self.all(PROVIDER_MACHINE).await?;
        all.retain(|machine| machine["spec"]["fleetName"] == fleet);
        Ok(all)
    }

    /// The machines of a fleet, as soon as there are so many and all are Nodes with the wanted configuration.
    pub(crate) async fn ready(&self, fleet: &str, count: usize) -> Result<Vec<Value>> {
        let machines = self.machines(fleet).await?;
        let is_ready =
            |machine: &Value| kinds::is_true(machine, "Ready") && kinds::is_true(machine, "HostUpToDate");
        let good = machines.iter().filter(|machine| is_ready(machine)).count();
        ensure!(
            good == count && machines.len() == count,
            "{good} of {} machines of {fleet} are ready: {}",
            machines.len(),
            machines.iter().map(|machine| machine["status"]["conditions"].to_string()).collect::<String>()
        );
        Ok(machines)
    }

    /// The Pods of the demo.
    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), "default")
    }

    /// All Nodes.
    pub(crate) async fn nodes(&self) -> Result<Vec<Node>> {
        Ok(Api::<Node>::all(self.client.clone()).list(&ListParams::default()).await?.items)
    }

    /// What an operator gives the release before it is installed.
    async fn secrets(&self, key: &Path, public_key: &str) -> Result<()> {
        let kubectl = self.kubectl();
        self.show(&self.control_plane.kubectl(), &["create", "namespace", RELEASE]).await?;
        let scaleway = format!("{FULL_NAME}-scaleway");
        let secret = format!("--from-literal=secret-key={SECRET_KEY}");
        let project = format!("--from-literal=project-id={PROJECT_ID}");
        self.show(&kubectl, &["-n", RELEASE, "create", "secret", "generic", &scaleway, &secret, &project])
            .await?;
        say("giving the fleets the SSH key of the pool's hosts, and the builders the GitHub App");
        let private_key = std::fs::read_to_string(key)?;
        let mut items: Vec<Value> = [FLEET, BUILDERS]
            .iter()
            .map(|fleet| {
                let data = json!({ "id_ed25519": private_key, "id_ed25519.pub": public_key });
                let meta = json!({ "name": format!("{fleet}-ssh") });
                json!({ "apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": data })
            })
            .collect();
        items.push(json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "name": format!("{BUILDERS}-gh-app") }, "stringData": {
                "app-id": APP_ID, "installation-id": INSTALLATION_ID.to_string(), "private-key": self.github.private_key(),
            },
        }));
        kubectl
            .apply(&json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string())
            .await
            .map(drop)
    }
}

/// The values in which this machine differs from a cluster: where the API server is, and that many agents share one machine.
fn values_of(control_plane: &ControlPlane, github: &Github, directory: &Path) -> Result<Value> {
    let runner = actions_runner::archive(directory)?;
    Ok(json!({
        "provider": {
            "apiServerURL": control_plane.server(),
            "image": { "tag": TAGS[0] },
            "tartKubelet": { "flags": ["--metrics-bind-address=127.0.0.1:0", "--port=0", "--eviction-hard="] },
            "extraArgs": [
                format!("--github-api-url={}", github.url()),
                format!("--actions-runner-path={}", runner.display()),
            ],
        },
        "macosFleet": { "orphanReclaim": { "interval": "5s" } },
        "buildersFleet": { "ghOrg": ORG, "ghRunnerVersion": "2.336.0" },
    }))
}

/// The key that the pool's hosts let in.
fn ssh_key(directory: &Path) -> Result<PathBuf> {
    let key = directory.join("id_ed25519");
    run(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&key))?;
    Ok(key)
}

/// An agent that does the same with other bytes.
fn next_release(agent: &Path) -> Result<PathBuf> {
    let next = agent.with_extension("next");
    let mut bytes = std::fs::read(agent)?;
    bytes.extend_from_slice(b"another release");
    std::fs::write(&next, bytes)?;
    Ok(next)
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
