//! A real Prometheus, with the alerts, that scrapes a real agent and a real provider.

use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tart_kubelet_tests::agent::Agent;
use tart_kubelet_tests::control_plane::ControlPlane;
use tart_kubelet_tests::mac::Mac;
use tart_kubelet_tests::process::Process;
use tart_kubelet_tests::prometheus::Prometheus;
use tart_kubelet_tests::wait::eventually;
use tart_kubelet_tests::{programs, skip};

use super::observability;

const DEADLINE: Duration = Duration::from_mins(2);

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// The expressions of all dashboards, with all hosts and fleets selected.
fn expressions() -> Result<Vec<String>> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(observability().join("dashboards"))? {
        let text = std::fs::read_to_string(entry?.path())?;
        let dashboard: Value = serde_json::from_str(&text)?;
        for panel in dashboard["panels"].as_array().context("no panels")? {
            for target in panel["targets"].as_array().context("no targets")? {
                let expression = target["expr"].as_str().context("no expression")?;
                all.push(expression.replace("$instance", ".*").replace("$fleet", ".*"));
            }
        }
    }
    Ok(all)
}

#[tokio::test]
async fn prometheus_scrapes_agent_and_provider_and_understands_every_panel() -> Result<()> {
    if programs::debian("prometheus", "usr/bin/prometheus").is_err() {
        return skip::say("Prometheus is not here, and Debian's package of it cannot be fetched");
    }
    let control_plane = ControlPlane::shared().await?;
    let sandbox = control_plane.sandbox();
    let mac = Mac::new(sandbox)?;
    let node = "mac-of-prometheus";
    let bootstrap = control_plane.bootstrap_kubeconfig().await?;
    let kubeconfig = sandbox.directory("joined")?.join("kubeconfig");
    let agent = Agent::new(&mac, node, &kubeconfig)?;
    let agent = agent
        .flag("--bootstrap-kubeconfig", bootstrap.to_str().context("a path that is not UTF-8")?)
        .start()?;

    let namespace = control_plane.namespace("prometheus").await?;
    let port = free_port()?;
    let mut command = sandbox.command(programs::provider()?);
    command.arg("manager").arg("--kubeconfig").arg(control_plane.admin_kubeconfig());
    command.args(["--mac-list=none", "--tartkubelet-binary-path=/bin/sh"]);
    command.args([format!("--namespace={namespace}"), format!("--secrets-namespace={namespace}")]);
    command.arg(format!("--api-server-url={}", control_plane.server()));
    command.args([format!("--metrics-bind-address=127.0.0.1:{port}")]);
    command.arg("--health-probe-bind-address=127.0.0.1:0").env_remove("RUST_LOG");
    let log = sandbox.directory("provider")?.join("log");
    let provider = Process::start("tart-provider", &mut command, &log)?;

    let address = eventually("the agent's metrics", DEADLINE, async || {
        agent.process().ensure_running()?;
        agent.metrics_address()
    })
    .await?;
    let rules = observability().join("rules.yaml").canonicalize()?;
    let targets = [address, format!("127.0.0.1:{port}")];
    let prometheus = Prometheus::builder().rules(&rules).targets("tart", &targets).start(sandbox)?;
    for (figure, wanted) in [
        ("tart_kubelet_node_condition{condition=\"Ready\",status=\"True\"}", "1"),
        // It bootstrapped with a token, so that its certificate is its own: that of a year.
        ("tart_kubelet_certificate_expiration_timestamp_seconds - time() > bool 86400", "1"),
        ("tart_provider_leader", "1"),
    ] {
        eventually(figure, DEADLINE, async || {
            provider.ensure_running()?;
            let found = prometheus.query(figure).await?;
            ensure!(
                found.len() == 1 && found[0]["value"][1] == wanted,
                "{found:?}\n{}",
                prometheus.process().last_lines()
            );
            Ok(())
        })
        .await?;
    }
    let expressions = expressions()?;
    ensure!(expressions.len() >= 30, "{expressions:?}");
    for expression in &expressions {
        prometheus.query(expression).await?;
    }
    eventually("alerts that were evaluated", DEADLINE, async || {
        let rules = prometheus.get("/api/v1/rules").await?;
        let groups = rules["groups"].as_array().context("no groups")?;
        let rules = groups.iter().flat_map(|group| group["rules"].as_array().into_iter().flatten());
        let health: Vec<_> = rules.map(|rule| rule["health"].clone()).collect();
        ensure!(health.len() >= 13 && health.iter().all(|health| health == "ok"), "{health:?}");
        Ok(())
    })
    .await
}
