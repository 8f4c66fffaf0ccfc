//! The agent and its shims die between any two effects. The next agent finishes what was begun, and does nothing twice.

mod agent;
pub(crate) mod agent_restart;
mod coverage;
mod exit_recovery;
mod gc;
mod newer_release;
mod older_release;
mod power_loss;
mod records;
mod secrets;
mod shim;
mod stray_processes;
mod tart_home_owner;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use tart_kubelet_tests::agent::{Agent, RunningAgent};
use tart_kubelet_tests::wait;

use crate::scene::{DEADLINE, Scene};

/// An agent that dies at one crash point after the other, or whose shims do.
///
/// The list of points is a file. The process that reaches the first point removes it from the list and dies, so a point that is no
/// longer in the list was really reached.
pub(crate) struct CrashingAgent {
    agent: Agent,
    running: RunningAgent,
    list: PathBuf,
    last: String,
}

impl CrashingAgent {
    /// Starts the agent of a scene, to die at these points.
    pub(crate) fn start(scene: &Scene, points: &[&str]) -> Result<Self> {
        let list = scene.agent.state_dir().with_file_name("crashes");
        let last = points.last().copied().unwrap_or_default().to_owned();
        std::fs::write(&list, points.join("\n") + "\n")?;
        let agent = scene.agent.clone().env("TART_KUBELET_CRASH", &list.display().to_string());
        Ok(Self { running: agent.start()?, agent, list, last })
    }

    /// Starts the agent again after each crash, the last one included, and returns the agent that lives. The last crash is the
    /// agent's own when the last point is, and a shim's otherwise.
    pub(crate) async fn survive(mut self) -> Result<RunningAgent> {
        self.reach_the_last().await?;
        if !self.last.starts_with("agent.") {
            return Ok(self.running);
        }
        self.running.wait_for_exit(DEADLINE).await?;
        self.agent.start()
    }

    /// Starts the agent again after each crash but the last, which is its own.
    pub(crate) async fn crash(mut self) -> Result<()> {
        self.reach_the_last().await?;
        self.running.wait_for_exit(DEADLINE).await.map(drop)
    }

    /// Leaves the agent dead after its crash at the first point. Calls `then`, and returns when the agent's shims have reached the
    /// other points.
    pub(crate) async fn stay_dead(self, then: impl FnOnce() -> Result<()>) -> Result<()> {
        self.running.wait_for_exit(DEADLINE).await?;
        then()?;
        wait::eventually("a crash of a shim without its agent", DEADLINE, async || {
            let next = self.next()?;
            if !next.is_empty() {
                bail!("{next} is next");
            }
            Ok(())
        })
        .await
    }

    async fn reach_the_last(&mut self) -> Result<()> {
        loop {
            let point = self.next()?;
            if point.is_empty() {
                return Ok(());
            }
            let what = format!("a crash at {point}");
            let reached = wait::eventually(&what, DEADLINE, async || {
                let is_dead = self.running.process().exit_status()?.is_some();
                if self.next()? != point {
                    return Ok(());
                }
                // It crashed at the point before.
                if is_dead {
                    self.running = self.agent.start()?;
                }
                bail!("neither agent nor shim has crashed there")
            });
            reached.await.with_context(|| self.running.log().unwrap_or_default())?;
        }
    }

    /// The next point, and how many there are from it on; empty when there is none.
    fn next(&self) -> Result<String> {
        let left = std::fs::read_to_string(&self.list)?;
        let count = left.lines().count();
        Ok(left.lines().next().map(|point| format!("{point} ({count} to go)")).unwrap_or_default())
    }
}

/// Has the agent crash at all these points, and returns the one that lives.
async fn crash_at(scene: &Scene, points: &[&str]) -> Result<RunningAgent> {
    CrashingAgent::start(scene, points)?.survive().await
}
