//! Gets a Pod's status to the API server, however long that takes, and knows which one is there.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use super::status::is_final;
use super::{PodName, PodUid};
use crate::crash;
use crate::report::chain;

const LIMIT: Duration = Duration::from_secs(15);
const FIRST_DELAY: Duration = Duration::from_millis(250);
const LONGEST_DELAY: Duration = Duration::from_secs(15);

/// Publishes the latest status of one Pod from a task of its own, so that an API server that is away holds up nothing else.
#[derive(Debug)]
pub struct Publisher {
    wanted: watch::Sender<Option<PodStatus>>,
    published: watch::Receiver<Option<PodStatus>>,
}

impl Publisher {
    /// Starts the task; it ends when this value is dropped.
    pub fn spawn(api: Api<Pod>, pod: PodName, uid: PodUid) -> Self {
        let (wanted, receiver) = watch::channel(None);
        let (sender, published) = watch::channel(None);
        tokio::spawn(publish(api, pod, uid, receiver, sender));
        Self { wanted, published }
    }

    /// Asks for a status to be published; one that is asked for already costs nothing.
    pub fn want(&self, status: PodStatus) {
        self.wanted.send_if_modified(|wanted| {
            let changed = wanted.as_ref() != Some(&status);
            if changed {
                *wanted = Some(status);
            }
            changed
        });
    }

    /// Whether the API server has taken a final phase from us.
    pub fn has_published_final(&self) -> bool {
        is_final(self.published.borrow().as_ref())
    }

    /// Waits until the API server has taken another status.
    pub async fn changed(&mut self) {
        if self.published.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

async fn publish(
    api: Api<Pod>,
    pod: PodName,
    uid: PodUid,
    mut wanted: watch::Receiver<Option<PodStatus>>,
    published: watch::Sender<Option<PodStatus>>,
) {
    let mut delay = FIRST_DELAY;
    loop {
        let Some(status) = wanted.borrow_and_update().clone() else {
            if wanted.changed().await.is_err() {
                return;
            }
            continue;
        };
        let body = Patch::Strategic(patch(&uid, &status));
        let is_last = is_final(Some(&status));
        crash::point(if is_last { "agent.publish-final.before" } else { "agent.publish.before" });
        let attempt = timeout(LIMIT, api.patch_status(&pod.name, &PatchParams::default(), &body)).await;
        crash::point(if is_last { "agent.publish-final.after" } else { "agent.publish.after" });
        let problem = match attempt {
            Ok(Ok(_)) => {
                debug!(%pod, phase = status.phase, "status published");
                published.send_replace(Some(status));
                delay = FIRST_DELAY;
                if wanted.changed().await.is_err() {
                    return;
                }
                continue;
            }
            // Nobody will ever read this status.
            Ok(Err(kube::Error::Api(answer))) if is_gone(answer.code, &answer.message) => {
                published.send_replace(Some(status));
                return;
            }
            Ok(Err(error)) => chain(&error),
            Err(_) => format!("no answer within {} s", LIMIT.as_secs()),
        };
        warn!(%pod, problem, "cannot publish the Pod's status; trying again");
        tokio::select! {
            () = sleep(delay) => {}
            // A newer status is tried at once, unless nobody wants one any more.
            changed = wanted.changed() => if changed.is_err() { return },
        }
        delay = (delay * 2).min(LONGEST_DELAY);
    }
}

/// Whether an answer means that the Pod is gone, or that another one has its name. Any other conflict passes.
fn is_gone(code: u16, message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    // A Pod may have any of these in its name, but not with what follows.
    let words = ["uid in precondition: ", "uid in the precondition (", "metadata.uid: "];
    code == 404 || (matches!(code, 409 | 422) && words.iter().any(|words| message.contains(words)))
}

/// The patch for a status. The UID makes it miss a newer Pod of the same name; absent fields are removed.
fn patch(uid: &PodUid, status: &PodStatus) -> Value {
    let mut fields = json!(status);
    for name in ["reason", "message", "podIP"] {
        if let Some(fields) = fields.as_object_mut() {
            fields.entry(name).or_insert(Value::Null);
        }
    }
    // Conditions are merged by type, so that those of others stay; what one of ours no longer says has to be taken back.
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

    #[test]
    fn only_a_missing_or_another_pod_ends_the_tries() {
        assert!(is_gone(404, "pods \"a\" not found"));
        assert!(is_gone(409, "Precondition failed: UID in precondition: a, UID in object meta: b"));
        assert!(!is_gone(409, "the object has been modified"));
        assert!(is_gone(422, "Pod \"a\" is invalid: metadata.uid: Invalid value: \"b\": field is immutable"));
        assert!(!is_gone(
            409,
            "Operation cannot be fulfilled on pods \"fluid-0\": the object has been modified"
        ));
        assert!(!is_gone(422, "Pod \"metadata.uid\" is invalid: status.hostIPs[0]: Invalid value"));
        assert!(!is_gone(500, "uid"));
    }

    #[test]
    fn the_address_of_a_node_that_has_moved_is_replaced() {
        let host_ips = Some(vec![HostIP { ip: "10.0.0.2".to_owned() }]);
        let body = patch(&"0b1c".parse().unwrap(), &PodStatus { host_ips, ..PodStatus::default() });
        assert_eq!(body["status"]["hostIPs"], json!([{"$patch": "replace"}, {"ip": "10.0.0.2"}]));
    }

    #[test]
    fn what_a_condition_no_longer_says_is_removed() {
        let ready = PodCondition { type_: "Ready".into(), status: "True".into(), ..PodCondition::default() };
        let status = PodStatus { conditions: Some(vec![ready]), ..PodStatus::default() };
        let body = patch(&"0b1c".parse().unwrap(), &status);
        let expected = json!([{"type": "Ready", "status": "True", "reason": null, "message": null}]);
        assert_eq!(body["status"]["conditions"], expected);
    }

    #[test]
    fn what_a_status_no_longer_says_is_removed() {
        let body = patch(&"0b1c".parse().unwrap(), &PodStatus::default());
        assert_eq!(body["metadata"]["uid"], "0b1c");
        assert_eq!(
            body["status"],
            json!({"reason": null, "message": null, "podIP": null, "podIPs": [{"$patch": "replace"}]})
        );
        let ready = PodCondition { type_: "Ready".into(), status: "True".into(), ..PodCondition::default() };
        let status = PodStatus { conditions: Some(vec![ready]), ..PodStatus::default() };
        assert_eq!(
            patch(&"0b1c".parse().unwrap(), &status)["status"]["conditions"],
            json!([{"type": "Ready", "status": "True", "reason": null, "message": null}])
        );
    }
}
