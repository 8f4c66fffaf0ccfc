//! `tart-kubelet status`: the job, the Node, the VMs, and the certificate.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use jiff::Timestamp;
use launchd::{Host, Launchctl};
use serde::Serialize;
use tokio::time::timeout;

use super::AgentSettings;
use super::apply::{InstallError, agent_label};
use super::doctor::{self, Finding, Format, Level};
use super::leave::running_vms;
use super::node_watch;
use crate::error_chain::chain;
use crate::identity::certificate_end;
use crate::state::StateDir;

/// How long the agent may take to show its metrics.
const METRICS_DEADLINE: Duration = Duration::from_secs(5);
/// The metric with the time of the collector's last pass.
const LAST_PASS: &str = "tart_kubelet_vm_gc_last_success_timestamp_seconds";

/// How the agent of this Mac and its Node are.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Status {
    job: JobStatus,
    node: NodeStatus,
    /// The VMs that run.
    vms: Vec<String>,
    /// Why these may not be all.
    #[serde(skip_serializing_if = "Option::is_none")]
    vms_error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_collector_pass: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    certificate_ends: Option<Timestamp>,
    /// What `doctor` finds wrong.
    findings: Vec<Finding>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct JobStatus {
    is_loaded: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeStatus {
    name: String,
    /// Why the Node could not be looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    conditions: Vec<Condition>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

impl Status {
    /// Looks at this Mac.
    pub(crate) async fn observe<H: Host>(host: &H, settings: &AgentSettings) -> Result<Self, InstallError> {
        let registration = Launchctl::of(host).print(&agent_label()).await?;
        let service = registration.service();
        let state = StateDir::at(&settings.state_dir);
        let (vms, vms_error) = match running_vms(&state) {
            Ok(vms) => (vms, None),
            Err(error) => (Vec::new(), Some(chain(&error))),
        };
        let findings = doctor::judge(&doctor::observe(host, settings).await?);
        let last_pass = match settings.metrics {
            Some(address) => timeout(METRICS_DEADLINE, last_pass(address)).await.ok().flatten(),
            None => None,
        };
        Ok(Self {
            job: JobStatus {
                is_loaded: service.is_some(),
                state: service.and_then(|service| service.state.clone()),
                pid: registration.pid(),
            },
            node: NodeStatus::observe(settings).await,
            vms,
            vms_error,
            last_collector_pass: last_pass,
            certificate_ends: certificate_end(&state.pki_path()),
            findings: findings.into_iter().filter(|finding| finding.level != Level::Ok).collect(),
        })
    }

    /// The status as text.
    pub(crate) fn render(&self, format: Format) -> String {
        match format {
            Format::Text => self.text(),
            Format::Json => serde_json::to_string_pretty(self).unwrap_or_default() + "\n",
        }
    }

    fn text(&self) -> String {
        let mut lines = vec![
            match (&self.job.state, self.job.pid) {
                (_, Some(pid)) => format!("agent        runs as process {pid}"),
                (Some(state), None) => format!("agent        does not run: launchd says {state}"),
                (None, None) => {
                    "agent        is not installed: `sudo tart-kubelet join` installs it".to_owned()
                }
            },
            match &self.node.error {
                Some(error) => format!("node         {}: {error}", self.node.name),
                None => format!("node         {}", self.node.name),
            },
        ];
        for Condition { kind, status, message } in &self.node.conditions {
            let words = message.as_ref().map(|message| format!("  {message}")).unwrap_or_default();
            lines.push(format!("             {kind}={status}{words}"));
        }
        lines.push(match &self.vms_error {
            Some(error) => format!("VMs          not known: {error}"),
            None if self.vms.is_empty() => "VMs          none".to_owned(),
            None => format!("VMs          {}", self.vms.join(", ")),
        });
        lines.push(match self.last_collector_pass {
            Some(time) => format!("collector    last pass {time}"),
            None => "collector    its last pass is not known".to_owned(),
        });
        lines.push(match self.certificate_ends {
            Some(time) => format!("certificate  ends {time}"),
            None => "certificate  the agent has none of its own: its kubeconfig has what it needs, or it has not joined".to_owned(),
        });
        lines.extend(self.findings.iter().map(|finding| format!("doctor       {finding}")));
        lines.join("\n") + "\n"
    }
}

impl NodeStatus {
    async fn observe(settings: &AgentSettings) -> Self {
        let name = settings.node.to_string();
        let failed = |error: String| Self { name: name.clone(), error: Some(error), conditions: Vec::new() };
        let client = match node_watch::client(settings).await {
            Ok(client) => client,
            Err(error) => return failed(chain(&error)),
        };
        match node_watch::node(&client, settings).await {
            Ok(Some(node)) => {
                let condition = |condition: &k8s_openapi::api::core::v1::NodeCondition| Condition {
                    kind: condition.type_.clone(),
                    status: condition.status.clone(),
                    message: condition.message.clone(),
                };
                let conditions = node_watch::conditions(&node).iter().map(condition).collect();
                Self { name, error: None, conditions }
            }
            Ok(None) => failed("the API server has no such Node".to_owned()),
            Err(error) => failed(error.without_content()),
        }
    }
}

/// When the collector of orphan VMs last passed, from the agent's metrics.
async fn last_pass(address: SocketAddr) -> Option<Timestamp> {
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let response = client.get(format!("http://{address}/metrics").parse().ok()?).await.ok()?;
    let body = response.into_body().collect().await.ok()?.to_bytes();
    parse_last_pass(&String::from_utf8_lossy(&body))
}

fn parse_last_pass(metrics: &str) -> Option<Timestamp> {
    let line = metrics.lines().find_map(|line| line.strip_prefix(LAST_PASS)?.strip_prefix(' '))?;
    let seconds: f64 = line.trim().parse().ok()?;
    #[expect(clippy::cast_possible_truncation, reason = "a time of this century fits")]
    let seconds = seconds as i64;
    (seconds > 0).then(|| Timestamp::from_second(seconds).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_pass_is_read_from_the_metrics() {
        let metrics = format!("# TYPE {LAST_PASS} gauge\n{LAST_PASS} 1700000000.5\nother 1\n");
        assert_eq!(parse_last_pass(&metrics), Timestamp::from_second(1_700_000_000).ok());
        assert_eq!(parse_last_pass(&format!("{LAST_PASS} 0.0\n")), None, "it has not passed yet");
        assert_eq!(parse_last_pass(""), None);
    }

    #[test]
    fn a_status_is_the_same_for_people_and_programs() {
        let status = Status {
            job: JobStatus { is_loaded: true, state: Some("running".into()), pid: Some(7) },
            node: NodeStatus {
                name: "mac-1".into(),
                error: None,
                conditions: vec![Condition { kind: "Ready".into(), status: "True".into(), message: None }],
            },
            vms: vec!["tk-1-0".into()],
            vms_error: None,
            last_collector_pass: None,
            certificate_ends: Timestamp::from_second(1_700_000_000).ok(),
            findings: Vec::new(),
        };
        let text = status.render(Format::Text);
        for words in ["runs as process 7", "mac-1", "Ready=True", "tk-1-0", "2023-11-14T22:13:20Z"] {
            assert!(text.contains(words), "{text}");
        }
        let json: serde_json::Value = serde_json::from_str(&status.render(Format::Json)).unwrap();
        assert_eq!(json["job"]["pid"], 7);
        assert_eq!(json["vms"][0], "tk-1-0");
    }
}
