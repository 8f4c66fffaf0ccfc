//! Certificates that expire, and their successors.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tart_kubelet_tests::agent::Agent;
use tart_kubelet_tests::control_plane::ControlPlane;
use tart_kubelet_tests::kubelet::KubeletClient;
use tart_kubelet_tests::mac::Mac;
use tart_kubelet_tests::sandbox::Sandbox;
use tart_kubelet_tests::wait;

use super::{certificate, joining, logged, may_join, mode, requests_of, who_is};
use crate::scene::{DEADLINE, IMAGE, NodeView as _, PodView as _, renew_time};

/// When the certificate in a file ends.
fn end_of(pem: &[u8]) -> Result<Timestamp> {
    let (_, pem) = x509_parser::pem::parse_x509_pem(pem)?;
    Ok(Timestamp::from_second(pem.parse_x509()?.validity().not_after.timestamp())?)
}

/// The audit log of the API server.
struct Audit(PathBuf);

impl Audit {
    /// A control plane that writes an audit log.
    async fn of(sandbox: &Sandbox, lifetime: Duration) -> Result<(ControlPlane, Self)> {
        let directory = sandbox.directory("audit")?;
        let (policy, log) = (directory.join("policy"), directory.join("log"));
        let all =
            json!({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [{"level": "Metadata"}]});
        std::fs::write(&policy, all.to_string())?;
        let control_plane = ControlPlane::builder()
            .cluster_signing_duration(lifetime)
            .api_server_flag(&format!("--audit-policy-file={}", policy.display()))
            .api_server_flag(&format!("--audit-log-path={}", log.display()))
            .start(sandbox)
            .await?;
        Ok((control_plane, Self(log)))
    }

    /// The requests of a user that were made with a certificate, as `<verb> <resource>`.
    fn made_with(&self, user: &str, pem: &[u8]) -> Result<BTreeSet<String>> {
        let (_, pem) = x509_parser::pem::parse_x509_pem(pem)?;
        let digest: [u8; 32] = Sha256::digest(&pem.contents).into();
        let id = digest.iter().fold("X509SHA256=".to_owned(), |id, byte| format!("{id}{byte:02x}"));
        let ours = |entry: &Value| {
            entry["user"]["username"] == user
                && entry["user"]["extra"]["authentication.kubernetes.io/credential-id"] == json!([id])
        };
        let request = |entry: &Value| {
            Some(format!("{} {}", entry["verb"].as_str()?, entry["objectRef"]["resource"].as_str()?))
        };
        Ok(self.entries()?.iter().filter(|entry| ours(entry)).filter_map(request).collect())
    }

    /// The refused requests of a user, and the unauthenticated ones, but for kubectl's.
    fn refused(&self, user: &str) -> Result<Vec<Value>> {
        let refused = |entry: &Value| match entry["responseStatus"]["code"].as_u64() {
            Some(401) => !entry["userAgent"].as_str().is_some_and(|agent| agent.starts_with("kubectl/")),
            Some(403) => entry["user"]["username"] == user,
            _ => false,
        };
        Ok(self.entries()?.into_iter().filter(refused).collect())
    }

    fn entries(&self) -> Result<Vec<Value>> {
        let log = std::fs::read_to_string(&self.0)?;
        // The API server may not have written all of the last line.
        Ok(log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
    }
}

#[tokio::test]
async fn certificate_rotation_costs_no_failed_request() -> Result<()> {
    let sandbox = Sandbox::shared()?;
    // Long enough for the control plane to sign a request in the last tenth on a busy machine.
    let (control_plane, audit) = Audit::of(&sandbox, Duration::from_secs(90)).await?;
    let bootstrap = control_plane.bootstrap_kubeconfig().await?;
    may_join(&control_plane, &bootstrap).await?;
    let mac = Mac::new(&sandbox)?;
    if mac.is_simulated() {
        mac.add_image(IMAGE, &json!({}))?;
    }
    let (node, user) = ("mac-rotates", "system:node:mac-rotates");
    let (agent, kubeconfig) =
        joining(&Agent::new(&mac, node, &bootstrap)?.flag("--node-ip", "127.0.0.1"), &bootstrap);
    let running = agent.start()?;
    let client = control_plane.client().await?;
    let nodes: Api<Node> = Api::all(client.clone());
    let ready = wait::until(&nodes, node, "ready", DEADLINE, |node| node.condition("Ready") == "True");
    ready.await.with_context(|| running.log().unwrap_or_default())?;
    let (first, written) = (std::fs::read(certificate(&agent))?, std::fs::read(&kubeconfig)?);
    // From here on the agent can get another certificate only with its own.
    std::fs::remove_file(&bootstrap)?;

    let second = wait::eventually("another certificate", DEADLINE, async || {
        let current = std::fs::read(certificate(&agent))?;
        ensure!(current != first, "still the first: {}", running.log()?);
        Ok(current)
    })
    .await?;
    ensure!(
        audit.made_with(user, &first)?.contains("create certificatesigningrequests"),
        "not in its own name"
    );
    wait::eventually("everything to go on with the second certificate", DEADLINE, async || {
        let made = audit.made_with(user, &second)?;
        for request in ["watch pods", "watch nodes", "patch leases"] {
            ensure!(made.contains(request), "no {request} in {made:?}");
        }
        Ok(())
    })
    .await?;

    let ends = end_of(&first)?;
    ensure!(end_of(&second)? > ends);
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-node-lease");
    let renewed =
        wait::until(&leases, node, "renewed after the first certificate's end", DEADLINE, |lease| {
            renew_time(lease) > Some(ends)
        });
    renewed.await.with_context(|| running.log().unwrap_or_default())?;
    assert_eq!(mode(&certificate(&agent))?, 0o600);
    assert_eq!(std::fs::read(&kubeconfig)?, written, "it names the file, whatever is in it");
    assert_eq!(who_is(&control_plane, &kubeconfig).await?["username"], user);

    // The agent still gets Pods.
    let pods: Api<Pod> = Api::namespaced(client, "default");
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "late"},
        // The API server refuses a token until it knows the Pod's Node.
        "spec": {
            "nodeName": node,
            "automountServiceAccountToken": false,
            "containers": [{"name": "main", "image": IMAGE}],
        },
    });
    control_plane.kubectl().apply(&pod.to_string()).await?;
    wait::until(&pods, "late", "Running", DEADLINE, |pod| pod.phase() == "Running")
        .await
        .with_context(|| running.log().unwrap_or_default())?;
    let log = running.log()?;
    ensure!(!log.contains("\"WARN\"") && !log.contains("\"ERROR\""), "{log}");
    assert_eq!(audit.refused(user)?, Vec::<Value>::new(), "every request was let in");
    running.process().ensure_running()
}

#[tokio::test]
async fn expired_certificate_is_replaced_by_bootstrap() -> Result<()> {
    let sandbox = Sandbox::shared()?;
    let lifetime = Duration::from_secs(15);
    let control_plane = ControlPlane::builder().cluster_signing_duration(lifetime).start(&sandbox).await?;
    let renewal = "node-autoapprove-certificate-rotation";
    control_plane.kubectl().run(["delete", "clusterrolebinding", renewal]).await?;
    let bootstrap = control_plane.bootstrap_kubeconfig().await?;
    may_join(&control_plane, &bootstrap).await?;
    let user = who_is(&control_plane, &bootstrap).await?["username"].clone();
    let user = user.as_str().context("no user")?;
    let mac = Mac::new(&sandbox)?;
    let node = "mac-expires";
    let (agent, _) = joining(&Agent::new(&mac, node, &bootstrap)?.flag("--node-ip", "127.0.0.1"), &bootstrap);
    let running = agent.start()?;
    logged(&running, "wrote the kubeconfig").await?;
    let ends = end_of(&std::fs::read(certificate(&agent))?)?;

    logged(&running, "its certificate expired at").await?;
    let leases: Api<Lease> = Api::namespaced(control_plane.client().await?, "kube-node-lease");
    let renewed =
        wait::until(&leases, node, "renewed after the first certificate's end", DEADLINE, |lease| {
            renew_time(lease) > Some(ends)
        });
    renewed.await.with_context(|| running.log().unwrap_or_default())?;
    wait::eventually("requests in both names", DEADLINE, async || {
        let own = requests_of(&control_plane, &format!("system:node:{node}")).await?;
        ensure!(!own.is_empty(), "never asked in its own name: {}", running.log()?);
        ensure!(requests_of(&control_plane, user).await?.len() >= 2, "{}", running.log()?);
        Ok(())
    })
    .await?;
    running.process().ensure_running()
}

#[tokio::test]
async fn serving_certificate_is_rotated_while_the_kubelet_api_is_served() -> Result<()> {
    let sandbox = Sandbox::shared()?;
    let lifetime = Duration::from_mins(1);
    let control_plane = ControlPlane::builder().cluster_signing_duration(lifetime).start(&sandbox).await?;
    let (mac, node) = (Mac::new(&sandbox)?, "mac-serves");
    let agent = Agent::new(&mac, node, &control_plane.node_kubeconfig(node)?)?.flag("--node-ip", "127.0.0.1");
    let running = agent.start()?;
    let first = control_plane.serving_request(node, &[]).await?;
    control_plane.approve_serving_certificate(node, &running).await?;
    let ends = end_of(&std::fs::read(agent.state_dir().join("pki/server-current.pem"))?)?;
    let second = control_plane.serving_request(node, &[&first]).await?;
    control_plane.kubectl().run(["certificate", "approve", &second]).await?;
    // The client takes no certificate that has expired.
    wait::eventually("an answer after the first certificate's end", DEADLINE, async || {
        KubeletClient::new(&control_plane, node).await?.get("/healthz").await?;
        ensure!(Timestamp::now() > ends, "the first certificate is good until {ends}");
        Ok(())
    })
    .await
    .with_context(|| running.log().unwrap_or_default())
}
