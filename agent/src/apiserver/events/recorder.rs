//! Writes Events, and counts those that repeat. An Event has its name before the first try to write it, so that no try makes another one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::{Event, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use tokio::time::{sleep, timeout};

/// The name that all agents report under.
const CONTROLLER: &str = "tart-kubelet";
/// How long one try may take, and how soon the next ones follow.
const LIMIT: Duration = Duration::from_secs(10);
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];
/// What is left of 253 bytes for the name of what an Event is about.
const MAX_NAME: usize = 236;
/// For how long an Event can be repeated.
const MEMORY: SignedDuration = SignedDuration::from_mins(6);

/// What is to be told.
#[derive(Debug)]
pub(super) struct EventRecord {
    pub(super) warns: bool,
    pub(super) reason: String,
    /// What tells two Events of one reason apart.
    pub(super) action: String,
    pub(super) note: String,
}

/// Why an Event was not written.
#[derive(Debug, thiserror::Error)]
pub(super) enum RecordError {
    #[error("the API server has not answered within {} s", LIMIT.as_secs())]
    Late,
    #[error(transparent)]
    Api(#[from] kube::Error),
}

impl RecordError {
    fn is_absence(&self) -> bool {
        matches!(self, Self::Api(kube::Error::Api(status)) if status.code == 404)
    }

    /// Whether another try may do better.
    fn may_pass(&self) -> bool {
        match self {
            Self::Late | Self::Api(kube::Error::Service(_) | kube::Error::HyperError(_)) => true,
            Self::Api(kube::Error::Api(status)) => status.code == 429 || status.code >= 500,
            Self::Api(_) => false,
        }
    }
}

/// Writes the Events of one Node.
#[derive(Clone)]
pub(super) struct Recorder {
    client: Client,
    node: String,
    written: Arc<Mutex<Vec<Event>>>,
}

impl Recorder {
    pub(super) fn new(client: Client, node: String) -> Self {
        Self { client, node, written: Arc::default() }
    }

    /// The same, without a memory of what was written.
    pub(super) fn afresh(&self) -> Self {
        Self::new(self.client.clone(), self.node.clone())
    }

    /// Writes an Event, or counts the one that has said the same.
    pub(super) async fn write(&self, told: &EventRecord, about: &ObjectReference) -> Result<(), RecordError> {
        let mut event = self.next(told, about);
        let namespace = about.namespace.as_deref().unwrap_or("default");
        let api = Api::namespaced(self.client.clone(), namespace);
        let mut pauses = PAUSES.into_iter();
        while let Err(error) = try_to_write(&api, &event).await {
            // Somebody has deleted the one that this repeats.
            if error.is_absence() && event.series.take().is_some() {
                continue;
            }
            match pauses.next() {
                Some(pause) if error.may_pass() => sleep(pause).await,
                _ => return Err(error),
            }
        }
        let mut written = self.written();
        written.retain(|other| other.metadata.name != event.metadata.name);
        written.push(event);
        Ok(())
    }

    fn next(&self, told: &EventRecord, about: &ObjectReference) -> Event {
        let now = Timestamp::now();
        let mut written = self.written();
        written.retain(|event| last_seen(event).is_some_and(|seen| now.duration_since(seen) < MEMORY));
        let first = self.first(told, about, now);
        let is_same = |event: &&Event| {
            event.type_ == first.type_ && event.action == first.action && event.regarding == first.regarding
        };
        let Some(same) = written.iter().find(is_same) else { return first };
        let count = same.series.as_ref().map_or(2, |series| series.count + 1);
        Event { series: Some(EventSeries { count, last_observed_time: MicroTime(now) }), ..same.clone() }
    }

    fn first(&self, told: &EventRecord, about: &ObjectReference, now: Timestamp) -> Event {
        let object = about.name.as_deref().unwrap_or(CONTROLLER);
        let object = object.get(..MAX_NAME).unwrap_or(object).trim_end_matches(['.', '-']);
        let name = format!("{object}.{:016x}", fastrand::u64(..));
        Event {
            metadata: ObjectMeta {
                namespace: about.namespace.clone(),
                name: Some(name),
                ..ObjectMeta::default()
            },
            type_: Some(if told.warns { "Warning" } else { "Normal" }.to_owned()),
            reason: Some(told.reason.clone()),
            action: Some(told.action.clone()),
            note: Some(told.note.clone()),
            event_time: Some(MicroTime(now)),
            regarding: Some(about.clone()),
            reporting_controller: Some(CONTROLLER.to_owned()),
            reporting_instance: Some(self.node.clone()),
            ..Event::default()
        }
    }

    fn written(&self) -> MutexGuard<'_, Vec<Event>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn last_seen(event: &Event) -> Option<Timestamp> {
    let series = event.series.as_ref().map(|series| &series.last_observed_time);
    series.or(event.event_time.as_ref()).map(|time| time.0)
}

async fn try_to_write(api: &Api<Event>, event: &Event) -> Result<(), RecordError> {
    let write = async {
        if event.series.is_some() {
            let patch = Patch::Merge(event);
            return api.patch(&event.name_any(), &PatchParams::default(), &patch).await.map(drop);
        }
        match api.create(&PostParams::default(), event).await {
            // A try that nobody has heard of was good.
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
            other => other.map(drop),
        }
    };
    Ok(timeout(LIMIT, write).await.map_err(|_| RecordError::Late)??)
}

#[cfg(test)]
mod tests {
    use http::Method;
    use kube::client::Body;
    use serde_json::{Value, json};
    use tokio::sync::mpsc;

    use super::*;

    fn told(note: &str) -> EventRecord {
        EventRecord {
            warns: true,
            reason: "Failed".into(),
            action: format!("Failed-{note}"),
            note: note.into(),
        }
    }

    /// A recorder whose API server gives these answers, `None` for a connection that breaks, and what it is asked.
    fn recorder(
        answers: Vec<Option<(u16, Value)>>,
    ) -> (Recorder, mpsc::UnboundedReceiver<(Method, String, Value)>) {
        let (asked, asks) = mpsc::unbounded_channel();
        let answers = Arc::new(Mutex::new(answers.into_iter()));
        let answer = move |request: http::Request<Body>| {
            let (asked, answers) = (asked.clone(), answers.clone());
            async move {
                let (head, body) = request.into_parts();
                let body = serde_json::from_slice(&body.collect_bytes().await.unwrap()).unwrap();
                asked.send((head.method, head.uri.path().to_owned(), body)).unwrap();
                let (code, body) =
                    answers.lock().unwrap().next().unwrap().ok_or(std::io::ErrorKind::ConnectionReset)?;
                let body = Body::from(body.to_string().into_bytes());
                Ok::<_, std::io::Error>(http::Response::builder().status(code).body(body).unwrap())
            }
        };
        (Recorder::new(Client::new(tower::service_fn(answer), "default"), "mac".into()), asks)
    }

    fn failure(code: u16, reason: &str) -> (u16, Value) {
        (code, json!({"status": "Failure", "message": "no", "reason": reason, "code": code}))
    }

    fn about() -> ObjectReference {
        ObjectReference { name: Some("p".into()), namespace: Some("n".into()), ..ObjectReference::default() }
    }

    #[tokio::test]
    async fn an_event_that_was_written_unheard_is_not_written_twice() {
        let (recorder, mut asks) = recorder(vec![
            None,
            Some(failure(409, "AlreadyExists")),
            Some((200, json!({}))),
            Some((201, json!({}))),
        ]);
        recorder.write(&told("a"), &about()).await.unwrap();
        let (method, path, first) = asks.recv().await.unwrap();
        assert_eq!((method, &*path), (Method::POST, "/apis/events.k8s.io/v1/namespaces/n/events"));
        let name = first["metadata"]["name"].as_str().unwrap();
        assert!(name.starts_with("p."), "{name}");
        assert_eq!(asks.recv().await.unwrap(), (Method::POST, path.clone(), first.clone()));
        // The same again counts, something else does not.
        recorder.write(&told("a"), &about()).await.unwrap();
        let (method, patched, again) = asks.recv().await.unwrap();
        assert_eq!((method, patched), (Method::PATCH, format!("{path}/{name}")));
        assert_eq!(again["series"]["count"], 2);
        recorder.write(&told("b"), &about()).await.unwrap();
        let (method, _, other) = asks.recv().await.unwrap();
        assert_eq!(method, Method::POST);
        assert_ne!(other["metadata"]["name"], first["metadata"]["name"]);
    }

    #[tokio::test]
    async fn an_event_that_somebody_has_deleted_is_written_again() {
        let created = || Some((201, json!({})));
        let (recorder, mut asks) = recorder(vec![created(), Some(failure(404, "NotFound")), created()]);
        for _ in 0..2 {
            recorder.write(&told("a"), &about()).await.unwrap();
        }
        let methods = [asks.recv().await, asks.recv().await, asks.recv().await].map(|ask| ask.unwrap().0);
        assert_eq!(methods, [Method::POST, Method::PATCH, Method::POST]);
    }

    #[tokio::test]
    async fn a_long_name_leaves_room_for_the_events_own() {
        let (recorder, mut asks) = recorder(vec![Some((201, json!({})))]);
        let about = ObjectReference { name: Some(format!("{}.x", "a".repeat(235))), ..about() };
        recorder.write(&told("a"), &about).await.unwrap();
        let (_, _, event) = asks.recv().await.unwrap();
        let name = event["metadata"]["name"].as_str().unwrap();
        assert!(name.len() <= 253 && name.starts_with(&format!("{}.", "a".repeat(235))), "{name}");
    }

    #[tokio::test]
    async fn what_is_refused_is_not_tried_again() {
        let (recorder, mut asks) = recorder(vec![Some(failure(403, "Forbidden"))]);
        recorder.write(&told("a"), &about()).await.unwrap_err();
        asks.recv().await.unwrap();
        assert!(asks.try_recv().is_err());
    }
}
