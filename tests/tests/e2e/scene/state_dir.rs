//! The agent's state directory: records, logs and volumes of Pods.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use tart_kubelet_tests::wait;

use super::{DEADLINE, PodView as _, Scene};

impl Scene {
    /// The records of a Pod.
    pub(crate) fn pod_dir(&self, uid: &str) -> PathBuf {
        self.agent.state_dir().join("pods").join(uid)
    }

    /// The records of a Pod's first VM.
    pub(crate) fn first_run_dir(&self, uid: &str) -> PathBuf {
        self.pod_dir(uid).join("0")
    }

    /// The volumes of a Pod.
    pub(crate) fn volumes_dir(&self, uid: &str) -> PathBuf {
        self.agent.state_dir().join("volumes").join(uid)
    }

    /// The logs of a Pod.
    pub(crate) fn logs_dir(&self, uid: &str) -> PathBuf {
        self.agent.state_dir().join("logs").join(uid)
    }

    /// What the shim of a Pod's first VM has logged.
    pub(crate) async fn shim_log(&self, pod: &str) -> Result<String> {
        Ok(std::fs::read_to_string(self.logs_dir(&self.uid(pod).await?).join("0.shim.log"))?)
    }

    /// What a container has written in one of the Pod's VMs, line by line.
    pub(crate) fn log(&self, pod: &Pod, container: &str, restart: u32) -> Result<Vec<String>> {
        let dir = self.logs_dir(pod.uid_of()?).join(container);
        let log = std::fs::read_to_string(dir.join(format!("{restart}.log")))?;
        Ok(log.lines().map(|line| line.splitn(4, ' ').nth(3).unwrap_or_default().to_owned()).collect())
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

    /// Waits until no file of the agent's has these words in it; containers' logs do not count.
    pub(crate) async fn nowhere_on_disk(&self, words: &str) -> Result<()> {
        fn holds(path: &Path, words: &str) -> Result<bool> {
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
}
