//! Upstream's own end-to-end suite against the agent, on a real control plane and a simulated Mac.
//!
//! Without a focus it runs every spec that a kubelet must pass, and compares what it sees with the tables of `docs/conformance.md`:
//! a failure that is not in a table is an error, and so is a spec in a table that passes.

mod cluster;
mod image;
mod known;
mod report;
mod suite;
mod verdict;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use tart_kubelet_tests::sandbox::Sandbox;
use tokio::signal::unix::{SignalKind, signal};

use cluster::Cluster;
use known::Known;
use suite::{Selection, Suite};
use verdict::Verdict;

/// The tables of specs that do not pass.
const TABLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/conformance.md");

/// What the user asks for.
struct Request {
    /// A regular expression on the names of specs; without one, all that a kubelet must pass.
    focus: Option<String>,
    /// Whether to try the specs that are known not to pass, which takes five minutes for most of them.
    try_known: bool,
    /// How many specs run at once.
    processes: u16,
}

fn main() -> ExitCode {
    let outcome = request().and_then(|request| {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start")?;
        runtime.block_on(conformance(&request))
    });
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("conformance: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Reads the request from the environment, where `make` puts the variables of its command line.
fn request() -> Result<Request> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let processes = variable("PROCS").map_or(Ok(6), |number| number.parse());
    let processes = processes.context("PROCS is not a number")?;
    ensure!(processes > 0, "PROCS is 0");
    Ok(Request { focus: variable("FOCUS"), try_known: variable("KNOWN").is_some(), processes })
}

/// Runs the suite, and says whether the documentation tells the truth about it.
async fn conformance(request: &Request) -> Result<bool> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let sandbox = Sandbox::new()?;
    // Dropping the run ends all of it; what does not end is killed by the sandbox's keeper.
    tokio::select! {
        outcome = Box::pin(run(request, &sandbox)) => outcome,
        _ = interrupt.recv() => Ok(false),
        _ = terminate.recv() => Ok(false),
    }
}

async fn run(request: &Request, sandbox: &Sandbox) -> Result<bool> {
    let known = Known::read(Path::new(TABLES))?;
    let suite = Suite::find(sandbox, output_directory()?).await?;
    let selection =
        request.focus.as_ref().map_or(Selection::Required, |focus| Selection::Focus(focus.clone()));
    let selected = suite.list(&selection).await?;
    ensure!(!selected.is_empty(), "no spec of the suite has a name that matches");
    // A spec that the user names is tried, whatever is known of it.
    let mut left_out = Vec::new();
    if matches!(selection, Selection::Required) {
        let unknown: Vec<_> = known.names().into_iter().filter(|name| !selected.contains(name)).collect();
        ensure!(
            unknown.is_empty(),
            "docs/conformance.md has specs that the suite does not have: {unknown:?}"
        );
        if !request.try_known {
            left_out = known.names();
        }
    }
    say(&format!(
        "{} specs, {} of which are known not to pass; at most {} at once",
        selected.len(),
        selected.iter().filter(|name| known.has(name)).count(),
        request.processes
    ));
    let cluster = Cluster::start(sandbox, &suite).await?;
    let ran = suite.run(&selection, &left_out, request.processes, &cluster.kubeconfig()).await;
    cluster.keep_logs(suite.output());
    let verdict = Verdict::new(&known, &selected, &ran?);
    print!("{verdict}");
    say(&format!("logs and reports are in {}", suite.output().display()));
    Ok(verdict.is_as_documented())
}

/// Where logs and reports go: next to what cargo builds.
fn output_directory() -> Result<PathBuf> {
    let program = std::env::current_exe().context("cannot tell where this program is")?;
    let built = program.ancestors().nth(2).context("this program is in no directory")?;
    let directory = built.join("conformance");
    std::fs::create_dir_all(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
    Ok(directory)
}

fn say(text: &str) {
    eprintln!("conformance: {text}");
}
