//! The certificates with which Nodes serve the kubelet API. Kubernetes approves none by itself.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::api::ListParams;
use kube::{Api, ResourceExt};

use super::ControlPlane;
use crate::agent::RunningAgent;
use crate::wait::eventually;

const DEADLINE: Duration = Duration::from_mins(2);

impl ControlPlane {
    /// Approves the Node's only request for a serving certificate, and waits until its agent serves with it.
    pub async fn approve_serving_certificate(&self, node: &str, agent: &RunningAgent) -> Result<()> {
        let request = self.serving_request(node, &[]).await?;
        self.kubectl().run(["certificate", "approve", &request]).await?;
        eventually("a certificate of the cluster", DEADLINE, async || {
            let log = agent.log()?;
            ensure!(log.contains("the kubelet API has a certificate of the cluster"), "{log}");
            Ok(())
        })
        .await
    }

    /// Waits for the Node's only request for a serving certificate, apart from those that are known.
    pub async fn serving_request(&self, node: &str, known: &[&str]) -> Result<String> {
        let api: Api<CertificateSigningRequest> = Api::all(self.client().await?);
        let user = format!("system:node:{node}");
        eventually("a request for a serving certificate", DEADLINE, async || {
            let all = api.list(&ListParams::default()).await?;
            let ours = all.iter().filter(|one| {
                one.spec.username.as_deref() == Some(&user)
                    && one.spec.signer_name == "kubernetes.io/kubelet-serving"
                    && !known.contains(&one.name_any().as_str())
            });
            match ours.map(ResourceExt::name_any).collect::<Vec<_>>().as_slice() {
                [only] => Ok(only.clone()),
                other => bail!("there are {other:?}"),
            }
        })
        .await
    }
}
