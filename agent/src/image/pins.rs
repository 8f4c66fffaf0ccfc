//! Pins on images that a starting Pod or a pull needs. The agent does not delete a pinned image, and a pin on an image that is being
//! deleted waits for the end of the deletion.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use crate::mutex::lock;

/// All pins; clones share them. An image is pinned by each of its names, and by that of its base VM.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pins(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    held: Mutex<Held>,
    /// Notified when a deletion has ended.
    deleted: Notify,
}

#[derive(Debug, Default)]
struct Held {
    pinned: HashMap<String, usize>,
    deleting: HashSet<String>,
}

/// Keeps names from being deleted while it lives.
#[derive(Debug)]
pub(crate) struct Pin {
    pins: Pins,
    names: Vec<String>,
}

/// Keeps names from being pinned while it lives.
#[derive(Debug)]
pub(crate) struct DeletionGuard {
    pins: Pins,
    names: Vec<String>,
}

impl Pins {
    /// A pin without names.
    pub(crate) fn pin(&self) -> Pin {
        Pin { pins: self.clone(), names: Vec::new() }
    }

    pub(crate) fn is_pinned(&self, name: &str) -> bool {
        lock(&self.0.held).pinned.contains_key(name)
    }

    /// Begins to delete names, unless one of them is pinned or being deleted.
    pub(crate) fn begin_deletion(&self, names: impl IntoIterator<Item = String>) -> Option<DeletionGuard> {
        let names: Vec<String> = names.into_iter().collect();
        let mut held = lock(&self.0.held);
        if names.iter().any(|name| held.pinned.contains_key(name) || held.deleting.contains(name)) {
            return None;
        }
        held.deleting.extend(names.iter().cloned());
        Some(DeletionGuard { pins: self.clone(), names })
    }
}

impl Pin {
    /// Pins one more name. False when it was being deleted until now: what the caller knows of it may be wrong.
    pub(crate) async fn hold(&mut self, name: &str) -> bool {
        let mut is_first = true;
        loop {
            let deleted = self.pins.0.deleted.notified();
            tokio::pin!(deleted);
            deleted.as_mut().enable();
            {
                let mut held = lock(&self.pins.0.held);
                if !held.deleting.contains(name) {
                    *held.pinned.entry(name.to_owned()).or_default() += 1;
                    self.names.push(name.to_owned());
                    return is_first;
                }
            }
            is_first = false;
            deleted.await;
        }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut held = lock(&self.pins.0.held);
        for name in &self.names {
            if let Some(count) = held.pinned.get_mut(name) {
                *count -= 1;
                if *count == 0 {
                    held.pinned.remove(name);
                }
            }
        }
    }
}

impl Drop for DeletionGuard {
    fn drop(&mut self) {
        let mut held = lock(&self.pins.0.held);
        for name in &self.names {
            held.deleting.remove(name);
        }
        drop(held);
        self.pins.0.deleted.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    fn name(text: &str) -> [String; 1] {
        [text.to_owned()]
    }

    #[tokio::test]
    async fn a_pinned_name_is_not_deleted() {
        let pins = Pins::default();
        let (mut one, mut two) = (pins.pin(), pins.pin());
        assert!(one.hold("a").await && two.hold("a").await && two.hold("b").await);
        drop(one);
        assert!(pins.begin_deletion(["c".to_owned(), "a".to_owned()]).is_none());
        assert!(pins.begin_deletion(name("c")).is_some(), "a refused deletion leaves nothing behind");
        drop(two);
        assert!(!pins.is_pinned("a"));
        assert!(pins.begin_deletion(name("a")).is_some());
    }

    #[tokio::test]
    async fn a_pin_waits_for_a_deletion() {
        let pins = Pins::default();
        let deletion = pins.begin_deletion(name("a")).unwrap();
        assert!(pins.begin_deletion(name("a")).is_none());
        let mut pin = pins.pin();
        assert!(pin.hold("b").await);
        {
            let hold = pin.hold("a");
            tokio::pin!(hold);
            assert_eq!(hold.as_mut().now_or_never(), None);
            drop(deletion);
            assert!(!hold.await, "it had to wait");
        }
        assert!(pins.is_pinned("a"));
    }
}
