//! A Pod whose VM must outlive what is done to the agent.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::Api;
use kube::api::PostParams;
use serde_json::json;
use tart_kubelet_tests::wait::{eventually, until};

use super::scene::Scene;

const IMAGE: &str = "registry.test/macos/sequoia:15";
const DEADLINE: Duration = Duration::from_mins(3);
/// The Pod's command ends with it.
const EXIT_CODE: i32 = 7;
/// The command counts until a file is there, and says each number.
const COUNT: &str =
    "i=0; until [ -e /tmp/signal/end ]; do i=$((i + 1)); echo \"line $i\"; sleep 0.2; done; exit 7";

/// A Pod that runs on a scene's Mac.
pub(crate) struct RunningVm<'a> {
    scene: &'a Scene,
    pods: Api<Pod>,
    name: String,
    uid: String,
    log: PathBuf,
}

impl<'a> RunningVm<'a> {
    /// Runs a Pod that counts in its log.
    pub(crate) async fn start(scene: &'a Scene) -> Result<Self> {
        scene.mac.add_image(IMAGE, &json!({}))?;
        let namespace = scene.control_plane().namespace(scene.node()).await?;
        let pods = Api::<Pod>::namespaced(scene.control_plane().client().await?, &namespace);
        let name = "count".to_owned();
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {
                "restartPolicy": "Never",
                "nodeSelector": {"kubernetes.io/hostname": scene.node()},
                "tolerations": [{"key": "tuist.dev/macos", "operator": "Exists"}],
                "volumes": [{"name": "signal", "emptyDir": {}}],
                "containers": [{
                    "name": "main", "image": IMAGE, "command": ["/bin/sh", "-c", COUNT],
                    "volumeMounts": [{"name": "signal", "mountPath": "/tmp/signal"}],
                }],
            },
        });
        pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        let pod = until(&pods, &name, "Running", DEADLINE, |pod| phase(pod) == "Running").await?;
        let uid = pod.metadata.uid.context("the Pod has no UID")?;
        let log = scene.mac.path(&format!("/var/lib/tart-kubelet/logs/{uid}/main/0.log"));
        Ok(Self { scene, pods, name, uid, log })
    }

    /// The PIDs of its VM: of its shim, of tart and of all that they have started.
    pub(crate) async fn processes(&self) -> Result<BTreeSet<u32>> {
        let printed = self.scene.mac.ssh("ps -axo pid=,command=").await?.ok()?;
        let own = printed.lines().filter(|line| line.contains(&self.uid));
        let pids: BTreeSet<u32> =
            own.filter_map(|line| line.split_whitespace().next()?.parse().ok()).collect();
        ensure!(pids.len() >= 2, "no shim and no tart:\n{printed}");
        Ok(pids)
    }

    /// The numbers in its log.
    fn lines(&self) -> Result<Vec<u32>> {
        let text = std::fs::read_to_string(&self.log)?;
        let number = |line: &str| line.rsplit_once("line ").and_then(|(_, number)| number.parse().ok());
        Ok(text.lines().filter_map(number).collect())
    }

    /// Waits until the API server has heard from the agent that runs now, and checks that the VM has noticed nothing.
    pub(crate) async fn goes_on(&self, processes: &BTreeSet<u32>) -> Result<()> {
        let before = self.lines()?.len();
        eventually("the VM to write to its log", DEADLINE, async || {
            ensure!(self.lines()?.len() > before + 2, "it has written nothing");
            Ok(())
        })
        .await?;
        ensure!(self.processes().await? == *processes, "other processes than {processes:?}");
        let pod = self.pods.get(&self.name).await?;
        ensure!(phase(&pod) == "Running" && container(&pod)?.restart_count == 0, "{:?}", pod.status);
        Ok(())
    }

    /// Has the command end, and checks its exit code and that no line of its log is missing.
    pub(crate) async fn ends_with_its_own_code(&self) -> Result<()> {
        let find = format!("sudo -n find /var/lib/tart-kubelet -type d -name signal -path '*{}*'", self.uid);
        let directory = self.scene.mac.ssh(&find).await?.ok()?;
        ensure!(directory.lines().count() == 1, "{directory}");
        self.scene.mac.ssh(&format!("sudo -n touch {}/end", directory.trim())).await?.ok()?;
        let pod = until(&self.pods, &self.name, "over", DEADLINE, |pod| phase(pod) == "Failed").await?;
        let state = container(&pod)?.state.as_ref().and_then(|state| state.terminated.as_ref());
        let ended = state.with_context(|| format!("{:?}", pod.status))?;
        assert_eq!(ended.exit_code, EXIT_CODE, "{ended:?}");
        let lines = self.lines()?;
        let all: Vec<u32> = (1..).take(lines.len()).collect();
        assert_eq!(lines, all, "lines of the log are missing, or twice there");
        Ok(())
    }
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

fn container(pod: &Pod) -> Result<&ContainerStatus> {
    let all = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    all.and_then(|all| all.first()).context("no status of a container")
}
