//! Keeps the Node registered and its status true.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeStatus};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, Resource, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::conditions::{confirmation, notes};
use super::health::NodeHealth;
use super::labels;
use super::object::{NodeConfig, NodeDecision, Registered, STATUS_INTERVAL, decide, provider_id};
use crate::apiserver::events::Events;
use crate::error_chain::chain;

const LIMIT: Duration = Duration::from_secs(15);
const RETRY: Duration = Duration::from_secs(2);

/// The UID of the registered Node, for those who need to own something in its name.
pub(crate) type NodeUid = Option<String>;

/// Those who want to know what the API server shows of the Node.
#[derive(Debug)]
pub(crate) struct NodeObservers {
    /// Told when the Node is another one.
    pub(crate) uid: watch::Sender<NodeUid>,
    /// Told of every change.
    pub(crate) node: watch::Sender<Option<Arc<Node>>>,
}

/// A write that the API server did not take.
#[derive(Debug, thiserror::Error)]
enum KeepError {
    #[error("the API server refused")]
    Api(#[from] kube::Error),
    #[error("the API server did not answer within {} s", LIMIT.as_secs())]
    Late(#[from] tokio::time::error::Elapsed),
}

/// Registers the Node, watches it, and writes its status, for as long as it is polled.
///
/// Nothing is said before health is known: a Node that another agent of ours left ready is not made unready by a restart.
pub(crate) async fn keep(
    client: Client,
    config: NodeConfig,
    mut health: watch::Receiver<Option<NodeHealth>>,
    shown_to: NodeObservers,
    events: Events,
) {
    let keeper = Keeper { api: Api::all(client.clone()), config, events };
    let config = &keeper.config;
    let only_ours = watcher::Config::default().fields(&format!("metadata.name={}", config.name));
    let mut nodes = watcher(keeper.api.clone(), only_ours).default_backoff().boxed();
    let mut shown = Registered::Unknown;
    let mut listed = None;
    let mut written_at = None;
    let mut watching = true;
    let mut mismatch = None;
    let mut last = NodeDecision::Rest;
    loop {
        let now = Timestamp::now();
        let known = health.borrow_and_update().clone();
        keeper.compare_provider_id(&shown, &mut mismatch);
        let decision = known
            .as_ref()
            .map_or(NodeDecision::Rest, |health| decide(config, health, &shown, written_at, now));
        if let (Some(health), true) = (&known, decision != NodeDecision::Rest) {
            match keeper.act(health, &shown, decision, now).await {
                Ok(node) => {
                    if decision == NodeDecision::Register {
                        info!(node = %config.name, "registered");
                    }
                    if decision != NodeDecision::Complete {
                        written_at = Some(now);
                    }
                    show(&mut shown, Registered::Present(Box::new(node)), &shown_to);
                    // What was written and is not there somebody takes away again; that is no reason to hurry.
                    if std::mem::replace(&mut last, decision) != decision {
                        continue;
                    }
                }
                // The watch has not told us yet that it is gone, or that somebody else made it.
                Err(KeepError::Api(kube::Error::Api(answer))) if answer.code == 404 => {
                    show(&mut shown, Registered::Absent, &shown_to);
                    continue;
                }
                Err(KeepError::Api(kube::Error::Api(answer))) if answer.code == 409 => {
                    if let Ok(Ok(node)) = timeout(LIMIT, keeper.api.get(&config.name.to_string())).await {
                        show(&mut shown, Registered::Present(Box::new(node)), &shown_to);
                        continue;
                    }
                }
                Err(error) => {
                    warn!(node = %config.name, ?decision, error = chain(&error), "cannot keep the Node; trying again");
                }
            }
        }
        let pause = if decision == NodeDecision::Rest {
            last = NodeDecision::Rest;
            until_due(written_at, now)
        } else {
            RETRY
        };
        tokio::select! {
            () = sleep(pause) => {}
            Ok(()) = health.changed() => {}
            Some(event) = nodes.next() => match event {
                Ok(event) => {
                    watching = true;
                    take(event, &mut shown, &mut listed, &shown_to);
                }
                Err(error) if watching => {
                    watching = false;
                    warn!(node = %config.name, error = chain(&error), "cannot watch the Node; trying again");
                }
                Err(_) => {}
            },
        }
    }
}

/// The time until the status has to be written again.
fn until_due(written_at: Option<Timestamp>, now: Timestamp) -> Duration {
    let due = written_at.map(|at| (at + STATUS_INTERVAL).duration_since(now));
    due.and_then(|due| due.try_into().ok()).unwrap_or(STATUS_INTERVAL)
}

fn take(
    event: watcher::Event<Node>,
    shown: &mut Registered,
    listed: &mut Option<Node>,
    onlookers: &NodeObservers,
) {
    match event {
        watcher::Event::Init => *listed = None,
        watcher::Event::InitApply(node) => *listed = Some(node),
        watcher::Event::InitDone => {
            let found = listed.take().map_or(Registered::Absent, |node| Registered::Present(Box::new(node)));
            show(shown, found, onlookers);
        }
        watcher::Event::Apply(node) => show(shown, Registered::Present(Box::new(node)), onlookers),
        watcher::Event::Delete(_) => {
            warn!("the Node was deleted; registering it again");
            show(shown, Registered::Absent, onlookers);
        }
    }
}

fn show(shown: &mut Registered, now: Registered, onlookers: &NodeObservers) {
    let node = match &now {
        Registered::Present(node) => Some(node.as_ref()),
        Registered::Absent | Registered::Unknown => None,
    };
    let uid = node.and_then(ResourceExt::uid);
    onlookers.uid.send_if_modified(|known| std::mem::replace(known, uid.clone()) != uid);
    onlookers.node.send_replace(node.cloned().map(Arc::new));
    *shown = now;
}

struct Keeper {
    api: Api<Node>,
    config: NodeConfig,
    events: Events,
}

impl Keeper {
    async fn act(
        &self,
        health: &NodeHealth,
        shown: &Registered,
        decision: NodeDecision,
        now: Timestamp,
    ) -> Result<Node, KeepError> {
        let Self { api, config, .. } = self;
        let name = config.name.to_string();
        let parameters = PatchParams::default();
        let node = match shown {
            Registered::Present(node) => Some(node),
            Registered::Absent | Registered::Unknown => None,
        };
        let before = node.and_then(|node| node.status.as_ref());
        match decision {
            NodeDecision::Register => {
                let wanted = config.node(health, now);
                let node = timeout(LIMIT, api.create(&PostParams::default(), &wanted)).await??;
                self.tell(&node, None);
                Ok(node)
            }
            NodeDecision::Complete => {
                let patch = self.completion(health, node.map(AsRef::as_ref));
                Ok(timeout(LIMIT, api.patch(&name, &parameters, &Patch::Merge(patch))).await??)
            }
            NodeDecision::Confirm => {
                let patch = json!({"status": {"conditions": confirmation(health, now)}});
                Ok(timeout(LIMIT, api.patch_status(&name, &parameters, &Patch::Strategic(patch))).await??)
            }
            NodeDecision::WriteStatus | NodeDecision::Rest => {
                let patch = Patch::Strategic(json!({"status": config.status(health, before, now)}));
                let node = timeout(LIMIT, api.patch_status(&name, &parameters, &patch)).await??;
                self.tell(&node, before);
                Ok(node)
            }
        }
    }

    /// What is missing from a Node: labels, which of them are ours, and the providerID when it has none.
    fn completion(&self, health: &NodeHealth, node: Option<&Node>) -> Value {
        let wanted = self.config.labels(health);
        let mut all = json!(wanted);
        for key in node.map(|node| labels::stale(node, &wanted)).unwrap_or_default() {
            all[key] = Value::Null;
        }
        let owned = json!({(labels::OWNED): labels::owned(&wanted)});
        let mut patch = json!({"metadata": {"labels": all, "annotations": owned}});
        if let (Some(id), None) = (&self.config.provider_id, node.and_then(provider_id)) {
            patch["spec"] = json!({"providerID": id});
        }
        patch
    }

    fn tell(&self, node: &Node, before: Option<&NodeStatus>) {
        for note in node.status.iter().flat_map(|status| notes(before, status)) {
            self.events.about(node.object_ref(&()), note.warns, &note.reason, &note.text);
        }
    }

    /// Says once that the Node has another providerID than ours: it is left alone, but somebody made a mistake.
    fn compare_provider_id(&self, shown: &Registered, told: &mut Option<String>) {
        let (Registered::Present(node), Some(ours)) = (shown, &self.config.provider_id) else { return };
        let Some(theirs) = provider_id(node).filter(|theirs| theirs != ours) else { return };
        if told.as_deref() != Some(theirs) {
            let text = format!(
                "the Node's providerID is `{theirs}`, the agent was started with `{ours}`; it is left as it is"
            );
            self.events.about(node.object_ref(&()), true, "ProviderIDMismatch", &text);
            *told = Some(theirs.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_is_due_five_minutes_after_it_was_written() {
        let at = |second| Timestamp::from_second(second).unwrap();
        assert_eq!(until_due(None, at(0)), STATUS_INTERVAL);
        assert_eq!(until_due(Some(at(0)), at(100)), Duration::from_secs(200));
        assert_eq!(until_due(Some(at(0)), at(1000)), STATUS_INTERVAL, "decide says so first");
    }
}
