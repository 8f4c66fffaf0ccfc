//! Writes Events, and counts those that repeat. An Event gets its name before the first try to write it, so that a retry makes no second one.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::{Event, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use tokio::time::sleep;

use super::Events;
use crate::apiserver::call::{CallError, call};
use crate::backoff::EVENT;
use crate::mutex::lock;

const CONTROLLER: &str = "tart-kubelet";
const DEADLINE: Duration = Duration::from_secs(10);
const RETRIES: u32 = 2;
/// Of an Event's name: what 253 bytes leave for the name of the object.
const MAX_NAME: usize = 236;
/// An Event that occurs again within this time counts as a repetition.
const SERIES_TIME: SignedDuration = SignedDuration::from_mins(6);

#[derive(Debug)]
pub(super) struct EventRecord {
    pub(super) warns: bool,
    pub(super) reason: String,
    /// Distinguishes Events of one reason.
    pub(super) action: String,
    pub(super) note: String,
}

/// Whether another try may succeed.
fn may_pass(error: &CallError) -> bool {
    match error {
        CallError::Late(_) => true,
        CallError::Refused(status) => status.code == 429 || status.code >= 500,
        CallError::Broken(error) => matches!(**error, kube::Error::Service(_) | kube::Error::HyperError(_)),
    }
}

impl Events {
    /// Writes an Event, or counts a repetition of it.
    pub(super) async fn write(&self, record: &EventRecord, about: &ObjectReference) -> Result<(), CallError> {
        let mut event = self.next(record, about);
        let namespace = about.namespace.as_deref().unwrap_or("default");
        let api = Api::namespaced(self.client.clone(), namespace);
        let mut failures = 0;
        while let Err(error) = write_once(&api, &event).await {
            // The Event that this one repeats was deleted.
            if error.is_not_found() && event.series.take().is_some() {
                continue;
            }
            failures += 1;
            if failures > RETRIES || !may_pass(&error) {
                return Err(error);
            }
            sleep(EVENT.after(failures)).await;
        }
        let mut written = lock(&self.written);
        written.retain(|other| other.metadata.name != event.metadata.name);
        written.push(event);
        Ok(())
    }

    fn next(&self, record: &EventRecord, about: &ObjectReference) -> Event {
        let now = Timestamp::now();
        let mut written = lock(&self.written);
        written.retain(|event| last_seen(event).is_some_and(|seen| now.duration_since(seen) < SERIES_TIME));
        let first = self.first(record, about, now);
        let is_same = |event: &&Event| {
            event.type_ == first.type_ && event.action == first.action && event.regarding == first.regarding
        };
        let Some(same) = written.iter().find(is_same) else { return first };
        let count = same.series.as_ref().map_or(2, |series| series.count + 1);
        Event { series: Some(EventSeries { count, last_observed_time: MicroTime(now) }), ..same.clone() }
    }

    fn first(&self, record: &EventRecord, about: &ObjectReference, now: Timestamp) -> Event {
        let object = about.name.as_deref().unwrap_or(CONTROLLER);
        let object = object.get(..MAX_NAME).unwrap_or(object).trim_end_matches(['.', '-']);
        let name = format!("{object}.{:016x}", fastrand::u64(..));
        Event {
            metadata: ObjectMeta {
                namespace: about.namespace.clone(),
                name: Some(name),
                ..ObjectMeta::default()
            },
            type_: Some(if record.warns { "Warning" } else { "Normal" }.to_owned()),
            reason: Some(record.reason.clone()),
            action: Some(record.action.clone()),
            note: Some(record.note.clone()),
            event_time: Some(MicroTime(now)),
            regarding: Some(about.clone()),
            reporting_controller: Some(CONTROLLER.to_owned()),
            reporting_instance: Some(self.node.clone()),
            ..Event::default()
        }
    }
}

fn last_seen(event: &Event) -> Option<Timestamp> {
    let series = event.series.as_ref().map(|series| &series.last_observed_time);
    series.or(event.event_time.as_ref()).map(|time| time.0)
}

async fn write_once(api: &Api<Event>, event: &Event) -> Result<(), CallError> {
    let write = async {
        if event.series.is_some() {
            let patch = Patch::Merge(event);
            return api.patch(&event.name_any(), &PatchParams::default(), &patch).await.map(drop);
        }
        match api.create(&PostParams::default(), event).await {
            // An earlier try succeeded, and its answer was lost.
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
            other => other.map(drop),
        }
    };
    call(DEADLINE, write).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, Answer, refusal};
    use http::Method;
    use serde_json::{Value, json};
    use tokio::sync::mpsc;

    fn record(note: &str) -> EventRecord {
        EventRecord {
            warns: true,
            reason: "Failed".into(),
            action: format!("Failed-{note}"),
            note: note.into(),
        }
    }

    /// A recorder whose API server gives these answers, with `None` for a connection that breaks, and the requests that it gets.
    fn recorder(answers: Vec<Option<Answer>>) -> (Events, mpsc::UnboundedReceiver<(Method, String, Value)>) {
        let (client, asks) = testing::answering(answers);
        (Events::new(client, &"mac".parse().unwrap()), asks)
    }

    fn about() -> ObjectReference {
        ObjectReference { name: Some("p".into()), namespace: Some("n".into()), ..ObjectReference::default() }
    }

    #[tokio::test]
    async fn an_event_whose_answer_was_lost_is_not_written_twice() {
        let (recorder, mut asks) = recorder(vec![
            None,
            Some(refusal(409, "AlreadyExists")),
            Some((200, json!({}))),
            Some((201, json!({}))),
        ]);
        recorder.write(&record("a"), &about()).await.unwrap();
        let (method, path, first) = asks.recv().await.unwrap();
        assert_eq!((method, &*path), (Method::POST, "/apis/events.k8s.io/v1/namespaces/n/events"));
        let name = first["metadata"]["name"].as_str().unwrap();
        assert!(name.starts_with("p."), "{name}");
        assert_eq!(asks.recv().await.unwrap(), (Method::POST, path.clone(), first.clone()));
        // The same note counts as a repetition, another note does not.
        recorder.write(&record("a"), &about()).await.unwrap();
        let (method, patched, again) = asks.recv().await.unwrap();
        assert_eq!((method, patched), (Method::PATCH, format!("{path}/{name}")));
        assert_eq!(again["series"]["count"], 2);
        recorder.write(&record("b"), &about()).await.unwrap();
        let (method, _, other) = asks.recv().await.unwrap();
        assert_eq!(method, Method::POST);
        assert_ne!(other["metadata"]["name"], first["metadata"]["name"]);
    }

    #[tokio::test]
    async fn an_event_that_was_deleted_is_written_again() {
        let created = || Some((201, json!({})));
        let (recorder, mut asks) = recorder(vec![created(), Some(refusal(404, "NotFound")), created()]);
        for _ in 0..2 {
            recorder.write(&record("a"), &about()).await.unwrap();
        }
        let methods = [asks.recv().await, asks.recv().await, asks.recv().await].map(|ask| ask.unwrap().0);
        assert_eq!(methods, [Method::POST, Method::PATCH, Method::POST]);
    }

    #[tokio::test]
    async fn a_long_object_name_is_cut_in_the_name_of_the_event() {
        let (recorder, mut asks) = recorder(vec![Some((201, json!({})))]);
        let about = ObjectReference { name: Some(format!("{}.x", "a".repeat(235))), ..about() };
        recorder.write(&record("a"), &about).await.unwrap();
        let (_, _, event) = asks.recv().await.unwrap();
        let name = event["metadata"]["name"].as_str().unwrap();
        assert!(name.len() <= 253 && name.starts_with(&format!("{}.", "a".repeat(235))), "{name}");
    }

    #[tokio::test]
    async fn an_event_that_the_api_server_refuses_is_not_tried_again() {
        let (recorder, mut asks) = recorder(vec![Some(refusal(403, "Forbidden"))]);
        recorder.write(&record("a"), &about()).await.unwrap_err();
        asks.recv().await.unwrap();
        assert!(asks.try_recv().is_err());
    }
}
