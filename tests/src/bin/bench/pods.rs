//! How fast Pods start and end.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Binding, Node, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tart_kubelet_tests::agent::RunningAgent;
use tart_kubelet_tests::control_plane::ControlPlane;
use tart_kubelet_tests::mac::Fault;
use tart_kubelet_tests::mac::Mac;
use tart_kubelet_tests::wait;

use super::NODE;
use super::figure::median;

const DEADLINE: Duration = Duration::from_mins(1);
const ROUNDS: usize = 15;
const FEW_ROUNDS: usize = 5;
const IMAGE: &str = "registry.test/macos/sequoia:15";
/// What a call of the real tart takes, for every command that may come before `run`.
const LATENCY: &str = "20ms run=0ms";

/// Where Pods are started and ended.
pub(crate) struct Stage {
    pods: Api<Pod>,
    mac: Mac,
}

/// A Pod that runs, for streams to it.
pub(crate) struct Streamed {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) vm: String,
    /// The guest's.
    pub(crate) address: String,
}

impl Streamed {
    /// The Pod in a path of the kubelet API.
    pub(crate) fn pod(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Its container in a path of the kubelet API.
    pub(crate) fn container(&self) -> String {
        format!("{}/main", self.pod())
    }
}

impl Stage {
    /// A ready Node with a warm image.
    pub(crate) async fn set(control_plane: &ControlPlane, mac: &Mac) -> Result<Self> {
        let client = control_plane.client().await?;
        let namespace = control_plane.namespace("bench").await?;
        let nodes: Api<Node> = Api::all(client.clone());
        let ready = |node: &Node| {
            let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
            conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
        };
        wait::until(&nodes, NODE, "ready", DEADLINE, ready).await?;
        mac.add_image(IMAGE, &json!({}))?;
        let stage = Self { pods: Api::namespaced(client, &namespace), mac: mac.clone() };
        stage.bind("warm").await?;
        stage.running("warm").await?;
        stage.delete("warm").await?;
        mac.set_fault(Fault::Latency, LATENCY)?;
        Ok(stage)
    }

    /// A Pod with a command that lasts, for streams to it.
    pub(crate) async fn streamed(&self) -> Result<Streamed> {
        const NAME: &str = "streamed";
        self.bind_running(NAME, &json!({"command": ["/bin/sleep", "10000"]})).await?;
        self.running(NAME).await?;
        let pod = self.pods.get(NAME).await?;
        let uid = pod.metadata.uid.context("no UID")?;
        Ok(Streamed {
            namespace: self.pods.namespace().unwrap_or_default().to_owned(),
            name: NAME.to_owned(),
            vm: format!("tk-{uid}-0"),
            address: pod.status.and_then(|status| status.pod_ip).context("no address")?,
            uid,
        })
    }

    /// Starts a Pod of an image, and waits for what it measures when its VM runs.
    pub(crate) async fn start_of<T>(
        &self,
        name: &str,
        image: &str,
        look: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        self.bind_running(name, &json!({"image": image})).await?;
        self.run_file().await?;
        let seen = look()?;
        self.running(name).await?;
        self.delete(name).await?;
        Ok(seen)
    }

    /// Milliseconds from the binding of a Pod to the start of its `tart run`.
    pub(crate) async fn bound_to_run(&self) -> Result<f64> {
        let mut times = Vec::new();
        for round in 0..ROUNDS {
            let name = format!("start-{round}");
            let bound = self.bind(&name).await?;
            let run = self.run_file().await?;
            times.push(milliseconds(std::fs::metadata(&run)?.modified()?, bound));
            self.running(&name).await?;
            self.delete(&name).await?;
        }
        Ok(median(times))
    }

    /// How many tart processes are started for a Pod before its `tart run`.
    #[expect(clippy::cast_precision_loss, reason = "there are not 2^52 processes")]
    pub(crate) async fn tart_before_run(&self) -> Result<f64> {
        let record = self.mac.host().join("calls");
        self.mac.set_fault(Fault::Calls, "")?;
        let mut counts = Vec::new();
        for round in 0..FEW_ROUNDS {
            std::fs::write(&record, "")?;
            let name = format!("count-{round}");
            self.bind(&name).await?;
            self.running(&name).await?;
            let calls = std::fs::read_to_string(&record)?;
            // `ip` is started after `run`, and may be faster; `--version` is asked from time to time, for no Pod.
            let apart = ["ip", "--version"];
            let before = calls.lines().take_while(|call| *call != "run").filter(|call| !apart.contains(call));
            counts.push(before.count() as f64);
            self.delete(&name).await?;
        }
        self.mac.clear_fault(Fault::Calls)?;
        Ok(median(counts))
    }

    /// Milliseconds from the moment that a guest has an address to the phase Running, as a watcher sees it.
    pub(crate) async fn address_to_running(&self) -> Result<f64> {
        // A guest takes a while to boot, and the agent a while to notice its end.
        self.mac.set_fault(Fault::BootDelay, "500ms")?;
        let mut times = Vec::new();
        for round in 0..ROUNDS {
            let name = format!("boot-{round}");
            self.bind(&name).await?;
            self.running(&name).await?;
            let seen = SystemTime::now();
            let lent = std::fs::metadata(self.mac.host().join("dhcpd_leases"))?.modified()?;
            times.push(milliseconds(seen, lent));
            self.delete(&name).await?;
        }
        self.mac.clear_fault(Fault::BootDelay)?;
        Ok(median(times))
    }

    /// Milliseconds from the death of a VM to the final phase of its Pod, as a watcher sees it.
    pub(crate) async fn exit_to_terminal(&self) -> Result<f64> {
        let mut times = Vec::new();
        for round in 0..ROUNDS {
            let name = format!("end-{round}");
            self.bind(&name).await?;
            self.running(&name).await?;
            let file = self.run_file().await?;
            let pid = file.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse().ok());
            let pid = Pid::from_raw(pid.context("the file of a running VM is not named after a process")?);
            let terminal = wait::until(&self.pods, &name, "over", DEADLINE, |pod| phase_of(pod) == "Failed");
            let end = async {
                kill(pid, Signal::SIGKILL).context("cannot kill the VM")?;
                Ok::<_, anyhow::Error>(SystemTime::now())
            };
            let (ended, seen) = tokio::join!(end, async { terminal.await.map(|_| SystemTime::now()) });
            times.push(milliseconds(seen?, ended?));
            self.delete(&name).await?;
        }
        Ok(median(times))
    }

    /// Milliseconds from the end of a command to the final phase of its Pod, as a watcher sees it, for the exit code that takes longer.
    pub(crate) async fn command_to_terminal(&self, state: &Path) -> Result<f64> {
        let mut slowest = 0.0_f64;
        for code in [0, 143] {
            let mut times = Vec::new();
            for round in 0..ROUNDS {
                let name = format!("command-{code}-{round}");
                let script = format!("sleep 0.5; echo over; exit {code}");
                self.bind_running(&name, &json!({"command": ["/bin/sh", "-c", script]})).await?;
                let over = |pod: &Pod| ["Succeeded", "Failed"].contains(&phase_of(pod));
                let pod = wait::until(&self.pods, &name, "over", DEADLINE, over).await?;
                let seen = SystemTime::now();
                // The last thing that it does; its log says when.
                let uid = pod.metadata.uid.context("no UID")?;
                let log = std::fs::read_to_string(state.join("logs").join(uid).join("main/0.log"))?;
                let at: jiff::Timestamp = log.split(' ').next().context("an empty log")?.parse()?;
                times.push(milliseconds(seen, at.into()));
                self.delete(&name).await?;
            }
            slowest = slowest.max(median(times));
        }
        Ok(slowest)
    }

    /// Two Pods that run.
    pub(crate) async fn two(&self) -> Result<[Pod; 2]> {
        let names = ["left", "right"];
        for name in names {
            self.bind(name).await?;
        }
        for name in names {
            self.running(name).await?;
        }
        Ok([self.pods.get(names[0]).await?, self.pods.get(names[1]).await?])
    }

    /// Milliseconds from the start of an agent that was killed until it tells the truth about its Pods again.
    pub(crate) async fn restart_to_adopted(&self, agent: &mut RunningAgent, pods: &[Pod; 2]) -> Result<f64> {
        let mut times = Vec::new();
        for round in 0..FEW_ROUNDS {
            agent.kill9()?;
            // Something that only an agent that knows the Pod's VM can answer to: its status is of this generation.
            let patch = Patch::Merge(json!({"spec": {"activeDeadlineSeconds": 100_000 - round}}));
            let mut changed = Vec::new();
            for pod in pods {
                changed.push(self.pods.patch(&pod.name_any(), &PatchParams::default(), &patch).await?);
            }
            let begun = Instant::now();
            *agent = agent.agent().start()?;
            for pod in &changed {
                wait::until(&self.pods, &pod.name_any(), "known again", DEADLINE, |now| {
                    let told = now.status.as_ref().and_then(|status| status.observed_generation);
                    told >= pod.metadata.generation && phase_of(now) == "Running"
                })
                .await?;
            }
            times.push(begun.elapsed().as_secs_f64() * 1e3);
        }
        Ok(median(times))
    }

    /// Creates a Pod that no scheduler touches, binds it, and tells when that was asked for.
    async fn bind(&self, name: &str) -> Result<SystemTime> {
        self.bind_running(name, &json!({})).await
    }

    /// The same with a container that has more to it.
    async fn bind_running(&self, name: &str, more: &Value) -> Result<SystemTime> {
        let mut container = json!({"name": "main", "image": IMAGE});
        if let (Some(container), Some(more)) = (container.as_object_mut(), more.as_object()) {
            container.extend(more.clone());
        }
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {
                "schedulerName": "none",
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 0,
                "automountServiceAccountToken": false,
                "containers": [container],
            },
        }))?;
        self.pods.create(&PostParams::default(), &pod).await?;
        let target = ObjectReference {
            kind: Some("Node".to_owned()),
            name: Some(NODE.to_owned()),
            ..ObjectReference::default()
        };
        let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
        let binding = Binding { metadata, target };
        let bound = SystemTime::now();
        let _: serde_json::Value =
            self.pods.create_subresource("binding", name, &PostParams::default(), &binding).await?;
        Ok(bound)
    }

    async fn running(&self, name: &str) -> Result<()> {
        wait::until(&self.pods, name, "running", DEADLINE, |pod| phase_of(pod) == "Running").await.map(drop)
    }

    /// Deletes a Pod, and waits until nothing of it is left.
    pub(crate) async fn delete(&self, name: &str) -> Result<()> {
        self.pods.delete(name, &DeleteParams::default()).await?;
        wait::until_gone(&self.pods, name, DEADLINE).await?;
        wait::eventually("an idle Mac", DEADLINE, async || {
            for entry in std::fs::read_dir(self.mac.tart_home().join("vms"))? {
                let name = entry?.file_name().to_string_lossy().into_owned();
                // The image's base VM stays.
                ensure!(name.starts_with("tk-base-"), "{name} is left");
            }
            Ok(())
        })
        .await
    }

    /// The file that the one running `tart run` has made when it took its place on the host.
    async fn run_file(&self) -> Result<PathBuf> {
        wait::eventually("a running VM", DEADLINE, async || {
            let entries = std::fs::read_dir(self.mac.host().join("running"))?;
            let files = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
            let mut live = files.into_iter().filter(|file| {
                let pid = file.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse().ok());
                pid.is_some_and(|pid| kill(Pid::from_raw(pid), None).is_ok())
            });
            live.next_back().context("nothing runs")
        })
        .await
    }
}

fn phase_of(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

fn milliseconds(later: SystemTime, earlier: SystemTime) -> f64 {
    later.duration_since(earlier).unwrap_or_default().as_secs_f64() * 1e3
}
