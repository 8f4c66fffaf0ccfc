//! Registers the Node, and keeps its labels and its status up to date.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeSpec, NodeStatus};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, Resource, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::conditions::{self, confirmation};
use super::health::NodeHealth;
use super::labels;
use super::object::{NodeConfig, NodeDecision, Registered, STATUS_INTERVAL, decide, provider_id};
use crate::apiserver::call::{CallError, DEADLINE, call};
use crate::apiserver::events::{EventReason, Events, LastReported};
use crate::backoff::{Delays, NODE};
use crate::error_chain::chain;

/// How soon the agent repeats a step that another client has reverted.
const REPEAT: Duration = Duration::from_secs(2);

/// The UID of the registered Node; the Lease's owner reference needs it.
pub(crate) type NodeUid = Option<String>;

/// The channels that show the rest of the agent this Node as the API server shows it.
#[derive(Debug)]
pub(crate) struct NodeObservers {
    pub(crate) uid: watch::Sender<NodeUid>,
    pub(crate) node: watch::Sender<Option<Arc<Node>>>,
}

/// Registers the Node, watches it, and writes its status, for as long as it is polled.
///
/// It writes nothing before health is known: a restart of the agent must not make a ready Node unready.
pub(crate) async fn run(
    client: Client,
    config: NodeConfig,
    mut health: watch::Receiver<Option<NodeHealth>>,
    observers: NodeObservers,
    events: Events,
) {
    let controller = Controller { api: Api::all(client.clone()), config, events };
    let config = &controller.config;
    let only_ours = watcher::Config::default().fields(&format!("metadata.name={}", config.name));
    let mut nodes = watcher(controller.api.clone(), only_ours).default_backoff().boxed();
    let mut shown = Registered::Unknown;
    let mut listed = None;
    let mut written_at = None;
    let mut watching = true;
    let mut mismatch = LastReported::default();
    let mut last = NodeDecision::Rest;
    let mut last_spec = None;
    let mut failures = Failures::new();
    loop {
        let (now, age) = (Timestamp::now(), written_at.as_ref().map(Instant::elapsed));
        if let Some(node) = shown.node() {
            last_spec.clone_from(&node.spec);
        }
        let mut pause = REPEAT;
        let known = health.borrow_and_update().clone();
        controller.compare_provider_id(&shown, &mut mismatch);
        let decision =
            known.as_ref().map_or(NodeDecision::Rest, |health| decide(config, health, &shown, age, now));
        if let (Some(health), true) = (&known, decision != NodeDecision::Rest) {
            match controller.act(health, &shown, last_spec.as_ref(), decision, now).await {
                Ok(node) => {
                    failures = Failures::new();
                    if decision == NodeDecision::Register {
                        info!(node = %config.name, "registered");
                    }
                    if decision != NodeDecision::Complete {
                        written_at = Some(Instant::now());
                    }
                    show(&mut shown, Registered::Present(Box::new(node)), &observers);
                    // The same step again means that another client reverts it: the next try waits then.
                    if std::mem::replace(&mut last, decision) != decision {
                        continue;
                    }
                }
                // The Node was deleted or created meanwhile, and the watch has not shown it yet.
                Err(error) if error.is_not_found() => {
                    show(&mut shown, Registered::Absent, &observers);
                    continue;
                }
                Err(error) if error.is_conflict() => {
                    if let Ok(node) = call(DEADLINE, controller.api.get(&config.name.to_string())).await {
                        show(&mut shown, Registered::Present(Box::new(node)), &observers);
                        continue;
                    }
                }
                Err(error) => {
                    let error = chain(&error);
                    let failure = failures.add(&error);
                    pause = failure.pause;
                    if failure.is_new {
                        warn!(node = %config.name, ?decision, error, "cannot update the Node; trying again");
                    }
                }
            }
        }
        if decision == NodeDecision::Rest {
            last = NodeDecision::Rest;
            pause = until_due(age);
        }
        tokio::select! {
            () = sleep(pause) => {}
            Ok(()) = health.changed() => {}
            Some(event) = nodes.next() => match event {
                Ok(event) => {
                    watching = true;
                    take(event, &mut shown, &mut listed, &observers);
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

/// The writes of the Node that have failed in a row.
struct Failures {
    delays: Delays,
    last: LastReported<String>,
}

/// What follows a write that has failed.
#[derive(Debug, PartialEq, Eq)]
struct Failure {
    /// How long the next try waits.
    pause: Duration,
    /// Whether the log has not said it yet.
    is_new: bool,
}

impl Failures {
    fn new() -> Self {
        Self { delays: NODE.delays(), last: LastReported::default() }
    }

    fn add(&mut self, problem: &str) -> Failure {
        Failure { pause: self.delays.next(), is_new: self.last.is_new(problem.to_owned()) }
    }
}

/// The time until the agent has to confirm a status of this age.
fn until_due(age: Option<Duration>) -> Duration {
    age.and_then(|age| STATUS_INTERVAL.checked_sub(age)).unwrap_or(STATUS_INTERVAL)
}

fn take(
    event: watcher::Event<Node>,
    shown: &mut Registered,
    listed: &mut Option<Node>,
    observers: &NodeObservers,
) {
    match event {
        watcher::Event::Init => *listed = None,
        watcher::Event::InitApply(node) => *listed = Some(node),
        watcher::Event::InitDone => {
            let found = listed.take().map_or(Registered::Absent, |node| Registered::Present(Box::new(node)));
            show(shown, found, observers);
        }
        watcher::Event::Apply(node) => show(shown, Registered::Present(Box::new(node)), observers),
        watcher::Event::Delete(_) => {
            warn!("the Node was deleted; registering it again");
            show(shown, Registered::Absent, observers);
        }
    }
}

fn show(shown: &mut Registered, now: Registered, observers: &NodeObservers) {
    let uid = now.node().and_then(ResourceExt::uid);
    observers.uid.send_if_modified(|known| std::mem::replace(known, uid.clone()) != uid);
    observers.node.send_replace(now.node().cloned().map(Arc::new));
    *shown = now;
}

struct Controller {
    api: Api<Node>,
    config: NodeConfig,
    events: Events,
}

impl Controller {
    async fn act(
        &self,
        health: &NodeHealth,
        shown: &Registered,
        last_spec: Option<&NodeSpec>,
        decision: NodeDecision,
        now: Timestamp,
    ) -> Result<Node, CallError> {
        let Self { api, config, .. } = self;
        let name = config.name.to_string();
        let parameters = PatchParams::default();
        let before = shown.node().and_then(|node| node.status.as_ref());
        match decision {
            NodeDecision::Register => {
                let wanted = config.node(health, last_spec, now);
                let node = call(DEADLINE, api.create(&PostParams::default(), &wanted)).await?;
                self.report_conditions(&node, None);
                Ok(node)
            }
            NodeDecision::Complete => {
                let patch = self.completion(health, shown.node());
                call(DEADLINE, api.patch(&name, &parameters, &Patch::Merge(patch))).await
            }
            NodeDecision::Confirm => {
                let patch = json!({"status": {"conditions": confirmation(now)}});
                call(DEADLINE, api.patch_status(&name, &parameters, &Patch::Strategic(patch))).await
            }
            NodeDecision::WriteStatus | NodeDecision::Rest => {
                let patch = Patch::Strategic(json!({"status": config.status(health, before, now)}));
                let node = call(DEADLINE, api.patch_status(&name, &parameters, &patch)).await?;
                self.report_conditions(&node, before);
                Ok(node)
            }
        }
    }

    /// A patch with the labels, the annotation that lists them, and the providerID if the Node has none.
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

    fn report_conditions(&self, node: &Node, before: Option<&NodeStatus>) {
        for event in node.status.iter().flat_map(|status| conditions::events(before, status)) {
            self.events.about(node.object_ref(&()), event.warns, event.reason, &event.message);
        }
    }

    /// Reports a Node with another providerID than the agent's. The agent does not change it, because it may be right.
    fn compare_provider_id(&self, shown: &Registered, last: &mut LastReported<String>) {
        let (Some(node), Some(ours)) = (shown.node(), &self.config.provider_id) else { return };
        let Some(theirs) = provider_id(node).filter(|theirs| theirs != ours) else { return };
        if last.is_new(theirs.to_owned()) {
            let text = format!(
                "the Node's providerID is `{theirs}`, the agent was started with `{ours}`; it is left as it is"
            );
            self.events.about(node.object_ref(&()), true, EventReason::ProviderIDMismatch, &text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_that_fail_are_tried_ever_less_often_and_told_once() {
        let mut failures = Failures::new();
        let told = ["away", "away", "refused", "refused", "away", "away", "away"].map(|problem| {
            let Failure { pause, is_new } = failures.add(problem);
            (pause.as_secs(), is_new)
        });
        assert_eq!(
            told,
            [(2, true), (4, false), (8, true), (16, false), (32, true), (60, false), (60, false)]
        );
    }

    #[test]
    fn the_status_is_due_five_minutes_after_the_last_write() {
        let age = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!(until_due(None), STATUS_INTERVAL);
        assert_eq!(until_due(age(100)), Duration::from_secs(200));
        assert_eq!(until_due(age(1000)), STATUS_INTERVAL, "decide confirms it first");
    }
}
