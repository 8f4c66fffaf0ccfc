//! Waiting for Pods, Events and files.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::{Value, json};
use tart_kubelet_tests::agent::RunningAgent;
use tart_kubelet_tests::wait;

use super::{DEADLINE, NodeView as _, PodView as _, Scene};

/// Waits until a file exists.
pub(crate) async fn until_exists(what: &str, path: &Path) -> Result<()> {
    wait::eventually(what, DEADLINE, async || {
        ensure!(path.exists(), "there is no {}", path.display());
        Ok(())
    })
    .await
}

impl Scene {
    /// Waits until a Pod has a phase.
    pub(crate) async fn phase(&self, pod: &str, phase: &str) -> Result<Pod> {
        self.until(pod, phase, |pod| pod.phase() == phase).await
    }

    /// Waits until something holds for a Pod.
    pub(crate) async fn until(&self, pod: &str, what: &str, holds: impl Fn(&Pod) -> bool) -> Result<Pod> {
        let found = wait::until(&self.pods, pod, what, DEADLINE, holds).await;
        found.with_context(|| format!("the agent says: {}", self.agent_log()))
    }

    /// Creates Pods whose VMs only boot, and waits until all of them run.
    pub(crate) async fn run_pods(&self, names: &[&str]) -> Result<Vec<Pod>> {
        for name in names {
            self.pod(name).create().await?;
        }
        let mut pods = Vec::new();
        for name in names {
            pods.push(self.phase(name, "Running").await?);
        }
        Ok(pods)
    }

    /// Waits until a Pod's main container is ready.
    pub(crate) async fn ready(&self, pod: &str) -> Result<Pod> {
        self.until(pod, "ready", |pod| pod.main().is_ready()).await
    }

    /// Waits until a Pod is gone from the API.
    pub(crate) async fn until_gone(&self, pod: &str) -> Result<()> {
        let gone = wait::until_gone(&self.pods, pod, DEADLINE).await;
        gone.with_context(|| format!("the agent says: {}", self.agent_log()))
    }

    /// Waits until a Pod's main container is ready after this many restarts.
    pub(crate) async fn ready_after_restarts(&self, pod: &str, restarts: i32) -> Result<Pod> {
        self.until(pod, "started again", |pod| {
            pod.main().restart_count() == Some(restarts) && pod.main().is_ready()
        })
        .await
    }

    /// Waits until a Pod's main container waits for a reason, and its message has these words in it.
    pub(crate) async fn waiting(&self, pod: &str, reason: &str, words: &str) -> Result<Pod> {
        self.until(pod, &format!("waiting: {reason}, {words}"), |pod| {
            pod.main().waiting_reason() == Some(reason)
                && pod.main().waiting_message().is_some_and(|message| message.contains(words))
        })
        .await
    }

    /// Waits until the agent that runs now has seen a Pod: until its status is of a generation that no earlier agent has seen.
    pub(crate) async fn observed(&self, pod: &str) -> Result<Pod> {
        let generation = self.pods.get(pod).await?.metadata.generation;
        let later = 1_000_000 - generation.unwrap_or_default();
        self.patch(pod, &json!({"spec": {"activeDeadlineSeconds": later}})).await?;
        self.until(pod, "observed", |pod| {
            pod.status.as_ref().and_then(|status| status.observed_generation) > generation
        })
        .await
    }

    /// Waits until the Node is ready.
    pub(crate) async fn node_ready(&self, agent: &RunningAgent) -> Result<()> {
        let ready = self.until_node("ready", |node| node.condition("Ready") == "True").await;
        ready.map(drop).with_context(|| agent.log().unwrap_or_default())
    }

    /// Waits until something holds for the Node.
    pub(crate) async fn until_node(&self, what: &str, holds: impl Fn(&Node) -> bool) -> Result<Node> {
        wait::until(&self.nodes, &self.node, what, DEADLINE, holds).await
    }

    /// Waits until a condition of the Node has a status.
    pub(crate) async fn node_condition(&self, kind: &str, status: &str) -> Result<Node> {
        self.until_node(&format!("{kind}: {status}"), |node| node.condition(kind) == status).await
    }

    /// Waits until `kubectl describe pod` says `words`.
    pub(crate) async fn described(&self, pod: &str, words: &str) -> Result<()> {
        self.describes("pod", pod, words).await
    }

    /// Waits until `kubectl describe node` says `words`.
    pub(crate) async fn node_described(&self, words: &str) -> Result<()> {
        self.describes("node", &self.node, words).await
    }

    async fn describes(&self, kind: &str, name: &str, words: &str) -> Result<()> {
        wait::eventually(&format!("`kubectl describe` to say `{words}`"), DEADLINE, async || {
            let said = self.kubectl.run(["describe", kind, name]).await?;
            ensure!(said.contains(words), "it says:\n{said}");
            Ok(())
        })
        .await
    }

    /// Waits until an Event about a Pod has this reason and begins with these words.
    pub(crate) async fn event(&self, pod: &str, reason: &str, words: &str) -> Result<()> {
        wait::eventually(&format!("an Event {reason}: {words}"), DEADLINE, async || {
            let about = format!("involvedObject.name={pod}");
            let list =
                self.kubectl.run(["get", "events", "--field-selector", &about, "--output", "json"]).await?;
            let list: Value = serde_json::from_str(&list)?;
            let events: Vec<(&str, &str)> = list["items"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|event| Some((event["reason"].as_str()?, event["message"].as_str()?)))
                .collect();
            ensure!(
                events.iter().any(|(found, message)| *found == reason && message.starts_with(words)),
                "there are {events:?}"
            );
            Ok(())
        })
        .await
    }

    /// All Events of the namespace, as JSON.
    pub(crate) async fn events(&self) -> Result<String> {
        self.kubectl.run(["get", "events", "--output", "json"]).await
    }

    /// Checks that no Event says that a Pod was evicted.
    pub(crate) async fn is_not_evicted(&self, pod: &str) -> Result<()> {
        let said = self.kubectl.run(["describe", "pod", pod]).await?;
        ensure!(!said.contains("Evicted"), "{said}");
        Ok(())
    }
}
