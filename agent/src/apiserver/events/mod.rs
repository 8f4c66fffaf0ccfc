//! Events: what `kubectl describe` shows of an object's past.

mod last_reported;
mod reason;
mod recorder;

pub(crate) use last_reported::LastReported;
pub(crate) use reason::EventReason;

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};

use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use k8s_openapi::api::events::v1::Event;
use kube::{Client, Resource};
use tracing::{info, warn};

use crate::error_chain::chain;
use crate::names::NodeName;
use recorder::EventRecord;

/// The API server refuses notes of more than 1024 bytes.
const MAX_NOTE: usize = 1000;

/// Writes Events in this Node's name.
#[derive(Clone)]
pub(crate) struct Events {
    client: Client,
    node: String,
    written: Arc<Mutex<Vec<Event>>>,
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Events")
    }
}

/// The `action` of an Event. The recorder counts an Event with the same action as a repetition and keeps the first note, so each note
/// has an action of its own.
fn action(reason: &str, note: &str) -> String {
    let mut hasher = DefaultHasher::new();
    note.hash(&mut hasher);
    format!("{reason}-{:016x}", hasher.finish())
}

fn cut(note: &str) -> &str {
    &note[..note.floor_char_boundary(MAX_NOTE)]
}

impl Events {
    pub(crate) fn new(client: Client, node: &NodeName) -> Self {
        Self { client, node: node.to_string(), written: Arc::default() }
    }

    /// A writer that counts no Event as a repetition of one that this writer wrote.
    #[must_use]
    pub(crate) fn afresh(&self) -> Self {
        Self { written: Arc::default(), ..self.clone() }
    }

    /// Reports what the agent did with a Pod.
    pub(crate) fn normal(&self, pod: &Pod, reason: impl fmt::Display, note: &str) {
        self.about(pod.object_ref(&()), false, reason, note);
    }

    /// Reports what went wrong with a Pod, and what the user can do about it.
    pub(crate) fn warning(&self, pod: &Pod, reason: impl fmt::Display, note: &str) {
        self.about(pod.object_ref(&()), true, reason, note);
    }

    /// What an Event about a container is about; `field_path` is the container's place in the Pod.
    pub(crate) fn container(pod: &Pod, field_path: String) -> ObjectReference {
        ObjectReference { field_path: Some(field_path), ..pod.object_ref(&()) }
    }

    /// Writes an Event about any object, and logs it.
    pub(crate) fn about(
        &self,
        reference: ObjectReference,
        warns: bool,
        reason: impl fmt::Display,
        note: &str,
    ) {
        // A Pod's words must not fill the log.
        let note = cut(note);
        let reason = reason.to_string();
        let kind = reference.kind.as_deref().unwrap_or_default().to_ascii_lowercase();
        let object = match (&reference.namespace, reference.name.as_deref().unwrap_or_default()) {
            (Some(namespace), name) => format!("{kind} {namespace}/{name}"),
            (None, name) => format!("{kind} {name}"),
        };
        if warns {
            warn!(object, reason, "{note}");
        } else {
            info!(object, reason, "{note}");
        }
        let record = EventRecord { warns, action: action(&reason, note), reason, note: note.to_owned() };
        // In the background: an Event that cannot be written must not delay what it reports.
        let events = self.clone();
        tokio::spawn(async move {
            if let Err(error) = events.write(&record, &reference).await {
                warn!(object, reason = record.reason, error = chain(&error), "cannot write the Event");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_note_is_cut_between_characters() {
        assert_eq!(cut("short"), "short");
        for (letter, length) in [("a", 1000), ("é", 1000), ("€", 999), ("🍏", 1000)] {
            let note = letter.repeat(2000);
            assert_eq!(cut(&note).len(), length, "{letter}");
        }
    }
}
