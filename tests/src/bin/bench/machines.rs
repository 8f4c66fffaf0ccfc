//! What the provider costs when it has many machines and nothing to do.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::{Node, Secret};
use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use scaleway_sim::{NewServer, Scaleway, Settings};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sysinfo::{Pid, ProcessRefreshKind, ProcessesToUpdate, System};
use tart_kubelet_tests::cluster_api::ClusterApi;
use tart_kubelet_tests::control_plane::ControlPlane;
use tart_kubelet_tests::process::Process;
use tart_kubelet_tests::programs;
use tart_kubelet_tests::sandbox::Sandbox;
use tart_kubelet_tests::wait::eventually;
use tokio::time::sleep;

/// How many machines there are, and how many of them a smaller fleet has.
pub(crate) const MANY: usize = 1000;
pub(crate) const FEW: usize = 100;
/// A machine at rest is looked at every five minutes.
const REST: Duration = Duration::from_mins(5);
const DEADLINE: Duration = Duration::from_mins(10);
const AT_ONCE: usize = 16;
const SECRET_KEY: &str = "simulated-secret-key";
const PROJECT_ID: &str = "6a4c1f62-0a57-4c5e-9a3b-3f5a2f1f7c10";
const PREFIX: &str = "tuist-pool-";

/// What a provider costs with some machines.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Costs {
    /// Seconds from its start until every machine is reported.
    pub(crate) steady: f64,
    /// Resident memory at rest, in MB.
    pub(crate) memory: f64,
    /// Percent of a core at rest.
    pub(crate) cpu: f64,
    /// Calls of the API server by all its clients for each machine and minute, at rest.
    pub(crate) calls: f64,
}

/// Machines whose hosts are up to date, with their Nodes, on a control plane with Cluster API. Their hosts are not there: at rest the provider
/// talks to none. Nor are Machines of Cluster API, which the provider never reads: what Cluster API does for those is not the provider's cost.
/// The Nodes have no kubelets, so that the control plane's own care for them is in the calls that are counted.
pub(crate) struct Fleet {
    control_plane: ControlPlane,
    _cluster_api: ClusterApi,
    scaleway: Scaleway,
    client: Client,
    namespace: String,
    directory: PathBuf,
    names: Vec<String>,
}

impl Fleet {
    pub(crate) async fn start(sandbox: &Sandbox) -> Result<Self> {
        let control_plane = ControlPlane::builder().start(sandbox).await?;
        let cluster_api = ClusterApi::start(&control_plane).await?;
        let crds =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/chart/crds").display().to_string();
        let kubectl = control_plane.kubectl();
        kubectl.run(["apply", "--server-side", "-f", crds.as_str()]).await?;
        kubectl.run(["wait", "--for=condition=Established", "--timeout=60s", "-f", crds.as_str()]).await?;
        let settings = Settings {
            secret_key: SECRET_KEY.to_owned(),
            project_id: PROJECT_ID.to_owned(),
            ..Settings::default()
        };
        Ok(Self {
            client: control_plane.client().await?,
            namespace: control_plane.namespace("machines").await?,
            directory: sandbox.directory("machines")?,
            _cluster_api: cluster_api,
            scaleway: Scaleway::start(settings).await?,
            names: Vec::new(),
            control_plane,
        })
    }

    /// Grows to this many machines, and measures what the provider costs with them.
    pub(crate) async fn costs(&mut self, count: usize) -> Result<Costs> {
        let names: Vec<_> = (self.names.len()..count).map(|number| format!("bench-{number}")).collect();
        each(&names, async |name| self.create(name).await).await?;
        self.names.extend(names);
        // The provider says which configuration hosts should have. Then they have it.
        let provider = self.start_provider()?;
        self.until("the hashes of configurations", &provider, |status| {
            status["desiredHostConfigHash"].is_string()
        })
        .await?;
        drop(provider);
        let machines = self.api().list(&ListParams::default()).await?.items;
        each(&machines, async |machine| self.set_up_to_date(machine).await).await?;

        let begun = Instant::now();
        let provider = self.start_provider()?;
        self.until("all machines", &provider, |status| {
            let conditions = status["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
            conditions.iter().any(|one| one["type"] == "HostUpToDate" && one["status"] == "True")
        })
        .await?;
        let steady = begun.elapsed().as_secs_f64();
        self.rest(&provider, steady).await
    }

    #[expect(clippy::cast_precision_loss, reason = "nothing here is near 2^52")]
    async fn rest(&self, provider: &Process, steady: f64) -> Result<Costs> {
        let (calls, busy, begun) = (self.calls().await?, look(provider)?.1, Instant::now());
        sleep(REST).await;
        let minutes = begun.elapsed().as_secs_f64() / 60.0;
        provider.ensure_running()?;
        let (memory, busy_after) = look(provider)?;
        let calls = self.calls().await? - calls;
        Ok(Costs {
            steady,
            memory: memory as f64 / 1e6,
            cpu: (busy_after - busy) as f64 / 600.0 / minutes,
            calls: calls / self.names.len() as f64 / minutes,
        })
    }

    fn start_provider(&self) -> Result<Process> {
        let mut command = self.control_plane.sandbox().command(programs::provider()?);
        command.arg("manager").arg("--kubeconfig").arg(self.control_plane.admin_kubeconfig());
        command.arg(format!("--namespace={}", self.namespace));
        command.arg(format!("--secrets-namespace={}", self.namespace));
        command.arg(format!("--api-server-url={}", self.control_plane.server()));
        command.arg("--tartkubelet-binary-path").arg(programs::agent()?);
        command.arg(format!("--default-adopt-pool-prefix={PREFIX}"));
        command.args(["--metrics-bind-address=127.0.0.1:0", "--health-probe-bind-address=127.0.0.1:0"]);
        // The one before was killed, and its Lease has not ended.
        command.arg("--leader-elect=false");
        command.env("SCW_API_URL", self.scaleway.url()).env("SCW_SECRET_KEY", SECRET_KEY);
        command.env("SCW_DEFAULT_PROJECT_ID", PROJECT_ID).env_remove("RUST_LOG");
        Process::start("tart-provider", &mut command, &self.directory.join("provider.log"))
    }

    fn api(&self) -> Api<DynamicObject> {
        let group = "infrastructure.cluster.x-k8s.io";
        let resource = ApiResource {
            group: group.to_owned(),
            version: "v1alpha1".to_owned(),
            api_version: format!("{group}/v1alpha1"),
            kind: "ScalewayAppleSiliconMachine".to_owned(),
            plural: "scalewayapplesiliconmachines".to_owned(),
        };
        Api::namespaced_with(self.client.clone(), &self.namespace, &resource)
    }

    /// A machine that is bootstrapped, with all that it has in the cluster and at Scaleway.
    async fn create(&self, name: &str) -> Result<()> {
        let id = self.scaleway.world().order(NewServer::named(name));
        self.scaleway.world().finish_changes();
        let address = self.scaleway.world().server(&id).context("no server")?.ip.clone();
        let provider_id = format!("scw-applesilicon://fr-par-1/{id}");
        let secret = json!({ "metadata": { "name": format!("{name}-bootstrap") }, "stringData": { "ssh-username": "m1" } });
        post::<Secret>(&Api::namespaced(self.client.clone(), &self.namespace), secret).await?;
        let labels = json!({ "kubernetes.io/os": "darwin" });
        let node =
            json!({ "metadata": { "name": name, "labels": labels }, "spec": { "providerID": provider_id } });
        post::<Node>(&Api::all(self.client.clone()), node).await?;
        let machine = json!({
            "apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1", "kind": "ScalewayAppleSiliconMachine",
            "metadata": { "name": name, "finalizers": ["scalewayapplesilicon.cluster.x-k8s.io/finalizer"] },
            "spec": { "adoptPoolPrefix": PREFIX, "fleetName": "fleet", "providerID": provider_id },
        });
        post::<DynamicObject>(&self.api(), machine).await?;
        let is_true = |type_: &str| json!({ "type": type_, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z" });
        let conditions = ["Provisioned", "Bootstrapped", "HostUpToDate", "Ready"].map(is_true);
        self.patch_status(name, json!({
            "serverID": id, "ready": true, "phase": "Ready", "initialization": { "provisioned": true }, "hostConfigHash": "another",
            "addresses": [{ "type": "ExternalIP", "address": address }], "conditions": conditions,
        }))
        .await
    }

    async fn set_up_to_date(&self, machine: &DynamicObject) -> Result<()> {
        let name = machine.metadata.name.as_deref().context("a machine without a name")?;
        let desired = &machine.data["status"]["desiredHostConfigHash"];
        self.patch_status(name, json!({
            "hostConfigHash": desired, "failedHostConfigHash": null, "tartKubeletUpdateAttempts": null, "lastUpdateFailureTime": null,
        }))
        .await
    }

    async fn patch_status(&self, name: &str, status: Value) -> Result<()> {
        let patch = Patch::Merge(json!({ "status": status }));
        self.api().patch_status(name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Waits until the status of every machine is right.
    async fn until(&self, what: &str, provider: &Process, is_right: impl Fn(&Value) -> bool) -> Result<()> {
        eventually(what, DEADLINE, async || {
            provider.ensure_running()?;
            let machines = self.api().list(&ListParams::default()).await?.items;
            let right = machines.iter().filter(|machine| is_right(&machine.data["status"])).count();
            ensure!(right == self.names.len(), "{right} of {}; {}", self.names.len(), provider.last_lines());
            Ok(())
        })
        .await
    }

    /// How many calls the API server has had, of all its clients.
    async fn calls(&self) -> Result<f64> {
        let figures = self.control_plane.kubectl().run(["get", "--raw", "/metrics"]).await?;
        let requests = figures.lines().filter(|line| line.starts_with("apiserver_request_total{"));
        requests.map(|line| Ok(line.rsplit(' ').next().context("no value")?.parse::<f64>()?)).sum()
    }
}

async fn post<K>(api: &Api<K>, object: Value) -> Result<()>
where
    K: Clone + std::fmt::Debug + serde::Serialize + DeserializeOwned,
{
    api.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
    Ok(())
}

/// Some at once.
async fn each<T>(all: &[T], act: impl AsyncFn(&T) -> Result<()>) -> Result<()> {
    stream::iter(all.iter().map(|one| act(one)))
        .buffer_unordered(AT_ONCE)
        .try_collect::<Vec<()>>()
        .await
        .map(drop)
}

/// The resident memory of a process in bytes, and the milliseconds that it was busy.
fn look(process: &Process) -> Result<(u64, u64)> {
    let pid = Pid::from_u32(process.pid().as_raw().unsigned_abs());
    let mut system = System::new().context("cannot look at processes")?;
    let what = ProcessRefreshKind::nothing().with_memory().with_cpu();
    system.refresh_processes_specifics(ProcessesToUpdate::Some(&[pid]), true, what);
    let seen = system.process(pid).context("the provider is gone")?;
    Ok((seen.memory(), seen.accumulated_cpu_time()))
}
