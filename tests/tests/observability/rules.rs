//! The alerts, with real promtool.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use tart_kubelet_tests::sandbox::Sandbox;
use tart_kubelet_tests::{programs, skip};

use super::observability;

const TESTS: &str = include_str!("rules.yaml");

#[test]
fn alerts_fire_when_they_should_and_only_then() -> Result<()> {
    let Ok(promtool) = programs::debian("prometheus", "usr/bin/promtool") else {
        return skip::say("promtool is not here, and Debian's package of Prometheus cannot be fetched");
    };
    let directory = Sandbox::shared()?.directory("rules")?;
    let rules = std::fs::read_to_string(observability().join("rules.yaml"))?;
    std::fs::write(directory.join("rules.yaml"), &rules)?;
    std::fs::write(directory.join("test.yaml"), TESTS)?;
    for words in [["check", "rules", "rules.yaml"], ["test", "rules", "test.yaml"]] {
        let output = Command::new(&promtool).args(words).current_dir(&directory).output()?;
        let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        ensure!(output.status.success(), "{words:?}: {}", said.concat());
    }
    for alert in rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        let fires = format!("alertname: {alert}\n        exp_alerts:\n          - exp_labels");
        ensure!(TESTS.contains(&fires), "no test sees {alert} fire");
    }
    Ok(())
}

/// Where the documentation is.
const DOCUMENTATION: &str = "https://github.com/tuist/tart-kubelet/blob/main/";

/// A runbook is a place in the documentation, and a link from wherever the alert is read.
#[test]
fn every_alert_says_what_to_do() -> Result<()> {
    let rules = std::fs::read_to_string(observability().join("rules.yaml"))?;
    let alerts = rules.matches("- alert: ").count();
    let runbooks: Vec<_> =
        rules.lines().filter_map(|line| line.trim().strip_prefix("runbook_url: ")).collect();
    assert_eq!(alerts, runbooks.len());
    for runbook in runbooks {
        let runbook = runbook.strip_prefix(DOCUMENTATION).with_context(|| runbook.to_owned())?;
        let (file, anchor) = runbook.split_once('#').context("no anchor")?;
        let text = std::fs::read_to_string(super::workspace().join(file)).with_context(|| file.to_owned())?;
        let anchor_of = |title: &str| {
            let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-'));
            kept.collect::<String>().to_lowercase().replace(' ', "-")
        };
        let titles = text.lines().filter(|line| line.starts_with('#'));
        let found = titles.map(|line| anchor_of(line.trim_start_matches('#').trim())).any(|is| is == anchor);
        ensure!(found, "{file} has no #{anchor}");
    }
    Ok(())
}
