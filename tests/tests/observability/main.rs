//! Alerts and dashboards: promtool tests the alerts, a real Prometheus scrapes the agent and the provider, and every figure that is used exists.

mod metrics;
mod prometheus;
mod rules;
mod scrape;

use std::path::{Path, PathBuf};

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn observability() -> PathBuf {
    workspace().join("packaging/chart/observability")
}
