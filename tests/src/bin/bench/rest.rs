//! What the agent costs when it does nothing.

use std::time::Duration;

use anyhow::{Context, Result};
use sysinfo::{Pid, ProcessRefreshKind, ProcessesToUpdate, System};
use tart_kubelet_tests::agent::RunningAgent;
use tart_kubelet_tests::programs;
use tokio::time::sleep;

/// Long enough for the first beats of the heart and whatever start-up left to do.
const SETTLE: Duration = Duration::from_secs(15);

/// Size of the agent's binary in MB.
#[expect(clippy::cast_precision_loss, reason = "a binary has far less than 2^52 bytes")]
pub(crate) fn binary_size() -> Result<f64> {
    let program = programs::agent()?;
    Ok(std::fs::metadata(&program).with_context(|| program.display().to_string())?.len() as f64 / 1e6)
}

/// Resident memory of an idle agent in MB.
#[expect(clippy::cast_precision_loss, reason = "no process has 2^52 bytes")]
pub(crate) async fn resident_memory(agent: &RunningAgent) -> Result<f64> {
    sleep(SETTLE).await;
    let pid = Pid::from_u32(agent.process().pid().as_raw().unsigned_abs());
    let mut system = System::new().context("cannot look at processes")?;
    let memory = ProcessRefreshKind::nothing().with_memory();
    system.refresh_processes_specifics(ProcessesToUpdate::Some(&[pid]), true, memory);
    Ok(system.process(pid).context("the agent is gone")?.memory() as f64 / 1e6)
}
