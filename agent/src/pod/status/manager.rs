//! Publishes a Pod's status to the API server, retries until it is there, and knows which status the API server has.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ObjectReference, Pod, PodStatus};
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tracing::{debug, warn};

use super::is_final;
use crate::apiserver::call::{CallError, DEADLINE, call};
use crate::apiserver::events::{EventReason, Events, LastReported};
use crate::backoff::POD_STATUS;
use crate::crash_point;
use crate::error_chain::chain;
use crate::names::{PodName, PodUid};

/// How soon the agent writes the same status again after another controller changed it, as in the kubelet.
const INSIST_AFTER: Duration = Duration::from_secs(10);

/// After this many refusals in a row, some eight seconds, the agent tells the user, and publishes the phase and the reason alone. An API
/// server that has just learnt of the Pod may refuse a few times.
const REFUSALS: u32 = 5;

/// Publishes the latest status of one Pod from a task of its own, so that an API server that is down delays nothing else.
#[derive(Debug)]
pub(crate) struct StatusManager {
    wanted: watch::Sender<Option<PodStatus>>,
    published: watch::Receiver<Option<Published>>,
}

/// A status that the API server has taken.
#[derive(Debug, Clone)]
struct Published {
    status: PodStatus,
    /// The agent's fields as the API server then showed them.
    shown: PodStatus,
    /// The version of the Pod that has it; absent when there is no Pod any more.
    version: Option<u64>,
    at: Instant,
}

impl Published {
    fn new(status: PodStatus, answer: &Pod) -> Self {
        let shown = own_part(answer.status.as_ref(), &status);
        Self { status, shown, version: version(answer), at: Instant::now() }
    }

    /// Nothing: the Pod is gone.
    fn in_vain(status: PodStatus) -> Self {
        Self { status, shown: PodStatus::default(), version: None, at: Instant::now() }
    }

    /// Whether another controller has changed the agent's fields since then. The node lifecycle controller does so for the Pods of a Node that
    /// it takes for dead, and leaves it to the Node to correct them.
    fn is_undone_by(&self, pod: &Pod) -> bool {
        // The watch may still show an older version.
        let is_newer = version(pod).zip(self.version).is_some_and(|(now, then)| now > then);
        is_newer && own_part(pod.status.as_ref(), &self.status) != self.shown
    }
}

/// Versions of one object grow.
fn version(pod: &Pod) -> Option<u64> {
    pod.metadata.resource_version.as_deref()?.parse().ok()
}

/// The fields of `shown` that the agent's status sets. A condition is the agent's if the agent sets its type.
fn own_part(shown: Option<&PodStatus>, ours: &PodStatus) -> PodStatus {
    let Some(shown) = shown else { return PodStatus::default() };
    let kinds = || ours.conditions.iter().flatten().map(|one| &one.type_);
    let of = |kind: &String| shown.conditions.iter().flatten().find(|one| one.type_ == *kind).cloned();
    PodStatus {
        phase: shown.phase.clone(),
        reason: shown.reason.clone(),
        message: shown.message.clone(),
        conditions: Some(kinds().filter_map(of).collect()),
        container_statuses: shown.container_statuses.clone(),
        init_container_statuses: shown.init_container_statuses.clone(),
        ephemeral_container_statuses: shown.ephemeral_container_statuses.clone(),
        start_time: shown.start_time.clone(),
        host_ip: shown.host_ip.clone(),
        host_ips: shown.host_ips.clone(),
        pod_ip: shown.pod_ip.clone(),
        pod_ips: shown.pod_ips.clone(),
        observed_generation: shown.observed_generation,
        ..PodStatus::default()
    }
}

impl StatusManager {
    /// Starts the task; it ends when this value is dropped.
    pub(crate) fn spawn(api: Api<Pod>, pod: PodName, uid: PodUid, events: Events) -> Self {
        let (wanted, receiver) = watch::channel(None);
        let (sender, published) = watch::channel(None);
        tokio::spawn(publish(api, pod, uid, events, receiver, sender));
        Self { wanted, published }
    }

    /// Asks for a status to be published. The same status again costs nothing, unless `pod` shows that another controller has changed it.
    pub(crate) fn want(&self, status: PodStatus, pod: &Pod) {
        let undone = self.published.borrow().as_ref().is_some_and(|last| {
            last.status == status && last.at.elapsed() >= INSIST_AFTER && last.is_undone_by(pod)
        });
        self.wanted.send_if_modified(|wanted| {
            let changed = undone || wanted.as_ref() != Some(&status);
            if changed {
                *wanted = Some(status);
            }
            changed
        });
    }

    /// Publishes nothing more: the Pod is gone.
    pub(crate) fn cease(&self) {
        self.wanted.send_if_modified(|wanted| wanted.take().is_some());
    }

    /// Whether the API server has taken a final phase from us.
    pub(crate) fn has_published_final(&self) -> bool {
        is_final(self.published.borrow().as_ref().map(|last| &last.status))
    }

    /// Waits until the API server has taken another status.
    pub(crate) async fn changed(&mut self) {
        if self.published.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

async fn publish(
    api: Api<Pod>,
    pod: PodName,
    uid: PodUid,
    events: Events,
    mut wanted: watch::Receiver<Option<PodStatus>>,
    published: watch::Sender<Option<Published>>,
) {
    let mut delays = POD_STATUS.delays();
    let (mut refusals, mut reported) = (0, LastReported::default());
    loop {
        let Some(status) = wanted.borrow_and_update().clone() else {
            if wanted.changed().await.is_err() {
                return;
            }
            continue;
        };
        let is_brief = refusals >= REFUSALS;
        let body = Patch::Strategic(if is_brief { brief_patch(&uid, &status) } else { patch(&uid, &status) });
        let is_last = is_final(Some(&status));
        crash_point::point(if is_last { "agent.publish-final.before" } else { "agent.publish.before" });
        let answer = call(DEADLINE, api.patch_status(&pod.name, &PatchParams::default(), &body)).await;
        crash_point::point(if is_last { "agent.publish-final.after" } else { "agent.publish.after" });
        let last = match answer {
            Ok(answer) => {
                debug!(%pod, phase = status.phase, "status published");
                Published::new(status, &answer)
            }
            Err(CallError::Refused(answer)) if is_replaced(answer.code, &answer.message) => {
                Published::in_vain(status)
            }
            Err(error) => {
                // The Pod is most likely gone, but a proxy may have answered. The watch knows for sure.
                if error.is_not_found() {
                    delays.skip_to_longest();
                }
                if let CallError::Refused(answer) = &error
                    && is_refused_for_good(answer.code)
                {
                    refusals += 1;
                    if refusals == REFUSALS && reported.is_new(answer.message.clone()) {
                        let note = format!(
                            "the API server refuses this Pod's status, so that only its phase and reason are written: {}",
                            answer.message
                        );
                        events.about(reference(&pod, &uid), true, EventReason::StatusRefused, &note);
                    }
                }
                warn!(%pod, problem = chain(&error), "cannot publish the Pod's status; trying again");
                tokio::select! {
                    () = sleep(delays.next()) => {}
                    // A newer status is tried at once, and as a whole.
                    changed = wanted.changed() => {
                        refusals = 0;
                        if changed.is_err() {
                            return;
                        }
                    }
                }
                continue;
            }
        };
        published.send_replace(Some(last));
        delays.reset();
        refusals = 0;
        if wanted.changed().await.is_err() {
            return;
        }
    }
}

/// Whether the API server will refuse the same status again: it is invalid, or a policy forbids it.
fn is_refused_for_good(code: u16) -> bool {
    matches!(code, 400 | 403 | 413 | 422)
}

fn reference(pod: &PodName, uid: &PodUid) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(pod.namespace.clone()),
        name: Some(pod.name.clone()),
        uid: Some(uid.to_string()),
        ..ObjectReference::default()
    }
}

/// The patch for a status that the API server refuses as a whole: without its phase a Pod would never end.
fn brief_patch(uid: &PodUid, status: &PodStatus) -> Value {
    json!({"metadata": {"uid": uid}, "status": {"phase": status.phase, "reason": status.reason}})
}

/// Whether an answer means that another Pod has the name. Any other conflict passes.
fn is_replaced(code: u16, message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    // A Pod may have any of these in its name, but not with what follows.
    let words = ["uid in precondition: ", "uid in the precondition (", "metadata.uid: "];
    matches!(code, 409 | 422) && words.iter().any(|words| message.contains(words))
}

/// The patch for a status. The UID makes it miss a newer Pod of the same name; absent fields are removed.
fn patch(uid: &PodUid, status: &PodStatus) -> Value {
    let mut fields = json!(status);
    for name in ["reason", "message", "podIP"] {
        if let Some(fields) = fields.as_object_mut() {
            fields.entry(name).or_insert(Value::Null);
        }
    }
    // Conditions are merged by type, so those of other controllers stay. A field that the agent's condition no longer has is removed.
    let conditions = fields.get_mut("conditions").and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten().filter_map(Value::as_object_mut) {
        for name in ["reason", "message"] {
            condition.entry(name).or_insert(Value::Null);
        }
    }
    // Addresses are merged by default: a restarted VM would keep its old one, and so would a Node that has moved.
    fields["podIPs"] = replaced(status.pod_ips.iter().flatten().map(|address| &address.ip));
    if let Some(addresses) = &status.host_ips {
        fields["hostIPs"] = replaced(addresses.iter().map(|address| &address.ip));
    }
    json!({"metadata": {"uid": uid}, "status": fields})
}

/// Addresses that take the place of all that were there.
fn replaced<'a>(addresses: impl Iterator<Item = &'a String>) -> Value {
    let items = addresses.map(|address| json!({"ip": address}));
    Value::Array(std::iter::once(json!({"$patch": "replace"})).chain(items).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{HostIP, PodCondition};
    use kube::Client;
    use kube::client::Body;
    use std::convert::Infallible;
    use tokio::sync::mpsc;

    #[tokio::test]
    async fn after_a_404_the_next_status_is_published_all_the_same() {
        let (asked, mut asks) = mpsc::unbounded_channel();
        let missing = json!({"status": "Failure", "message": "no", "reason": "NotFound", "code": 404});
        let mut answers = vec![(200, json!({"metadata": {"name": "p"}})), (404, missing)];
        let answer = move |_: http::Request<Body>| {
            let (code, body) = answers.pop().unwrap();
            let _ = asked.send(code);
            let answer =
                http::Response::builder().status(code).body(Body::from(body.to_string().into_bytes()));
            std::future::ready(Ok::<_, Infallible>(answer.unwrap()))
        };
        let client = Client::new(tower::service_fn(answer), "default");
        let name = PodName { namespace: "default".into(), name: "p".into() };
        let events = Events::new(client.clone(), &"mac-1".parse().unwrap());
        let mut publisher =
            StatusManager::spawn(Api::default_namespaced(client), name, "0b1c".parse().unwrap(), events);
        let failed = PodStatus { phase: Some("Failed".into()), ..PodStatus::default() };
        publisher.want(failed.clone(), &Pod::default());
        assert_eq!(asks.recv().await, Some(404));
        assert!(!publisher.has_published_final());
        publisher.want(PodStatus { reason: Some("Error".into()), ..failed }, &Pod::default());
        publisher.changed().await;
        assert!(publisher.has_published_final());
    }

    #[test]
    fn publishing_ends_only_when_another_pod_has_the_name() {
        let table = [
            (404, "pods \"a\" not found", false),
            (409, "Precondition failed: UID in precondition: a, UID in object meta: b", true),
            (409, "the object has been modified", false),
            (422, "Pod \"a\" is invalid: metadata.uid: Invalid value: \"b\": field is immutable", true),
            (409, "Operation cannot be fulfilled on pods \"fluid-0\": the object has been modified", false),
            (422, "Pod \"metadata.uid\" is invalid: status.hostIPs[0]: Invalid value", false),
            (500, "uid", false),
        ];
        for (code, message, expected) in table {
            assert_eq!(is_replaced(code, message), expected, "{code} {message}");
        }
    }

    #[test]
    fn a_change_of_the_agents_fields_by_others_is_seen() {
        let pod = |version: &str, ready: &str, phase: &str| -> Pod {
            serde_json::from_value(json!({
                "metadata": {"resourceVersion": version},
                "status": {"phase": phase, "qosClass": "Burstable", "conditions": [
                    {"type": "Theirs", "status": ready},
                    {"type": "Ready", "status": "True"},
                ]},
            }))
            .unwrap()
        };
        let changed = |version, change: fn(&mut Vec<PodCondition>)| {
            let mut pod = pod(version, "True", "Running");
            change(pod.status.as_mut().unwrap().conditions.as_mut().unwrap());
            pod
        };
        let unready = |version| changed(version, |conditions| conditions[1].status = "False".into());
        let status = ready();
        let published = Published::new(status.clone(), &pod("9", "True", "Running"));
        let table = vec![
            (pod("9", "True", "Running"), false),
            (pod("10", "True", "Running"), false),
            // Another controller may change its own condition.
            (pod("10", "False", "Running"), false),
            (pod("10", "True", "Pending"), true),
            (unready("10"), true),
            (changed("10", |conditions| drop(conditions.pop())), true),
            // An older version, or one without a version, is no change.
            (unready("8"), false),
            (unready("what"), false),
        ];
        for (pod, undone) in table {
            assert_eq!(published.is_undone_by(&pod), undone, "{pod:?}");
        }
        assert!(!Published::in_vain(status).is_undone_by(&unready("10")));
    }

    fn ready() -> PodStatus {
        let ready = PodCondition { type_: "Ready".into(), status: "True".into(), ..PodCondition::default() };
        PodStatus { conditions: Some(vec![ready]), ..PodStatus::default() }
    }

    #[test]
    fn a_patch_replaces_addresses_and_removes_fields_that_a_status_or_condition_no_longer_has() {
        let patch = |status: &PodStatus| patch(&"0b1c".parse().unwrap(), status);
        let host_ips = Some(vec![HostIP { ip: "10.0.0.2".to_owned() }]);
        let body = patch(&PodStatus { host_ips, ..PodStatus::default() });
        assert_eq!(body["status"]["hostIPs"], json!([{"$patch": "replace"}, {"ip": "10.0.0.2"}]));
        let expected = json!([{"type": "Ready", "status": "True", "reason": null, "message": null}]);
        assert_eq!(patch(&ready())["status"]["conditions"], expected);
        let body = patch(&PodStatus::default());
        assert_eq!(body["metadata"]["uid"], "0b1c");
        let expected =
            json!({"reason": null, "message": null, "podIP": null, "podIPs": [{"$patch": "replace"}]});
        assert_eq!(body["status"], expected);
    }
}
