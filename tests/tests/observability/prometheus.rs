//! A real Prometheus, with the alerts, that scrapes a real agent and a real provider.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tart_kubelet_tests::agent::Agent;
use tart_kubelet_tests::control_plane::ControlPlane;
use tart_kubelet_tests::mac::Mac;
use tart_kubelet_tests::process::Process;
use tart_kubelet_tests::sandbox::Sandbox;
use tart_kubelet_tests::wait::eventually;
use tart_kubelet_tests::{programs, skip};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::observability;

const DEADLINE: Duration = Duration::from_mins(2);
const ANSWER_DEADLINE: Duration = Duration::from_secs(20);

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

pub(super) struct Prometheus {
    pub(super) process: Process,
    port: u16,
}

impl Prometheus {
    fn of_targets(sandbox: &Sandbox, program: &Path, targets: &[String]) -> Result<Self> {
        let rules = observability().join("rules.yaml").canonicalize()?;
        let config = json!({
            "global": { "scrape_interval": "1s", "evaluation_interval": "1s" },
            "rule_files": [rules],
            "scrape_configs": [{ "job_name": "tart", "static_configs": [{ "targets": targets }] }],
        });
        // JSON is YAML.
        Self::start(sandbox, program, &config.to_string())
    }

    /// A Prometheus with this configuration.
    pub(super) fn start(sandbox: &Sandbox, program: &Path, config: &str) -> Result<Self> {
        let directory = sandbox.directory("prometheus")?;
        std::fs::write(directory.join("prometheus.yml"), config)?;
        let port = free_port()?;
        let mut command = sandbox.command(program);
        command.arg(format!("--config.file={}", directory.join("prometheus.yml").display()));
        command.arg(format!("--storage.tsdb.path={}", directory.join("data").display()));
        command.arg(format!("--web.listen-address=127.0.0.1:{port}"));
        Ok(Self { process: Process::start("prometheus", &mut command, &directory.join("log"))?, port })
    }

    async fn get(&self, path: &str) -> Result<Value> {
        self.process.ensure_running()?;
        let exchange = async {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).await?;
            stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: prometheus\r\n\r\n").as_bytes()).await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            anyhow::Ok(answer)
        };
        let answer = timeout(ANSWER_DEADLINE, exchange).await.context("Prometheus does not answer")??;
        let (_, body) = answer.split_once("\r\n\r\n").context("no body")?;
        let value: Value = serde_json::from_str(body).with_context(|| answer.clone())?;
        ensure!(value["status"] == "success", "{path}: {value}");
        Ok(value["data"].clone())
    }

    pub(super) async fn query(&self, expression: &str) -> Result<Vec<Value>> {
        let is_plain = |byte: &u8| byte.is_ascii_alphanumeric();
        let encode =
            |byte: u8| if is_plain(&byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
        let encoded: String = expression.bytes().map(encode).collect();
        let data = self.get(&format!("/api/v1/query?query={encoded}")).await?;
        Ok(data["result"].as_array().cloned().unwrap_or_default())
    }
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
    let Ok(program) = programs::debian("prometheus", "usr/bin/prometheus") else {
        return skip::say("Prometheus is not here, and Debian's package of it cannot be fetched");
    };
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
    let prometheus = Prometheus::of_targets(sandbox, &program, &[address, format!("127.0.0.1:{port}")])?;
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
                prometheus.process.last_lines()
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
