//! A fleet in a box: the chart by real helm, real Cluster API, five simulated Macs, and what happens to a fleet in a year, in a few minutes.

mod board;
mod evidence;
mod kinds;
mod metrics;
mod print;
mod stages;
mod surprise;
mod workload;
mod world;

use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use jiff::Timestamp;
use tart_kubelet_tests::programs;
use tart_kubelet_tests::sandbox::Sandbox;
use tokio::signal::unix::{SignalKind, signal};

use board::Board;
use metrics::Scraper;
use print::{print, say};
use surprise::Expected;
use world::World;

/// No stage takes longer on a busy machine.
const STAGE_DEADLINE: Duration = Duration::from_mins(12);

/// What the command line asks for.
#[derive(Debug, Clone, Default)]
struct Options {
    /// The fleet runs on at the end, until Ctrl-C.
    keep: bool,
    /// Where the dashboards are drawn into.
    pictures: Option<String>,
}

impl Options {
    fn of_command_line() -> Result<Self> {
        let mut options = Self::default();
        for argument in std::env::args().skip(1) {
            match argument.split_once('=') {
                None if argument == "--keep" => options.keep = true,
                Some(("--pictures", directory)) => options.pictures = Some(directory.to_owned()),
                _ => bail!("{argument} is not known: there are --keep and --pictures=DIRECTORY"),
            }
        }
        Ok(options)
    }
}

fn main() -> ExitCode {
    let outcome = Options::of_command_line().and_then(|options| {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        runtime.context("cannot start").and_then(|runtime| runtime.block_on(demo(&options)))
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fleet-demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn demo(options: &Options) -> Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let sandbox = Sandbox::new()?;
    // Dropping the show ends all of it; what does not end is killed by the sandbox's keeper.
    let has_passed = AtomicBool::new(false);
    let outcome = tokio::select! {
        outcome = show(&sandbox, options, &has_passed) => outcome,
        _ = interrupt.recv() => ended(&has_passed),
        _ = terminate.recv() => ended(&has_passed),
    };
    outcome.map_err(|error| match evidence::keep(&sandbox) {
        Ok(directory) => error.context(format!("the logs are in {}", directory.display())),
        Err(lost) => error.context(format!("the logs are lost: {lost:#}")),
    })
}

/// A user has ended the demo, which is an error before it has passed.
fn ended(has_passed: &AtomicBool) -> Result<()> {
    say("ending");
    ensure!(has_passed.load(Ordering::Relaxed), "it was ended before it could prove everything");
    Ok(())
}

async fn show(sandbox: &Sandbox, options: &Options, has_passed: &AtomicBool) -> Result<()> {
    let start = Instant::now();
    let world = World::new(sandbox).await?.context("Macs cannot be simulated here: see above")?;
    say(&format!("all is there after {:.0} s", start.elapsed().as_secs_f64()));
    let mut scraper = match options.pictures {
        Some(_) => Some(Scraper::start(&world, sandbox).await?),
        None => None,
    };
    let port = scraper.as_ref().map(Scraper::port);
    let mut board = Board::new(&world, start);
    let scrape = async {
        match &mut scraper {
            Some(scraper) => scraper.follow(&world).await,
            None => std::future::pending().await,
        }
    };
    let began = Timestamp::now();
    let steps = async {
        let Seen { lines, surprises, waiting } = play(&world).await?;
        if let (Some(directory), Some(port)) = (&options.pictures, port) {
            draw(sandbox, port, [began, waiting], Path::new(directory)).await?;
        }
        ensure!(surprises.is_empty(), "{}", surprises.join("\n"));
        say(&format!("passed after {:.0} s:", start.elapsed().as_secs_f64()));
        print(&lines.iter().flat_map(|line| ["  ", line.as_str(), "\n"]).collect::<String>());
        has_passed.store(true, Ordering::Relaxed);
        if options.keep {
            hint(&world, port);
            std::future::pending::<()>().await;
        }
        Ok(())
    };
    tokio::select! {
        outcome = steps => outcome,
        never = board.follow() => match never {},
        never = scrape => match never {},
    }
}

/// What the stages have shown.
struct Seen {
    /// A line about each.
    lines: Vec<String>,
    /// What was a surprise, though the stage did what it is about.
    surprises: Vec<String>,
    /// When a machine waited for a Mac, so that all dashboards have something to show.
    waiting: Timestamp,
}

/// All stages.
async fn play(world: &World) -> Result<Seen> {
    let mut expected = Expected::default();
    // The API server's own, when it has just started.
    expected.warning("Service", "ClusterIPNotAllocated");
    let (mut seen, mut surprises) = (Vec::new(), Vec::new());
    macro_rules! stage {
        ($title:literal, $stage:expr) => {{
            say(&format!("STAGE {}: {}", seen.len() + 1, $title));
            let began = Instant::now();
            let ended = tokio::time::timeout(STAGE_DEADLINE, $stage).await;
            let line = ended.with_context(|| format!("it took longer than {STAGE_DEADLINE:?}"));
            let line = line.and_then(|line| line).context($title)?;
            if let Err(surprise) = expected.ensure_nothing_else(world).await {
                let surprise = format!("{}: {surprise:#}", $title);
                say(&format!("SURPRISE: {surprise}"));
                surprises.push(surprise);
            }
            seen.push(format!("{line} ({:.0} s)", began.elapsed().as_secs_f64()));
        }};
    }
    stage!("install", stages::install(world));
    stage!("scale up", stages::scale_up(world));
    stage!("run Pods", stages::pods(world, &mut expected));
    stage!("bake an image", stages::bake(world));
    stage!("roll a new agent while Pods run", stages::roll(world));
    stage!("lose a Mac", stages::lose(world, &mut expected));
    let waiting = Timestamp::now();
    stage!("reclaim a stranded Mac", stages::reclaim(world));
    stages::show_all(world).await?;
    Ok(Seen { lines: seen, surprises, waiting })
}

/// Has the dashboards drawn from what Prometheus has seen.
async fn draw(sandbox: &Sandbox, port: u16, times: [Timestamp; 2], directory: &Path) -> Result<()> {
    let directory = std::path::absolute(directory)?;
    std::fs::create_dir_all(&directory)?;
    let mut command = sandbox.command(programs::find("dashboards")?);
    command.arg(port.to_string());
    command.args(times.map(|time| time.as_second().to_string()));
    command.arg(&directory);
    print(&tart_kubelet_tests::process::run(command, "", STAGE_DEADLINE).await?);
    Ok(())
}

fn hint(world: &World, prometheus: Option<u16>) {
    let program = std::path::PathBuf::from(world.pods_kubectl().command().get_program());
    let path = program.parent().map(|directory| directory.display().to_string()).unwrap_or_default();
    say("try it yourself, in another shell; Ctrl-C here ends everything:");
    let kubeconfig = world.control_plane.admin_kubeconfig().display();
    print(&format!("  export KUBECONFIG={kubeconfig} PATH={path}:$PATH\n  kubectl get nodes,pods -o wide\n"));
    if let Some(port) = prometheus {
        print(&format!("  Prometheus: http://127.0.0.1:{port}\n"));
    }
}
