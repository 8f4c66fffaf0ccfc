//! What is promised, measured: one line per figure, and the same as JSON in `bench.json`.

mod figure;
mod idle;
mod images;
mod machines;
mod pods;
mod rollout;
mod spdy;
mod streams;
mod transfer;

use std::process::ExitCode;

use anyhow::{Context, Result};
use tart_kubelet_tests::agent::{Agent, RunningAgent};
use tart_kubelet_tests::control_plane::ControlPlane;
use tart_kubelet_tests::kubelet::KubeletClient;
use tart_kubelet_tests::mac::Mac;
use tart_kubelet_tests::sandbox::Sandbox;

use figure::{Figure, Report};

const NODE: &str = "bench-mac";
/// The figures of the kubelet API.
const STREAMS: [Figure; 7] = [
    Figure::RSS_WITH_50_STREAMS,
    Figure::EXEC_ROUND_TRIP,
    Figure::LOG_COPY,
    Figure::RSS_WITH_LOG,
    Figure::PORT_FORWARD_COPY,
    Figure::PORT_FORWARD_SPOILT,
    Figure::RESTART_TO_EXEC,
];

fn main() -> ExitCode {
    let only = std::env::args().nth(1);
    let outcome = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start")
        .and_then(|runtime| runtime.block_on(bench(only.as_deref())));
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Measures, and says whether every budget holds.
async fn bench(only: Option<&str>) -> Result<bool> {
    let mut report = Report::new(only)?;
    report.add(Figure::BINARY_SIZE, async || idle::binary_size()).await?;

    if report.wants(&[Figure::ROLLOUT_PEAK, Figure::ROLLOUT_GROWTH]) {
        rollout(&mut report).await?;
    }
    if report.wants(&Figure::OF_MACHINES) {
        machines(&mut report).await?;
    }
    let without_a_mac = [Figure::BINARY_SIZE, Figure::ROLLOUT_PEAK, Figure::ROLLOUT_GROWTH];
    if report.is_only(&without_a_mac) || report.is_only(&Figure::OF_MACHINES) {
        return report.finish();
    }
    let sandbox = Sandbox::new()?;
    let control_plane = ControlPlane::builder().start(&sandbox).await?;
    let mac = Mac::new(&sandbox)?;
    let _neighbours = idle::start_neighbours(&sandbox)?;
    let kubeconfig = control_plane.node_kubeconfig(NODE)?;
    let mut agent = Agent::new(&mac, NODE, &kubeconfig)?.flag("--node-ip", "127.0.0.1").start()?;
    report.add(Figure::RSS_AT_REST, async || idle::resident_memory(&agent).await).await?;
    if report.wants(&[Figure::TRAFFIC_AT_REST, Figure::CPU_AT_REST, Figure::RESTART_TO_BEAT]) {
        let idler = idle::Idler::start(&control_plane).await?;
        if report.wants(&[Figure::TRAFFIC_AT_REST, Figure::CPU_AT_REST]) {
            let (traffic, cpu) = idler.rest().await?;
            report.add(Figure::TRAFFIC_AT_REST, async || Ok(traffic)).await?;
            report.add(Figure::CPU_AT_REST, async || Ok(cpu)).await?;
        }
        report.add(Figure::RESTART_TO_BEAT, async || Box::pin(idler.restart_to_beat()).await).await?;
    }
    let stage = pods::Stage::set(&control_plane, &mac).await?;
    report.add(Figure::BOUND_TO_RUN, async || Box::pin(stage.bound_to_run()).await).await?;
    report.add(Figure::TART_BEFORE_RUN, async || Box::pin(stage.tart_before_run()).await).await?;
    report.add(Figure::ADDRESS_TO_RUNNING, async || Box::pin(stage.address_to_running()).await).await?;
    report.add(Figure::EXIT_TO_TERMINAL, async || Box::pin(stage.exit_to_terminal()).await).await?;
    let ends = async || Box::pin(stage.command_to_terminal(&agent.agent().state_dir())).await;
    report.add(Figure::COMMAND_TO_TERMINAL, ends).await?;
    if report.wants(&[Figure::IMAGE_CHECK, Figure::WARM_START_READ]) {
        images::cache_large_image(&mac).await?;
        Box::pin(stage.start_of("first", images::LARGE_IMAGE, || Ok(()))).await?;
        report.add(Figure::IMAGE_CHECK, async || images::check_ratio(&mac, &agent)).await?;
        #[cfg(target_os = "linux")]
        {
            let before = images::read_by(&agent)?;
            let second = stage.start_of("second", images::LARGE_IMAGE, || images::read_by(&agent));
            let after = Box::pin(second).await?;
            report.add(Figure::WARM_START_READ, async || Ok(after - before)).await?;
        }
        #[cfg(not(target_os = "linux"))]
        report.leave_out(Figure::WARM_START_READ, "only Linux counts what a process reads")?;
    }
    if report.wants(&STREAMS) {
        Box::pin(streams(&mut report, &control_plane, &stage, &mut agent)).await?;
    }
    if report.wants(&[Figure::PSS_WITH_TWO_VMS, Figure::RESTART_TO_ADOPTED]) {
        let pods = stage.two().await?;
        #[cfg(target_os = "linux")]
        report.add(Figure::PSS_WITH_TWO_VMS, async || idle::proportional_memory(&agent)).await?;
        #[cfg(not(target_os = "linux"))]
        report.leave_out(Figure::PSS_WITH_TWO_VMS, "only Linux counts what processes share")?;
        let adopted = async || Box::pin(stage.restart_to_adopted(&mut agent, &pods)).await;
        report.add(Figure::RESTART_TO_ADOPTED, adopted).await?;
    }
    report.finish()
}

/// A fleet of machines of Cluster API at rest, first a small one.
async fn machines(report: &mut Report) -> Result<()> {
    let sandbox = Sandbox::new()?;
    let mut fleet = Box::pin(machines::Fleet::start(&sandbox)).await?;
    let few = Box::pin(fleet.costs(machines::FEW)).await?;
    let many = Box::pin(fleet.costs(machines::MANY)).await?;
    println!(
        "machines            {} machines: steady after {:.1} s, {:.1} MB, {:.2} % of a core, {:.2} calls per machine and minute",
        machines::FEW,
        few.steady,
        few.memory,
        few.cpu,
        few.calls
    );
    report.add(Figure::MACHINES_STEADY, async || Ok(many.steady)).await?;
    report.add(Figure::MACHINES_MEMORY, async || Ok(many.memory)).await?;
    report.add(Figure::MACHINES_GROWTH, async || Ok(many.memory - few.memory)).await?;
    report.add(Figure::MACHINES_CPU, async || Ok(many.cpu)).await?;
    report.add(Figure::MACHINES_CALLS, async || Ok(many.calls)).await
}

/// Streams to one Pod.
async fn streams(
    report: &mut Report,
    control_plane: &ControlPlane,
    stage: &pods::Stage,
    agent: &mut RunningAgent,
) -> Result<()> {
    control_plane.approve_serving_certificate(NODE, agent).await?;
    let kubelet = KubeletClient::new(control_plane, NODE).await?;
    let pod = stage.streamed().await?;
    if report.wants(&[Figure::RSS_WITH_50_STREAMS]) {
        let open = streams::open(&kubelet, &pod).await?;
        report.add(Figure::RSS_WITH_50_STREAMS, async || idle::resident_memory(agent).await).await?;
        drop(open);
    }
    let round_trip = async || streams::exec_round_trip(&kubelet, agent.agent().mac(), &pod).await;
    report.add(Figure::EXEC_ROUND_TRIP, round_trip).await?;
    if report.wants(&[Figure::LOG_COPY, Figure::RSS_WITH_LOG]) {
        let logs = agent.agent().state_dir().join("logs").join(&pod.uid).join("main");
        transfer::write_log(&logs)?;
        let (memory, ratio) = idle::highest_memory(agent, transfer::log_ratio(&kubelet, &pod)).await?;
        transfer::remove_log(&logs)?;
        report.add(Figure::LOG_COPY, async || Ok(ratio)).await?;
        report.add(Figure::RSS_WITH_LOG, async || Ok(memory)).await?;
    }
    let copy = async || transfer::port_forward_ratio(&kubelet, &pod).await;
    report.add(Figure::PORT_FORWARD_COPY, copy).await?;
    let spoilt = async || transfer::spoilt_by_kubectl(control_plane, &pod).await;
    report.add(Figure::PORT_FORWARD_SPOILT, spoilt).await?;
    let restart = async || streams::restart_to_exec(agent, control_plane, &pod).await;
    report.add(Figure::RESTART_TO_EXEC, restart).await?;
    stage.delete(&pod.name).await
}

/// Rolls a fleet of simulated Macs, which need root on Linux.
async fn rollout(report: &mut Report) -> Result<()> {
    let sandbox = Sandbox::new()?;
    let Some(fleet) = Box::pin(rollout::Fleet::start(&sandbox)).await? else {
        report.leave_out(Figure::ROLLOUT_PEAK, "a simulated Mac needs root on Linux")?;
        return report.leave_out(Figure::ROLLOUT_GROWTH, "a simulated Mac needs root on Linux");
    };
    let peaks = Box::pin(fleet.peaks()).await?;
    report.add(Figure::ROLLOUT_PEAK, async || Ok(peaks.all)).await?;
    report.add(Figure::ROLLOUT_GROWTH, async || Ok(peaks.all - peaks.few)).await
}
