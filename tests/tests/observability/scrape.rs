//! The configuration of the documentation, with which a Prometheus in the cluster scrapes the Macs.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tart_kubelet_tests::agent::Agent;
use tart_kubelet_tests::control_plane::ControlPlane;
use tart_kubelet_tests::kubeconfig::{self, Credentials};
use tart_kubelet_tests::mac::Mac;
use tart_kubelet_tests::prometheus::Prometheus;
use tart_kubelet_tests::wait::eventually;
use tart_kubelet_tests::{programs, skip};

use super::workspace;

const DEADLINE: Duration = Duration::from_mins(2);
/// Where a Pod has its account's token and the cluster's authority.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// A Node as Prometheus' discovery of Nodes describes it.
fn discovered(node: &Value) -> Result<Value> {
    let addresses = node["status"]["addresses"].as_array().context("no addresses")?;
    let address = addresses.iter().find(|one| one["type"] == "InternalIP").context("no address")?;
    let port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"].as_u64().context("no port")?;
    let mut labels = json!({ "__meta_kubernetes_node_name": node["metadata"]["name"] });
    for (name, value) in node["metadata"]["labels"].as_object().context("no labels")? {
        let name = name.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
        labels[format!("__meta_kubernetes_node_label_{name}")] = value.clone();
    }
    let address = address["address"].as_str().context("no address")?;
    Ok(json!({ "targets": [format!("{address}:{port}")], "labels": labels }))
}

#[tokio::test]
async fn prometheus_finds_and_scrapes_the_macs_as_documented() -> Result<()> {
    if programs::debian("prometheus", "usr/bin/prometheus").is_err() {
        return skip::say("Prometheus is not here, and Debian's package of it cannot be fetched");
    }
    let page = std::fs::read_to_string(workspace().join("docs/metrics.md"))?;
    let blocks: Vec<_> =
        page.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    let [role, config] = blocks[..] else { anyhow::bail!("not a role and a configuration: {blocks:?}") };

    let control_plane = ControlPlane::shared().await?;
    let sandbox = control_plane.sandbox();
    let mac = Mac::new(sandbox)?;
    let node = "mac-to-scrape";
    let agent = Agent::new(&mac, node, &control_plane.node_kubeconfig(node)?)?.flag("--node-ip", "127.0.0.1");
    let agent = agent.start()?;

    let namespace = control_plane.namespace("scrape").await?;
    let kubectl = control_plane.kubectl().namespace(&namespace);
    kubectl.apply(role).await?;
    kubectl.run(["create", "serviceaccount", "prometheus"]).await?;
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": { "name": "scrape-macs" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "scrape-macs" },
        "subjects": [{ "kind": "ServiceAccount", "name": "prometheus", "namespace": namespace }],
    });
    kubectl.apply(&binding.to_string()).await?;
    let token = kubectl.run(["create", "token", "prometheus"]).await?.trim().to_owned();

    // What is in a Pod by itself: the account's files, and where the API server is.
    let account = sandbox.directory("account")?;
    let authority = &control_plane.authority().pair().certificate;
    std::fs::write(account.join("token"), &token)?;
    std::fs::write(account.join("ca.crt"), authority)?;
    let kubeconfig = account.join("kubeconfig");
    kubeconfig::write(&kubeconfig, control_plane.server(), authority, &Credentials::Token(token))?;
    let config = config.replace(ACCOUNT, &account.display().to_string());
    // Debian's Prometheus cannot ask an API server. What it would find is told to it, as the account finds it.
    let as_prometheus = control_plane.kubectl_as(&kubeconfig);
    let target = eventually("a Node with a kubelet API", DEADLINE, async || {
        agent.process().ensure_running()?;
        let node: Value =
            serde_json::from_str(&as_prometheus.run(["get", "node", node, "-o", "json"]).await?)?;
        discovered(&node)
    })
    .await?;
    let mut other = target.clone();
    other["labels"]["__meta_kubernetes_node_name"] = "not-a-mac".into();
    other["labels"]["__meta_kubernetes_node_label_tuist_dev_runtime"] = "".into();
    let discovery = "kubernetes_sd_configs: [{role: node}]";
    ensure!(config.contains(discovery), "{config}");
    let config = config.replace(discovery, &format!("static_configs: {}", json!([target, other])));
    let config = format!("global: {{scrape_interval: 1s}}\n{config}");

    let prometheus = Prometheus::start(sandbox, &config)?;
    let figure =
        format!("tart_kubelet_node_condition{{instance={node:?},condition=\"Ready\",status=\"True\"}}");
    eventually("figures of the Mac", DEADLINE, async || {
        agent.process().ensure_running()?;
        let found = prometheus.query(&figure).await?;
        let up = prometheus.query("up").await?;
        let is_up = found.len() == 1 && found[0]["value"][1] == "1";
        // Other Nodes are not scraped.
        ensure!(is_up && up.len() == 1, "{found:?} {up:?}\n{}", prometheus.process().last_lines());
        Ok(())
    })
    .await
}
