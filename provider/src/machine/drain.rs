//! A Node is drained before its host is given back: its Pods end in their own time.
//!
//! Cluster API drains Nodes only of clusters with a control plane that it knows. The cluster that the provider runs in has none.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{EvictParams, ListParams, Patch, PatchParams};
use kube::runtime::events::EventType;
use kube::{Api, ResourceExt as _};
use serde_json::json;

use super::delete::{Owner, owner};
use super::reconciler::{ReconcileError, Reconciler};
use super::report;
use crate::apiserver::{ApiError, call};
use crate::cluster_api::{DrainSettings, drain_settings};
use crate::crd::{ConditionStatus, ScalewayAppleSiliconMachine as Machine, find_condition};
use crate::error_chain::chain;

/// The condition about it.
const DRAINED: &str = "Drained";
const DRAINING: &str = "Draining";
/// How often Pods that end are looked at.
const PAUSE: Duration = Duration::from_secs(5);
/// How long a Node may be not ready before nothing is expected of it any more. An agent that is restarted is back before.
const UNREADY_LIMIT: Duration = Duration::from_mins(1);
/// How long Pods may take where the Machine does not say.
const LONGEST: Duration = Duration::from_hours(2);

/// What is known about a Node that is to be drained.
#[derive(Debug, Clone)]
struct DrainSeen {
    /// Since when its condition `Ready` is not true.
    unready_since: Option<Timestamp>,
    /// The Pods that are waited for.
    pods: Vec<PodSeen>,
    settings: DrainSettings,
    /// When the machine was deleted.
    since: Timestamp,
    now: Timestamp,
}

/// A Pod that is waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PodSeen {
    namespace: String,
    name: String,
    /// Whether it has been told to end.
    is_ending: bool,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
enum DrainStep {
    /// Tell these Pods to end, of so many that are left.
    Evict(Vec<PodSeen>, usize),
    /// Wait no longer, for this reason and in these words.
    End(&'static str, String),
}

fn decide(seen: &DrainSeen) -> DrainStep {
    let left = seen.pods.len();
    let passed = |since: Timestamp| Duration::try_from(seen.now.duration_since(since)).unwrap_or_default();
    let limit = seen.settings.timeout.unwrap_or(LONGEST);
    if left == 0 {
        return DrainStep::End("Drained", String::new());
    }
    if seen.settings.is_excluded {
        return DrainStep::End("Excluded", format!("{left} Pods end with the host, as the Machine says"));
    }
    if seen.unready_since.is_some_and(|since| passed(since) >= UNREADY_LIMIT) {
        return DrainStep::End("NodeNotReady", format!("{left} Pods are lost: nothing is heard of the Node"));
    }
    if passed(seen.since) >= limit {
        return DrainStep::End("TimedOut", format!("{left} Pods did not end within {} s", limit.as_secs()));
    }
    let told = seen.pods.iter().filter(|pod| !pod.is_ending).cloned().collect();
    DrainStep::Evict(told, left)
}

/// Whether a Pod is waited for: not one that is over, nor one that comes again by itself on this Node.
fn is_waited_for(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let of_node =
        pod.owner_references().iter().any(|owner| owner.kind == "DaemonSet" || owner.kind == "Node");
    let is_mirror = pod.annotations().contains_key("kubernetes.io/config.mirror");
    !matches!(phase, Some("Succeeded" | "Failed")) && !of_node && !is_mirror
}

/// Since when nothing is heard of the Node. An agent that says itself that it is not ready goes on to end Pods.
fn unready_since(node: &Node) -> Option<Timestamp> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions.iter().find(|known| known.type_ == "Ready")?;
    let since = ready.last_transition_time.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0);
    (ready.status == "Unknown").then_some(since)
}

impl Reconciler {
    /// Drains the Node of a machine that is being deleted. Returns after what time to look again, or `None` when it is waited for no longer.
    pub(super) async fn drain(&self, machine: &mut Machine) -> Result<Option<Duration>, ReconcileError> {
        let mut status = machine.status.clone().unwrap_or_default();
        let said = find_condition(&status.conditions, DRAINED).and_then(|known| known.reason.clone());
        let is_begun = said.as_deref() == Some(DRAINING);
        let is_over = said.is_some() && !is_begun;
        let Ok(Some((zone, id))) = Self::held(machine) else { return Ok(None) };
        if is_over {
            return Ok(None);
        }
        let name = machine.name_any();
        let nodes = Api::<Node>::all(self.client.clone());
        let node = call("read the Node", nodes.get_opt(&name)).await?;
        let whose = owner(node.as_ref(), machine.spec.provider_id.as_deref());
        let Some(node) = node.filter(|_| whose == Owner::Ours) else { return Ok(None) };
        // Nothing ends any more on a host that is gone.
        if self.pool.host(&zone, &id).await?.is_none() {
            return Ok(None);
        }
        // First, or a Pod could still come to a Node that has none.
        self.cordon(&nodes, &node).await?;
        let bound = ListParams::default().fields(&format!("spec.nodeName={name}"));
        let pods =
            call("list the Pods of the Node", Api::<Pod>::all(self.client.clone()).list(&bound)).await?;
        let now = Timestamp::now();
        let seen = DrainSeen {
            unready_since: unready_since(&node),
            pods: pods.iter().filter(|pod| is_waited_for(pod)).map(pod_seen).collect(),
            settings: drain_settings(&self.client, machine).await?,
            since: machine.metadata.deletion_timestamp.as_ref().map_or(now, |time| time.0),
            now,
        };
        let (type_, is, reason, words, pause) = match decide(&seen) {
            DrainStep::End("Drained", _) if !is_begun => return Ok(None),
            DrainStep::End(reason, words) => {
                let is_done = reason == "Drained";
                let type_ = if is_done { EventType::Normal } else { EventType::Warning };
                let is = if is_done { ConditionStatus::True } else { ConditionStatus::False };
                (type_, is, reason, words, None)
            }
            DrainStep::Evict(pods, left) => {
                let words = format!("{left} Pods are left{}", self.evict(&pods).await);
                (EventType::Normal, ConditionStatus::False, DRAINING, words, Some(PAUSE))
            }
        };
        report::condition(&mut status, DRAINED, is, reason, &words, now);
        *machine = self.save(machine, status).await?;
        if said.as_deref() != Some(reason) {
            let words = if words.is_empty() { "the Node has no Pods any more" } else { &words };
            self.events.say(machine, type_, reason, words).await;
        }
        Ok(pause)
    }

    /// No new Pod comes.
    async fn cordon(&self, nodes: &Api<Node>, node: &Node) -> Result<(), ApiError> {
        if node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true) {
            return Ok(());
        }
        let patch = json!({ "metadata": { "uid": node.uid() }, "spec": { "unschedulable": true } });
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        call("cordon the Node", nodes.patch(&node.name_any(), &params, &patch)).await.map(drop)
    }

    /// Tells Pods to end. One that may not be evicted holds up no other. Returns words about those that were not told.
    async fn evict(&self, pods: &[PodSeen]) -> String {
        let (mut held, mut failed) = (0, None);
        for pod in pods {
            let api = Api::<Pod>::namespaced(self.client.clone(), &pod.namespace);
            match call("evict a Pod", api.evict(&pod.name, &EvictParams::default())).await {
                Err(error) if error.is_too_many() => held += 1,
                Err(error) if !error.is_not_found() => failed = Some((pod, error)),
                _ => {}
            }
        }
        let held = if held > 0 { format!(", {held} of them may not be evicted yet") } else { String::new() };
        let failed =
            failed.map(|(pod, error)| format!("; {}/{}: {}", pod.namespace, pod.name, chain(&error)));
        held + &failed.unwrap_or_default()
    }
}

fn pod_seen(pod: &Pod) -> PodSeen {
    PodSeen {
        namespace: pod.namespace().unwrap_or_default(),
        name: pod.name_any(),
        is_ending: pod.metadata.deletion_timestamp.is_some(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn pod(name: &str, is_ending: bool) -> PodSeen {
        PodSeen { namespace: "n".to_owned(), name: name.to_owned(), is_ending }
    }

    fn seen(pods: &[PodSeen]) -> DrainSeen {
        DrainSeen {
            unready_since: None,
            pods: pods.to_vec(),
            settings: DrainSettings::default(),
            since: at(1000),
            now: at(1010),
        }
    }

    fn reason(seen: &DrainSeen) -> &'static str {
        match decide(seen) {
            DrainStep::Evict(..) => DRAINING,
            DrainStep::End(reason, _) => reason,
        }
    }

    #[test]
    fn pods_are_told_once_to_end_and_then_waited_for() {
        let two = seen(&[pod("a", false), pod("b", true)]);
        assert_eq!(decide(&two), DrainStep::Evict(vec![pod("a", false)], 2));
        assert_eq!(decide(&seen(&[pod("b", true)])), DrainStep::Evict(Vec::new(), 1));
        assert_eq!(reason(&seen(&[])), "Drained");
    }

    #[test]
    fn nothing_is_waited_for_without_end() {
        let pods = [pod("a", true)];
        let with = |timeout, now| DrainSeen {
            settings: DrainSettings { timeout, is_excluded: false },
            now: at(now),
            ..seen(&pods)
        };
        assert_eq!(reason(&with(Some(Duration::from_secs(20)), 1019)), DRAINING);
        assert_eq!(reason(&with(Some(Duration::from_secs(20)), 1020)), "TimedOut");
        assert_eq!(reason(&with(None, 1000 + 7199)), DRAINING);
        assert_eq!(reason(&with(None, 1000 + 7200)), "TimedOut");
        let unready = |since| DrainSeen { unready_since: Some(at(since)), ..seen(&pods) };
        assert_eq!(reason(&unready(1000)), DRAINING, "an agent may be restarted");
        assert_eq!(reason(&unready(950)), "NodeNotReady");
        let settings = DrainSettings { is_excluded: true, timeout: None };
        assert_eq!(reason(&DrainSeen { settings, ..seen(&pods) }), "Excluded");
    }

    #[test]
    fn a_node_whose_agent_speaks_is_waited_for() {
        let node = |status: &str| -> Node {
            let ready =
                json!({ "type": "Ready", "status": status, "lastTransitionTime": "1970-01-01T00:16:40Z" });
            serde_json::from_value(json!({ "metadata": {}, "status": { "conditions": [ready] } })).unwrap()
        };
        assert_eq!(
            ["True", "False", "Unknown"].map(|is| unready_since(&node(is))),
            [None, None, Some(at(1000))]
        );
    }

    #[test]
    fn pods_that_are_over_or_belong_to_the_node_are_not_waited_for() {
        let pod = |metadata: serde_json::Value, phase: &str| -> Pod {
            serde_json::from_value(json!({ "metadata": metadata, "status": { "phase": phase } })).unwrap()
        };
        let owned = |kind: &str| json!({ "name": "p", "ownerReferences": [{ "apiVersion": "v1", "kind": kind, "name": "o", "uid": "u" }] });
        let mirror = json!({ "name": "p", "annotations": { "kubernetes.io/config.mirror": "x" } });
        assert!(is_waited_for(&pod(json!({ "name": "p" }), "Running")));
        assert!(is_waited_for(&pod(owned("Job"), "Pending")));
        for over in [
            pod(json!({ "name": "p" }), "Succeeded"),
            pod(json!({ "name": "p" }), "Failed"),
            pod(owned("DaemonSet"), "Running"),
            pod(mirror, "Running"),
        ] {
            assert!(!is_waited_for(&over), "{over:?}");
        }
    }
}
