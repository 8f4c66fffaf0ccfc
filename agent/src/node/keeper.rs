//! Keeps the Node registered and its status true.

use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, ResourceExt};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::desired::{NodeConfig, NodeDecision, Registered, STATUS_INTERVAL, decide};
use super::tart_check::Health;
use crate::report::chain;

const LIMIT: Duration = Duration::from_secs(15);
const RETRY: Duration = Duration::from_secs(2);

/// The UID of the registered Node, for those who need to own something in its name.
pub type NodeUid = Option<String>;

/// A write that the API server did not take.
#[derive(Debug, thiserror::Error)]
enum KeepError {
    #[error("the API server refused")]
    Api(#[from] kube::Error),
    #[error("the API server did not answer within {} s", LIMIT.as_secs())]
    Late(#[from] tokio::time::error::Elapsed),
}

/// Registers the Node, watches it, and writes its status, for as long as it is polled.
pub async fn keep(
    client: Client,
    config: NodeConfig,
    mut health: watch::Receiver<Health>,
    uid: watch::Sender<NodeUid>,
) {
    let api: Api<Node> = Api::all(client);
    let only_ours = watcher::Config::default().fields(&format!("metadata.name={}", config.name));
    let mut nodes = watcher(api.clone(), only_ours).default_backoff().boxed();
    let mut shown = Registered::Unknown;
    let mut listed = None;
    let mut written_at = None;
    let mut watching = true;
    loop {
        let now = Timestamp::now();
        let decision = decide(&config, &health.borrow_and_update(), &shown, written_at, now);
        if decision != NodeDecision::Rest {
            let known = health.borrow().clone();
            match act(&api, &config, &known, &shown, decision, now).await {
                Ok(node) => {
                    if decision == NodeDecision::Register {
                        info!(node = %config.name, "registered");
                    }
                    if decision != NodeDecision::Complete {
                        written_at = Some(now);
                    }
                    show(&mut shown, Registered::Present(Box::new(node)), &uid);
                    continue;
                }
                // The watch has not told us yet that it is gone, or that somebody else made it.
                Err(KeepError::Api(kube::Error::Api(answer))) if answer.code == 404 => {
                    show(&mut shown, Registered::Absent, &uid);
                    continue;
                }
                Err(KeepError::Api(kube::Error::Api(answer))) if answer.code == 409 => {
                    if let Ok(Ok(node)) = timeout(LIMIT, api.get(&config.name.to_string())).await {
                        show(&mut shown, Registered::Present(Box::new(node)), &uid);
                        continue;
                    }
                }
                Err(error) => {
                    warn!(node = %config.name, ?decision, error = chain(&error), "cannot keep the Node; trying again");
                }
            }
        }
        let pause = if decision == NodeDecision::Rest { STATUS_INTERVAL } else { RETRY };
        tokio::select! {
            () = sleep(pause) => {}
            Ok(()) = health.changed() => {}
            Some(event) = nodes.next() => match event {
                Ok(event) => {
                    watching = true;
                    take(event, &mut shown, &mut listed, &uid);
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

fn take(
    event: watcher::Event<Node>,
    shown: &mut Registered,
    listed: &mut Option<Node>,
    uid: &watch::Sender<NodeUid>,
) {
    match event {
        watcher::Event::Init => *listed = None,
        watcher::Event::InitApply(node) => *listed = Some(node),
        watcher::Event::InitDone => {
            let found = listed.take().map_or(Registered::Absent, |node| Registered::Present(Box::new(node)));
            show(shown, found, uid);
        }
        watcher::Event::Apply(node) => show(shown, Registered::Present(Box::new(node)), uid),
        watcher::Event::Delete(_) => {
            warn!("the Node was deleted; registering it again");
            show(shown, Registered::Absent, uid);
        }
    }
}

fn show(shown: &mut Registered, now: Registered, uid: &watch::Sender<NodeUid>) {
    let found = match &now {
        Registered::Present(node) => node.uid(),
        Registered::Absent | Registered::Unknown => None,
    };
    uid.send_if_modified(|known| std::mem::replace(known, found.clone()) != found);
    *shown = now;
}

async fn act(
    api: &Api<Node>,
    config: &NodeConfig,
    health: &Health,
    shown: &Registered,
    decision: NodeDecision,
    now: Timestamp,
) -> Result<Node, KeepError> {
    let name = config.name.to_string();
    let parameters = PatchParams::default();
    let before = match shown {
        Registered::Present(node) => node.status.as_ref(),
        Registered::Absent | Registered::Unknown => None,
    };
    Ok(match decision {
        NodeDecision::Register => {
            timeout(LIMIT, api.create(&PostParams::default(), &config.node(health, now))).await??
        }
        NodeDecision::Complete => {
            let mut patch = json!({"metadata": {"labels": config.labels()}});
            let named = |node: &Node| {
                node.spec
                    .as_ref()
                    .is_some_and(|spec| spec.provider_id.as_ref().is_some_and(|id| !id.is_empty()))
            };
            if let (Registered::Present(node), Some(id)) = (shown, &config.provider_id)
                && !named(node)
            {
                patch["spec"] = json!({"providerID": id});
            }
            timeout(LIMIT, api.patch(&name, &parameters, &Patch::Merge(patch))).await??
        }
        NodeDecision::WriteStatus | NodeDecision::Rest => {
            let patch = json!({"status": config.status(health, before, now)});
            timeout(LIMIT, api.patch_status(&name, &parameters, &Patch::Strategic(patch))).await??
        }
    })
}
