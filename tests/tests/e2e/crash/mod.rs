//! The agent and its shims die between any two effects; whoever comes next finishes what was begun, and does nothing twice.

mod agent;
pub(crate) mod agent_restart;
mod coverage;
mod exit_recovery;
mod gc;
mod power_loss;
mod records;
mod secrets;
mod shim;
mod stray_processes;
mod tart_home_owner;

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod};
use tart_kubelet_tests::agent::{Agent, RunningAgent};
use tart_kubelet_tests::wait;

use crate::scene::{DEADLINE, Scene};

/// An agent that dies at one point after the other, or whose shims do.
///
/// The list of points is a file. Whoever comes to the first one strikes it off and dies, so a point that is off the list was
/// really come to.
pub(crate) struct Mortal {
    agent: Agent,
    running: RunningAgent,
    list: PathBuf,
    last: String,
}

impl Mortal {
    /// Starts the agent of a scene, to die at these points.
    pub(crate) fn start(scene: &Scene, points: &[&str]) -> Result<Self> {
        let list = scene.agent.state_dir().with_file_name("crashes");
        let last = points.last().copied().unwrap_or_default().to_owned();
        std::fs::write(&list, points.join("\n") + "\n")?;
        let agent = scene.agent.clone().env("TART_KUBELET_CRASH", &list.display().to_string());
        Ok(Self { running: agent.start()?, agent, list, last })
    }

    /// Has the agent start again after each death, the last one included, and returns the one that lives. It is the agent itself that
    /// dies last when that point is one of its own, and one of its shims otherwise.
    pub(crate) async fn outlive(mut self) -> Result<RunningAgent> {
        self.come_to_the_last().await?;
        if !self.last.starts_with("agent.") {
            return Ok(self.running);
        }
        self.running.wait_for_exit(DEADLINE).await?;
        self.agent.start()
    }

    /// Has the agent start again after each death but the last, which is its own.
    pub(crate) async fn die(mut self) -> Result<()> {
        self.come_to_the_last().await?;
        self.running.wait_for_exit(DEADLINE).await.map(drop)
    }

    /// Leaves the agent dead after its first death, which is at the first point. Does something then, and returns when its shims have
    /// come to the other points.
    pub(crate) async fn leave_dead(self, then: impl FnOnce() -> Result<()>) -> Result<()> {
        self.running.wait_for_exit(DEADLINE).await?;
        then()?;
        wait::eventually("a shim's death without its agent", DEADLINE, async || {
            let next = self.next()?;
            if !next.is_empty() {
                bail!("{next} is next");
            }
            Ok(())
        })
        .await
    }

    async fn come_to_the_last(&mut self) -> Result<()> {
        loop {
            let point = self.next()?;
            if point.is_empty() {
                return Ok(());
            }
            let what = format!("a death at {point}");
            let struck = wait::eventually(&what, DEADLINE, async || {
                let is_dead = self.running.process().exit_status()?.is_some();
                if self.next()? != point {
                    return Ok(());
                }
                // It has died at the point before.
                if is_dead {
                    self.running = self.agent.start()?;
                }
                bail!("nobody has died there")
            });
            struck.await.with_context(|| self.running.log().unwrap_or_default())?;
        }
    }

    /// The point at which somebody is to die next, and how many there are from it on; empty when there is none.
    fn next(&self) -> Result<String> {
        let left = std::fs::read_to_string(&self.list)?;
        let count = left.lines().count();
        Ok(left.lines().next().map(|point| format!("{point} ({count} to go)")).unwrap_or_default())
    }
}

/// Has the agent die at all these points, while something happens that takes it there.
async fn dies_at(scene: &Scene, points: &[&str]) -> Result<RunningAgent> {
    Mortal::start(scene, points)?.outlive().await
}

pub(crate) fn container(pod: &Pod) -> Result<ContainerStatus> {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    statuses.and_then(|all| all.first()).cloned().context("no container status")
}

pub(crate) fn end_of(pod: &Pod) -> Result<ContainerStateTerminated> {
    container(pod)?.state.and_then(|state| state.terminated).context("not terminated")
}

pub(crate) fn last_end_of(pod: &Pod) -> Result<ContainerStateTerminated> {
    container(pod)?.last_state.and_then(|state| state.terminated).context("it has not ended before")
}

pub(crate) fn init_end_of(pod: &Pod) -> Result<ContainerStateTerminated> {
    let statuses = pod.status.as_ref().and_then(|status| status.init_container_statuses.as_ref());
    let first = statuses.and_then(|all| all.first()).context("no init container")?;
    first.state.as_ref().and_then(|state| state.terminated.clone()).with_context(|| format!("{first:?}"))
}

/// How often a VM has booted on this Mac: each clone has a MAC address, and so a lease, of its own.
pub(crate) fn boots(scene: &Scene) -> Result<usize> {
    let leases = match std::fs::read_to_string(scene.mac.host().join("dhcpd_leases")) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        other => other?,
    };
    let owners = leases.lines().filter(|line| line.trim_start().starts_with("hw_address="));
    Ok(owners.collect::<BTreeSet<_>>().len())
}

/// Deletes a Pod, and sees to it that nothing is left of it.
pub(crate) async fn forget(scene: &Scene, name: &str) -> Result<()> {
    scene.kubectl.run(["delete", "pod", name, "--wait=false"]).await?;
    wait::until_gone(&scene.pods, name, DEADLINE).await?;
    scene.nothing_left().await
}
