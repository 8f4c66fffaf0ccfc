//! What must not happen: a Pod that restarts or fails, a Warning that no stage expects, a process that dies, a right that is missing.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Event;
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};
use serde_json::Value;

use super::world::{RELEASE, World};

/// What is expected, though it looks like a failure.
#[derive(Debug, Default)]
pub(crate) struct Expected {
    /// Reasons of Warnings, and of what kind of object.
    warnings: Vec<(&'static str, &'static str)>,
    /// Pods that fail, with their exit codes.
    failures: BTreeMap<String, i32>,
}

impl Expected {
    /// Warnings of this reason about objects of this kind are no surprise from now on.
    pub(crate) fn warning(&mut self, kind: &'static str, reason: &'static str) {
        self.warnings.push((kind, reason));
    }

    /// A Pod is to fail with this exit code.
    pub(crate) fn failure(&mut self, pod: &str, code: i32) {
        self.failures.insert(pod.to_owned(), code);
    }

    /// An error about the first surprise.
    pub(crate) async fn ensure_nothing_else(&self, world: &World) -> Result<()> {
        world.cluster_api.ensure_running()?;
        let provider = world.provider.lock().await;
        provider.ensure_running()?;
        let log = provider.log()?;
        let forbidden = log.lines().find(|line| line.contains("forbidden"));
        ensure!(forbidden.is_none(), "the chart gives the provider too few rights: {forbidden:?}");
        drop(provider);
        self.pods(world).await?;
        let events = Api::<Event>::all(world.client.clone()).list(&ListParams::default()).await?;
        let surprises = events.items.iter().filter(|event| self.is_surprise(event)).map(|event| {
            let about = &event.involved_object;
            let (kind, name) = (about.kind.as_deref(), about.name.as_deref());
            let words = [kind, name, event.reason.as_deref(), event.message.as_deref()];
            words.map(Option::unwrap_or_default).join(" ")
        });
        let surprises: BTreeSet<String> = surprises.collect();
        let shown = surprises.iter().cloned().collect::<Vec<_>>().join("\n  ");
        ensure!(surprises.is_empty(), "Warnings that were not expected:\n  {shown}");
        Ok(())
    }

    fn is_surprise(&self, event: &Event) -> bool {
        let about = &event.involved_object;
        let (kind, reason) = (about.kind.as_deref(), event.reason.as_deref());
        // No Node here runs Linux, so the Deployment's own Pods wait. Processes stand for them.
        if about.namespace.as_deref() == Some(RELEASE)
            && kind == Some("Pod")
            && reason == Some("FailedScheduling")
        {
            return false;
        }
        event.type_.as_deref() == Some("Warning")
            && !self.warnings.iter().any(|known| Some(known.0) == kind && Some(known.1) == reason)
    }

    async fn pods(&self, world: &World) -> Result<()> {
        for pod in world.pods().list(&ListParams::default()).await?.items {
            let name = pod.name_any();
            let status = pod.status.with_context(|| format!("the Pod {name} has no status"))?;
            for container in status.container_statuses.iter().flatten() {
                ensure!(container.restart_count == 0, "the Pod {name} restarted: {container:?}");
                let ended = container.state.as_ref().and_then(|state| state.terminated.as_ref());
                let wanted = self.failures.get(&name).copied().unwrap_or(0);
                let code = ended.map(|ended| ended.exit_code);
                // A Pod that is deleted ends by a signal.
                let is_good =
                    code.is_none_or(|code| code == wanted) || pod.metadata.deletion_timestamp.is_some();
                ensure!(is_good, "the Pod {name} ended with {code:?}: {ended:?}");
            }
            let may_fail = self.failures.contains_key(&name);
            let failed = status.phase.as_deref() == Some("Failed");
            ensure!(!failed || may_fail, "the Pod {name} failed: {:?} {:?}", status.reason, status.message);
        }
        Ok(())
    }
}

/// The metrics of the replica that acts.
pub(crate) async fn leader_metrics(world: &World) -> Result<String> {
    let addresses = world.provider.lock().await.metrics_addresses();
    for address in addresses {
        let page = super::metrics::page(&address).await?;
        if page.lines().any(|line| line == "tart_provider_leader 1") {
            return Ok(page);
        }
    }
    anyhow::bail!("no replica is the leader")
}

/// What an object says of itself, for an error.
pub(crate) fn shown(object: &Value) -> String {
    serde_json::to_string_pretty(&object["status"]).unwrap_or_default()
}
