//! The collector of VMs that no Pod has any more.

pub(crate) mod base_vms;
mod binding;
mod foreign_vms;
mod orphans;

use anyhow::{Context, Result, ensure};
use tart_kubelet_tests::agent::{Agent, RunningAgent};
use tart_kubelet_tests::process::Process;
use tart_kubelet_tests::wait;

use crate::scene::{DEADLINE, IMAGE, Scene};

/// The UID of a Pod that never existed.
pub(crate) const NO_POD: &str = "00000000-0000-4000-8000-000000000000";
/// The name of the VM of a Pod that never existed.
pub(crate) const ORPHAN: &str = "tk-00000000-0000-4000-8000-000000000000-0";

/// The agent with a collector that runs often, for VMs of any age.
pub(crate) fn frequent_gc(agent: &Agent) -> Agent {
    agent.clone().flag("--vm-gc-interval", "300ms").flag("--vm-gc-min-age", "0s")
}

async fn pass_count(agent: &RunningAgent, result: &str) -> Result<f64> {
    agent.metric(&format!("tart_kubelet_vm_gc_passes_total{{result=\"{result}\"}}")).await
}

/// Waits for three more passes with this result. The first may have begun before now.
async fn passes(agent: &RunningAgent, result: &str) -> Result<()> {
    let before = wait::eventually("figures", DEADLINE, async || pass_count(agent, result).await).await?;
    wait::eventually(&format!("passes that end in {result}"), DEADLINE, async || {
        let now = pass_count(agent, result).await?;
        ensure!(now >= before + 3.0, "{now}, {before} before: {}", agent.process().last_lines());
        Ok(())
    })
    .await
}

/// Whether a VM exists and is whole.
pub(crate) fn vm_exists(scene: &Scene, vm: &str) -> bool {
    scene.vm_dir(vm).join("nvram.bin").exists()
}

/// Waits until the collector has deleted a VM.
pub(crate) async fn collected(scene: &Scene, agent: &RunningAgent, vm: &str) -> Result<()> {
    wait::eventually(&format!("the end of {vm}"), DEADLINE, async || {
        ensure!(!scene.vm_dir(vm).exists(), "{}", agent.process().last_lines());
        Ok(())
    })
    .await
}

/// Clones a VM without the agent.
pub(crate) async fn clone_vm(scene: &Scene, vm: &str) -> Result<()> {
    scene.mac.tart(["clone", IMAGE, vm]).await.map(drop)
}

/// Runs a VM without the agent.
pub(crate) async fn run_vm(scene: &Scene, vm: &str) -> Result<Process> {
    let mut command = scene.mac.command(scene.mac.tart_binary());
    command.args(["run", vm, "--no-graphics"]);
    let process = Process::start("tart run", &mut command, &scene.mac.host().join(format!("{vm}.log")))?;
    wait::eventually("a VM that runs", DEADLINE, async || {
        process.ensure_running()?;
        let running = scene.running_vms().await?;
        ensure!(running.iter().any(|name| name == vm), "{running:?} run");
        Ok(())
    })
    .await?;
    Ok(process)
}

/// The row of `gc --dry-run` about a VM.
async fn dry_run_row(agent: &RunningAgent, vm: &str) -> Result<String> {
    let table = agent.agent().run(&["gc", "--dry-run"]).await?;
    let row = table.lines().find(|line| line.split_whitespace().nth(1) == Some(vm));
    row.map(str::to_owned).with_context(|| format!("no {vm} in\n{table}"))
}
