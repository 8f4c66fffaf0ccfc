//! Events: what a person who asks `kubectl describe pod` is told.

use k8s_openapi::api::core::v1::Pod;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Client, Resource};
use std::time::Duration;
use tokio::time::timeout;
use tracing::{info, warn};

use crate::node::NodeName;
use crate::report::chain;

/// Nobody waits for an Event for longer than this.
const LIMIT: Duration = Duration::from_secs(10);
/// The API server refuses longer notes.
const MAX_NOTE: usize = 1000;

/// Writes Events in this Node's name.
#[derive(Clone)]
pub struct Events(Recorder);

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Events")
    }
}

impl Events {
    /// A writer for the given Node.
    pub fn new(client: Client, node: &NodeName) -> Self {
        let reporter = Reporter { controller: "tart-kubelet".to_owned(), instance: Some(node.to_string()) };
        Self(Recorder::new(client, reporter))
    }

    /// Tells what was done with a Pod.
    pub fn normal(&self, pod: &Pod, reason: &str, note: &str) {
        self.publish(pod, EventType::Normal, reason, note);
    }

    /// Tells what went wrong with a Pod, and what can be done about it.
    pub fn warning(&self, pod: &Pod, reason: &str, note: &str) {
        self.publish(pod, EventType::Warning, reason, note);
    }

    fn publish(&self, pod: &Pod, type_: EventType, reason: &str, note: &str) {
        let reference = pod.object_ref(&());
        let pod = format!(
            "{}/{}",
            pod.metadata.namespace.as_deref().unwrap_or(""),
            pod.metadata.name.as_deref().unwrap_or("")
        );
        match type_ {
            EventType::Normal => info!(pod, reason, "{note}"),
            EventType::Warning => warn!(pod, reason, "{note}"),
        }
        let event = Event {
            type_,
            reason: reason.to_owned(),
            note: Some(note.chars().take(MAX_NOTE).collect()),
            action: reason.to_owned(),
            secondary: None,
        };
        // In the background: an Event that cannot be written must not hold up the Pod that it is about.
        let recorder = self.0.clone();
        tokio::spawn(async move {
            match timeout(LIMIT, recorder.publish(&event, &reference)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    warn!(pod, reason = event.reason, error = chain(&error), "cannot write the Event");
                }
                Err(_) => warn!(pod, reason = event.reason, "the API server took too long to take the Event"),
            }
        });
    }
}
