//! What most tests start from: a Mac of their own, its agent, and a namespace.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::Api;
use kube::api::ListParams;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tart_kubelet_tests::agent::{Agent, RunningAgent};
use tart_kubelet_tests::control_plane::ControlPlane;
use tart_kubelet_tests::kubectl::Kubectl;
use tart_kubelet_tests::mac::Mac;
use tart_kubelet_tests::proxy::Proxy;
use tart_kubelet_tests::wait;

/// Generous: machines are shared and noisy. No test passes because of it.
pub(crate) const DEADLINE: Duration = Duration::from_mins(2);
/// An image that boots, and does nothing else.
pub(crate) const IMAGE: &str = "registry.test/macos/sequoia:15";

/// What a command makes when it is ready for whatever the test does to it.
pub(crate) const UP: &str = "/private/tmp/up";
/// What a command waits for that ends when the test says so.
const GO: &str = "/private/tmp/go";

/// How the names of VMs begin that others are cloned from.
const BASE: &str = "tk-base-";

/// One Mac as a Node, and a namespace for Pods on it.
pub(crate) struct Scene {
    pub(crate) control_plane: &'static ControlPlane,
    pub(crate) mac: Mac,
    pub(crate) node: String,
    pub(crate) agent: Agent,
    pub(crate) pods: Api<Pod>,
    pub(crate) nodes: Api<Node>,
    pub(crate) kubectl: Kubectl,
}

impl Scene {
    /// A scene whose agent is not started yet.
    pub(crate) async fn new(name: &str) -> Result<Self> {
        let control_plane = ControlPlane::shared().await?;
        let namespace = control_plane.namespace(name).await?;
        // The namespace's name is unique, so the Node's is too.
        let node = format!("mac-{namespace}");
        let mac = Mac::new(control_plane.sandbox())?;
        if mac.is_simulated() {
            mac.add_image(IMAGE, &json!({}))?;
        }
        let kubeconfig = control_plane.node_kubeconfig(&node)?;
        let agent = Agent::new(&mac, &node, &kubeconfig)?.flag("--node-ip", "127.0.0.1");
        let client = control_plane.client().await?;
        Ok(Self {
            mac,
            agent,
            pods: Api::namespaced(client.clone(), &namespace),
            nodes: Api::all(client),
            kubectl: control_plane.kubectl().namespace(&namespace),
            control_plane,
            node,
        })
    }

    /// A scene with its agent running and its Node ready.
    pub(crate) async fn with_agent(name: &str) -> Result<(Self, RunningAgent)> {
        let scene = Self::new(name).await?;
        let running = scene.agent.start()?;
        scene.node_ready(&running).await?;
        Ok((scene, running))
    }

    /// A scene with its agent running and its Node ready, and the agent's way to the API server ours to spoil.
    pub(crate) async fn behind_proxy(name: &str) -> Result<(Self, Proxy, RunningAgent)> {
        let mut scene = Self::new(name).await?;
        let proxy = Proxy::start(scene.control_plane).await?;
        let kubeconfig = proxy.kubeconfig(&scene.control_plane.node_kubeconfig(&scene.node)?)?;
        scene.agent = scene.agent.flag("--kubeconfig", &kubeconfig.display().to_string());
        let running = scene.agent.start()?;
        scene.node_ready(&running).await?;
        Ok((scene, proxy, running))
    }

    /// The namespace of its Pods.
    pub(crate) fn namespace(&self) -> &str {
        self.pods.namespace().unwrap_or_default()
    }

    /// Waits until the Node is ready.
    pub(crate) async fn node_ready(&self, agent: &RunningAgent) -> Result<()> {
        let ready = wait::until(&self.nodes, &self.node, "ready", DEADLINE, |node| {
            condition(node, "Ready") == "True"
        });
        ready.await.map(drop).with_context(|| agent.log().unwrap_or_default())
    }

    /// A Pod for this scene's Node, left to the scheduler; `container` adds to its only container, `spec` to the Pod's.
    pub(crate) fn pod(&self, name: &str, container: &Value, spec: &Value) -> Value {
        let mut only = json!({"name": "main", "image": IMAGE});
        merge(&mut only, container);
        let mut full = json!({
            "restartPolicy": "Never",
            "nodeSelector": {"kubernetes.io/hostname": self.node},
            "tolerations": [{"key": "tuist.dev/macos", "operator": "Exists"}],
            "containers": [only],
        });
        merge(&mut full, spec);
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": full})
    }

    /// Creates a Pod, as strictly validated as kubectl asks for; or any other object, with kubectl.
    pub(crate) async fn create(&self, object: &Value) -> Result<()> {
        if object["kind"] != "Pod" {
            return self.kubectl.apply(&object.to_string()).await.map(drop);
        }
        let path = format!("/api/v1/namespaces/{}/pods?fieldValidation=Strict", self.namespace());
        let request = http::Request::post(path).header(http::header::CONTENT_TYPE, "application/json");
        let request = request.body(object.to_string().into_bytes())?;
        self.pods.clone().into_client().request::<Value>(request).await?;
        Ok(())
    }

    /// Waits until a Pod has a phase.
    pub(crate) async fn phase(&self, pod: &str, phase: &str) -> Result<Pod> {
        let found = wait::until(&self.pods, pod, phase, DEADLINE, |pod| phase_of(pod) == phase).await;
        found.with_context(|| format!("the agent says: {}", self.agent_log()))
    }

    /// Waits until the agent that runs now has looked at a Pod: until its status is of a generation that only that agent has seen.
    pub(crate) async fn looked_at(&self, pod: &str) -> Result<Pod> {
        let generation = self.pods.get(pod).await?.metadata.generation;
        let later = 1_000_000 - generation.unwrap_or_default();
        let patch = json!({"spec": {"activeDeadlineSeconds": later}}).to_string();
        self.kubectl.run(["patch", "pod", pod, "--patch", &patch]).await?;
        let looked = wait::until(&self.pods, pod, "looked at", DEADLINE, |pod| {
            pod.status.as_ref().and_then(|status| status.observed_generation) > generation
        });
        looked.await.with_context(|| format!("the agent says: {}", self.agent_log()))
    }

    /// What the agent has logged, for a test that fails.
    pub(crate) fn agent_log(&self) -> String {
        let path = self.agent.state_dir().with_file_name("tart-kubelet.log");
        std::fs::read_to_string(path).unwrap_or_else(|error| error.to_string())
    }

    /// Waits until the Mac has no VM.
    pub(crate) async fn no_vms(&self) -> Result<()> {
        wait::eventually("a Mac without VMs", DEADLINE, async || {
            let vms = self.vms().await?;
            ensure!(vms.is_empty(), "it has {vms:?}");
            Ok(())
        })
        .await
    }

    /// Waits until nothing is left of any Pod: no VM, no state, no log, no volume.
    pub(crate) async fn nothing_left(&self) -> Result<()> {
        self.no_vms().await?;
        wait::eventually("an empty state directory", DEADLINE, async || {
            for part in ["pods", "logs", "volumes"] {
                let left = std::fs::read_dir(self.agent.state_dir().join(part))?.count();
                ensure!(left == 0, "{left} in {part}");
            }
            Ok(())
        })
        .await
    }

    /// The names of the Mac's VMs, those apart that others are cloned from.
    pub(crate) async fn vms(&self) -> Result<Vec<String>> {
        let all = self.all_vms().await?;
        Ok(all.into_iter().filter(|name| !name.starts_with(BASE)).collect())
    }

    /// The names of the VMs that others are cloned from.
    pub(crate) async fn bases(&self) -> Result<Vec<String>> {
        let all = self.all_vms().await?;
        Ok(all.into_iter().filter(|name| name.starts_with(BASE)).collect())
    }

    async fn all_vms(&self) -> Result<Vec<String>> {
        let list = self.mac.tart(["list", "--source", "local", "--format", "json"]).await?;
        let list: Vec<Value> = serde_json::from_str(&list)?;
        Ok(list.iter().filter_map(|vm| vm["Name"].as_str().map(str::to_owned)).collect())
    }

    /// The VM of a Pod, once it runs.
    pub(crate) fn vm_of(pod: &Pod) -> Result<String> {
        let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
        let id = statuses.and_then(|all| all.first()).and_then(|status| status.container_id.as_deref());
        Ok(id.and_then(|id| id.strip_prefix("tart://")).context("the Pod has no VM")?.to_owned())
    }

    /// Has a guest shut itself down. The guest may be gone before it has answered.
    pub(crate) async fn shut_down(&self, vm: &str) {
        let _ = self.mac.tart(["exec", vm, "sudo", "shutdown", "-h", "now"]).await;
    }

    /// Has a command end that waits for the file [`GO`]. The guest may be gone before it has answered.
    pub(crate) async fn let_go(&self, vm: &str) {
        let _ = self.mac.tart(["exec", vm, "touch", GO]).await;
    }

    /// Waits until a command has made the file [`UP`]: a Pod runs before its command has seen to its signals.
    pub(crate) async fn is_up(&self, vm: &str) -> Result<()> {
        wait::eventually("a command that is up", DEADLINE, async || {
            self.mac.tart(["exec", vm, "test", "-e", UP]).await.map(drop)
        })
        .await
    }

    /// Waits until the Mac has this VM and no other.
    pub(crate) async fn only_vm(&self, vm: &str) -> Result<()> {
        wait::eventually("a Mac with one VM", DEADLINE, async || {
            let vms = self.vms().await?;
            ensure!(vms == [vm], "it has {vms:?}, not only {vm}");
            Ok(())
        })
        .await
    }

    /// The names of the VMs that run on this Mac.
    pub(crate) async fn running_vms(&self) -> Result<Vec<String>> {
        let list = self.mac.tart(["list", "--source", "local", "--format", "json"]).await?;
        let list: Vec<Value> = serde_json::from_str(&list)?;
        let running = list.iter().filter(|vm| vm["State"] == "running");
        Ok(running.filter_map(|vm| vm["Name"].as_str().map(str::to_owned)).collect())
    }

    /// What the shim of a Pod's first VM has logged.
    pub(crate) async fn shim_log(&self, pod: &str) -> Result<String> {
        let uid = self.pods.get(pod).await?.metadata.uid.context("no UID")?;
        Ok(std::fs::read_to_string(self.agent.state_dir().join("logs").join(uid).join("0.shim.log"))?)
    }

    /// What a container has written in one of the Pod's VMs, line by line.
    pub(crate) fn log(&self, pod: &Pod, container: &str, restart: u32) -> Result<Vec<String>> {
        let uid = pod.metadata.uid.as_deref().context("no UID")?;
        let dir = self.agent.state_dir().join("logs").join(uid).join(container);
        let log = std::fs::read_to_string(dir.join(format!("{restart}.log")))?;
        Ok(log.lines().map(|line| line.splitn(4, ' ').nth(3).unwrap_or_default().to_owned()).collect())
    }

    /// Waits until no file of the agent's has these words in it.
    pub(crate) async fn nowhere_on_disk(&self, words: &str) -> Result<()> {
        fn holds(path: &std::path::Path, words: &str) -> Result<bool> {
            if path.is_symlink() {
                return Ok(false);
            }
            if path.is_dir() {
                for entry in std::fs::read_dir(path)? {
                    if holds(&entry?.path(), words)? {
                        return Ok(true);
                    }
                }
                return Ok(false);
            }
            let is_log = path.ancestors().any(|part| part.ends_with("logs"));
            Ok(!is_log && path.is_file() && String::from_utf8_lossy(&std::fs::read(path)?).contains(words))
        }
        wait::eventually("a disk without the secret", DEADLINE, async || {
            ensure!(!holds(&self.agent.state_dir(), words)?, "it is there");
            Ok(())
        })
        .await
    }

    /// Kills the shims of this scene's agent, and nothing else.
    pub(crate) fn kill_shims(&self) -> Result<()> {
        self.signal_shims(Signal::SIGKILL)
    }

    /// Sends a signal to the shims of this scene's agent, and to nothing else.
    pub(crate) fn signal_shims(&self, signal: Signal) -> Result<()> {
        let state = self.agent.state_dir();
        let mut system = sysinfo::System::new().context("cannot look at processes")?;
        let arguments = sysinfo::ProcessRefreshKind::nothing().with_cmd(sysinfo::UpdateKind::Always);
        system.refresh_processes_specifics(sysinfo::ProcessesToUpdate::All, true, arguments);
        let mut found = 0;
        for process in system.processes().values() {
            let argument = |index: usize| process.cmd().get(index).map(std::path::Path::new);
            let ours = argument(1) == Some("shim".as_ref())
                && argument(2).is_some_and(|dir| dir.starts_with(&state));
            if ours && process.thread_kind().is_none() {
                let pid = Pid::from_raw(process.pid().as_u32().try_into()?);
                kill(pid, signal).with_context(|| format!("cannot send {signal} to {pid}"))?;
                found += 1;
            }
        }
        ensure!(found > 0, "there is no shim to send {signal} to");
        Ok(())
    }

    /// Waits until somebody who asks `kubectl describe` is told `words`.
    pub(crate) async fn told(&self, kind: &str, name: &str, words: &str) -> Result<()> {
        let client = self.pods.clone().into_client();
        let changes = match kind {
            "node" => wait::changes(&self.nodes, name, &Api::namespaced(client, "default")),
            _ => wait::changes(&self.pods, name, &Api::namespaced(client, self.namespace())),
        };
        wait::on_change(&format!("`kubectl describe` to say `{words}`"), DEADLINE, changes, async || {
            let told = self.kubectl.run(["describe", kind, name]).await?;
            ensure!(told.contains(words), "it says:\n{told}");
            Ok(())
        })
        .await
    }

    /// Waits until an Event about a Pod has this reason and begins with these words.
    pub(crate) async fn told_as(&self, pod: &str, reason: &str, words: &str) -> Result<()> {
        let events: Api<Event> = Api::namespaced(self.pods.clone().into_client(), self.namespace());
        let changes = wait::changes(&self.pods, pod, &events);
        let about = ListParams::default().fields(&format!("involvedObject.name={pod}"));
        wait::on_change(&format!("an Event {reason}: {words}"), DEADLINE, changes, async || {
            let told: Vec<(String, String)> = events
                .list(&about)
                .await?
                .into_iter()
                .filter_map(|event| Some((event.reason?, event.message?)))
                .collect();
            ensure!(
                told.iter().any(|(why, said)| why == reason && said.starts_with(words)),
                "there are {told:?}"
            );
            Ok(())
        })
        .await
    }
}

/// Adds the fields of `more` to `base`.
fn merge(base: &mut Value, more: &Value) {
    if let (Some(base), Some(more)) = (base.as_object_mut(), more.as_object()) {
        base.extend(more.clone());
    }
}

/// The state of a Pod's container.
pub(crate) fn state_of(pod: &Pod) -> Option<k8s_openapi::api::core::v1::ContainerState> {
    pod.status.as_ref()?.container_statuses.as_ref()?.first()?.state.clone()
}

/// A Pod's phase.
pub(crate) fn phase_of(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// The status of a Node's condition.
pub(crate) fn condition<'a>(node: &'a Node, kind: &str) -> &'a str {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions
        .filter(|condition| condition.type_ == kind)
        .map(|condition| condition.status.as_str())
        .next()
        .unwrap_or_default()
}
