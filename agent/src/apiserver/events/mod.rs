//! Events: what a person who asks `kubectl describe` is told.

mod recorder;

use std::hash::{DefaultHasher, Hash, Hasher};

use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use kube::{Client, Resource};
use tracing::{info, warn};

use crate::error_chain::chain;
use crate::names::NodeName;
use recorder::{EventRecord, Recorder};

/// The API server refuses notes of more than 1024 bytes.
const MAX_NOTE: usize = 1000;

/// Writes Events in this Node's name.
#[derive(Clone)]
pub(crate) struct Events(Recorder);

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Events")
    }
}

/// What tells two Events apart besides their reason. The recorder takes those that agree in it for the same one, repeated, and would show
/// the note of the first for ever.
fn action(reason: &str, note: &str) -> String {
    let mut hasher = DefaultHasher::new();
    note.hash(&mut hasher);
    format!("{reason}-{:016x}", hasher.finish())
}

/// As much of a note as an Event can hold.
fn cut(note: &str) -> &str {
    &note[..note.floor_char_boundary(MAX_NOTE)]
}

impl Events {
    /// A writer for the given Node.
    pub(crate) fn new(client: Client, node: &NodeName) -> Self {
        Self(Recorder::new(client, node.to_string()))
    }

    /// A writer that takes nothing for a repetition of what this one has written. A writer goes by the reason alone: what has
    /// the same one only counts, and its words are lost.
    #[must_use]
    pub(crate) fn afresh(&self) -> Self {
        Self(self.0.afresh())
    }

    /// Tells what was done with a Pod.
    pub(crate) fn normal(&self, pod: &Pod, reason: &str, note: &str) {
        self.about(pod.object_ref(&()), false, reason, note);
    }

    /// Tells what went wrong with a Pod, and what can be done about it.
    pub(crate) fn warning(&self, pod: &Pod, reason: &str, note: &str) {
        self.about(pod.object_ref(&()), true, reason, note);
    }

    /// Tells something of any object.
    pub(crate) fn about(&self, reference: ObjectReference, warns: bool, reason: &str, note: &str) {
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
        let told = EventRecord {
            warns,
            reason: reason.to_owned(),
            action: action(reason, note),
            note: cut(note).to_owned(),
        };
        // In the background: an Event that cannot be written must not hold up what it is about.
        let recorder = self.0.clone();
        tokio::spawn(async move {
            if let Err(error) = recorder.write(&told, &reference).await {
                warn!(object, reason = told.reason, error = chain(&error), "cannot write the Event");
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
