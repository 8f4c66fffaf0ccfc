//! A real Prometheus, with the alerts, that scrapes a real agent and a real provider.

use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tart_kubelet_tests::agent::Agent;
use tart_kubelet_tests::control_plane::ControlPlane;
use tart_kubelet_tests::mac::Mac;
use tart_kubelet_tests::process::Process;
use tart_kubelet_tests::prometheus::Prometheus;
use tart_kubelet_tests::wait::eventually;
use tart_kubelet_tests::{programs, skip};

use super::observability;

const IMAGE: &str = "registry.test/macos/sequoia:15";
const DEADLINE: Duration = Duration::from_mins(2);

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// The expressions of all dashboards, with all hosts and fleets selected; of each, whether it is of an agent.
fn expressions() -> Result<Vec<(bool, String)>> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(observability().join("dashboards"))? {
        let path = entry?.path();
        let text = std::fs::read_to_string(&path)?;
        let is_of_agent = path.file_name().is_some_and(|name| name != "fleet.json");
        let dashboard: Value = serde_json::from_str(&text)?;
        for panel in dashboard["panels"].as_array().context("no panels")? {
            for target in panel["targets"].as_array().context("no targets")? {
                let expression = target["expr"].as_str().context("no expression")?;
                all.push((is_of_agent, expression.replace("$instance", ".*").replace("$fleet", ".*")));
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
    mac.add_image(IMAGE, &json!({}))?;
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
    // Its pull and its start are what some panels show.
    let kubectl = control_plane.kubectl().namespace(&namespace);
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "started" },
        "spec": {
            "nodeName": node, "restartPolicy": "Never", "tolerations": [{ "operator": "Exists" }],
            "containers": [{ "name": "main", "image": IMAGE, "command": ["/bin/sh", "-c", "exec sleep 3600"] }],
        },
    });
    kubectl.apply(&pod.to_string()).await?;
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
    for (is_of_agent, expression) in &expressions {
        // Those of failures are empty as long as nothing fails.
        if !is_of_agent || expression.ends_with("> 0") {
            prometheus.query(expression).await?;
            continue;
        }
        eventually(expression, DEADLINE, async || {
            agent.process().ensure_running()?;
            ensure!(!prometheus.query(expression).await?.is_empty(), "the panel is empty");
            Ok(())
        })
        .await?;
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
