//! Draws the Grafana dashboards with what a Prometheus has seen, an SVG for each: `dashboards PORT START END DIRECTORY`.
//!
//! It knows the panels, units and options that these dashboards use, and refuses others.

mod chart;
mod dashboard;
mod data;
mod panel;
mod svg;
mod unit;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use tart_kubelet_tests::helm;
use tart_kubelet_tests::prometheus::{Client, Range};

use dashboard::Dashboard;

/// How many values a series has.
const POINTS: f64 = 240.0;

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime.context("cannot start").and_then(|runtime| runtime.block_on(draw_all())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("dashboards: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn draw_all() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [port, start, end, directory] = &arguments[..] else {
        bail!("it is called as `dashboards PORT START END DIRECTORY`, with times in seconds since 1970")
    };
    let (start, end): (f64, f64) = (start.parse()?, end.parse()?);
    ensure!(end > start, "the end is not after the start");
    let range = Range { start, end, step: ((end - start) / POINTS).max(1.0) };
    let client = Client::new(port.parse()?);
    for file in files()? {
        let name = file.file_stem().context("a file without a name")?.to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&file)?;
        let dashboard: Dashboard =
            serde_json::from_str(&text).with_context(|| format!("{} is not understood", file.display()))?;
        let (picture, empty) = dashboard.draw(client, range).await.with_context(|| name.clone())?;
        let path = Path::new(directory).join(format!("{name}.svg"));
        std::fs::write(&path, picture).with_context(|| format!("cannot write {}", path.display()))?;
        let panels = dashboard.panels.len();
        println!("{name}.svg: {panels} panels, {} without data{}", empty.len(), list(&empty));
    }
    Ok(())
}

fn list(titles: &[String]) -> String {
    if titles.is_empty() { String::new() } else { format!(": {}", titles.join(", ")) }
}

/// The dashboards of the chart.
fn files() -> Result<Vec<PathBuf>> {
    let directory = helm::chart().join("observability/dashboards");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    files.sort();
    Ok(files)
}
