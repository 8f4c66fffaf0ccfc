//! What the agent costs when it does nothing.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use kube::Api;
use sysinfo::{Pid, Process, ProcessRefreshKind, ProcessesToUpdate, System};
use tart_kubelet_tests::agent::{Agent, RunningAgent};
use tart_kubelet_tests::control_plane::ControlPlane;
use tart_kubelet_tests::mac::Mac;
use tart_kubelet_tests::process as test_process;
use tart_kubelet_tests::proxy::Proxy;
use tart_kubelet_tests::sandbox::Sandbox;
use tart_kubelet_tests::{programs, wait};
use tokio::time::sleep;

use super::figure::median;

/// Long enough for the first beats of the heart and whatever start-up left to do.
const SETTLE: Duration = Duration::from_secs(15);

/// What an agent costs is measured for as long as it takes until it has written its whole status once.
const REST: Duration = Duration::from_mins(5);
/// How often memory that changes is looked at.
const LOOK: Duration = Duration::from_millis(50);
const RESTARTS: usize = 5;
const NEIGHBOURS: usize = 300;
const NEIGHBOURS_VARIABLES: usize = 40;
const NODE: &str = "bench-idle";

/// Size of the agent's binary in MB.
#[expect(clippy::cast_precision_loss, reason = "a binary has far less than 2^52 bytes")]
pub(crate) fn binary_size() -> Result<f64> {
    let program = programs::agent()?;
    Ok(std::fs::metadata(&program).with_context(|| program.display().to_string())?.len() as f64 / 1e6)
}

/// Processes like those of a Mac whose user is logged in. The agent looks at all processes for what earlier agents have left.
pub(crate) fn start_neighbours(sandbox: &Sandbox) -> Result<test_process::Process> {
    let variable = |number| (format!("NEIGHBOUR_{number}"), "x".repeat(60));
    let mut command = sandbox.command("sh");
    command.args(["-c", &format!("for i in $(seq {NEIGHBOURS}); do sleep 3600 & done; wait")]);
    command.envs((0..NEIGHBOURS_VARIABLES).map(variable));
    test_process::Process::start("neighbours", &mut command, &sandbox.directory("neighbours")?.join("log"))
}

/// Resident memory of an agent in MB when its latest work is done.
pub(crate) async fn resident_memory(agent: &RunningAgent) -> Result<f64> {
    sleep(SETTLE).await;
    memory_now(agent)
}

/// The highest resident memory of an agent in MB until some work is done, and what the work results in.
pub(crate) async fn highest_memory<T>(
    agent: &RunningAgent,
    work: impl Future<Output = Result<T>>,
) -> Result<(f64, T)> {
    let mut highest = memory_now(agent)?;
    tokio::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return Ok((highest, done?)),
            () = sleep(LOOK) => highest = highest.max(memory_now(agent)?),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "no process has 2^52 bytes")]
fn memory_now(agent: &RunningAgent) -> Result<f64> {
    let memory = look(agent, ProcessRefreshKind::nothing().with_memory(), Process::memory)?;
    Ok(memory as f64 / 1e6)
}

/// What an agent and its shims take of the machine's memory in MB: what they share counts once.
#[cfg(target_os = "linux")]
#[expect(clippy::cast_precision_loss, reason = "no machine has 2^52 bytes")]
pub(crate) fn proportional_memory(agent: &RunningAgent) -> Result<f64> {
    let state = agent.agent().state_dir();
    let mut system = System::new().context("cannot look at processes")?;
    let what = ProcessRefreshKind::nothing().without_tasks().with_cmd(sysinfo::UpdateKind::Always);
    system.refresh_processes_specifics(ProcessesToUpdate::All, true, what);
    let is_shim = |process: &Process| {
        let word = |index: usize| process.cmd().get(index).map(std::path::Path::new);
        word(1) == Some("shim".as_ref()) && word(2).is_some_and(|dir| dir.starts_with(&state))
    };
    let shims = system.processes().values().filter(|process| is_shim(process)).map(|one| one.pid().as_u32());
    let all: Vec<_> = shims.chain([agent.process().pid().as_raw().unsigned_abs()]).collect();
    ensure!(all.len() == 3, "not an agent and two shims, but {all:?}");
    let mut kibibytes = 0;
    for pid in all {
        let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
        let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:")?.trim().strip_suffix(" kB"));
        kibibytes += line.and_then(|number| number.parse::<u64>().ok()).context("no Pss")?;
    }
    Ok((kibibytes << 10) as f64 / 1e6)
}

fn look(agent: &RunningAgent, what: ProcessRefreshKind, read: impl Fn(&Process) -> u64) -> Result<u64> {
    let pid = Pid::from_u32(agent.process().pid().as_raw().unsigned_abs());
    let mut system = System::new().context("cannot look at processes")?;
    system.refresh_processes_specifics(ProcessesToUpdate::Some(&[pid]), true, what);
    Ok(read(system.process(pid).context("the agent is gone")?))
}

/// An agent without Pods whose way to the API server is watched.
pub(crate) struct Idler {
    proxy: Proxy,
    agent: RunningAgent,
    leases: Api<Lease>,
    nodes: Api<Node>,
}

impl Idler {
    pub(crate) async fn start(control_plane: &ControlPlane) -> Result<Self> {
        let proxy = Proxy::start(control_plane).await?;
        let kubeconfig = proxy.kubeconfig(&control_plane.node_kubeconfig(NODE)?)?;
        let mac = Mac::new(control_plane.sandbox())?;
        let agent = Agent::new(&mac, NODE, &kubeconfig)?.flag("--node-ip", "127.0.0.1").start()?;
        let client = control_plane.client().await?;
        let nodes = Api::all(client.clone());
        let idler = Self { proxy, agent, leases: Api::namespaced(client, "kube-node-lease"), nodes };
        wait::until(&idler.leases, NODE, "there", REST, |_| true).await?;
        Ok(idler)
    }

    /// MB an hour to and from the API server, and percent of a core.
    #[expect(clippy::cast_precision_loss, reason = "neither is near 2^52")]
    pub(crate) async fn rest(&self) -> Result<(f64, f64)> {
        sleep(SETTLE).await;
        let what = ProcessRefreshKind::nothing().with_cpu();
        let cpu = || look(&self.agent, what, Process::accumulated_cpu_time);
        let before = self.ready().await?;
        let (bytes, busy, begun) = (self.proxy.bytes(), cpu()?, Instant::now());
        sleep(REST).await;
        let seconds = begun.elapsed().as_secs_f64();
        let traffic = (self.proxy.bytes() - bytes) as f64 / 1e6 * 3600.0 / seconds;
        let milliseconds = (cpu()? - busy) as f64;
        let after = self.ready().await?;
        ensure!(after.last_heartbeat_time > before.last_heartbeat_time, "the status was not confirmed");
        let word =
            |ready: &NodeCondition| (ready.status.clone(), ready.reason.clone(), ready.message.clone());
        ensure!(word(&before) == word(&after), "at rest, {before:?} has become {after:?}");
        Ok((traffic, milliseconds / 10.0 / seconds))
    }

    async fn ready(&self) -> Result<NodeCondition> {
        let status = self.nodes.get(NODE).await?.status.unwrap_or_default();
        let mut conditions = status.conditions.unwrap_or_default().into_iter();
        conditions.find(|one| one.type_ == "Ready").context("no condition Ready")
    }

    /// Milliseconds from the start of an agent that was killed to the next renewal of its Lease.
    pub(crate) async fn restart_to_beat(self) -> Result<f64> {
        let renewed =
            |lease: &Lease| lease.spec.as_ref().and_then(|spec| spec.renew_time.as_ref()).map(|t| t.0);
        let Self { mut agent, leases, proxy: _proxy, nodes: _ } = self;
        let mut times = Vec::new();
        for _ in 0..RESTARTS {
            agent.kill9()?;
            let last = renewed(&leases.get(NODE).await?);
            let begun = Instant::now();
            agent = agent.agent().start()?;
            wait::until(&leases, NODE, "renewed", REST, |lease| renewed(lease) > last).await?;
            times.push(begun.elapsed().as_secs_f64() * 1e3);
        }
        Ok(median(times))
    }
}
