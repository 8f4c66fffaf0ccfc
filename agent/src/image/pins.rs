//! Who needs an image at this moment: a Pod that is about to start, or a pull. What is pinned is not collected, and what is being
//! collected is not pinned until that is over.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// All pins; clones share them. An image goes by each of its names, and by that of its base VM: images of several repositories may share one.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pins(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    held: Mutex<Held>,
    /// Rung when something is no longer being collected.
    freed: Notify,
}

#[derive(Debug, Default)]
struct Held {
    pinned: HashMap<String, usize>,
    doomed: HashSet<String>,
}

/// Keeps names from being collected for as long as it lives.
#[derive(Debug)]
pub(crate) struct Pin {
    pins: Pins,
    names: Vec<String>,
}

/// Keeps names from being pinned for as long as it lives.
#[derive(Debug)]
pub(crate) struct DeletionGuard {
    pins: Pins,
    names: Vec<String>,
}

impl Pins {
    /// A pin on nothing yet.
    pub(crate) fn pin(&self) -> Pin {
        Pin { pins: self.clone(), names: Vec::new() }
    }

    /// Whether somebody needs it.
    pub(crate) fn is_pinned(&self, name: &str) -> bool {
        self.lock().pinned.contains_key(name)
    }

    /// Dooms names, unless one of them is needed.
    pub(crate) fn doom(&self, names: impl IntoIterator<Item = String>) -> Option<DeletionGuard> {
        let names: Vec<String> = names.into_iter().collect();
        let mut held = self.lock();
        if names.iter().any(|name| held.pinned.contains_key(name) || held.doomed.contains(name)) {
            return None;
        }
        held.doomed.extend(names.iter().cloned());
        Some(DeletionGuard { pins: self.clone(), names })
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.0.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pin {
    /// Holds one more name. False when it was being collected a moment ago: whatever was known of it may be wrong.
    pub(crate) async fn hold(&mut self, name: &str) -> bool {
        let mut at_once = true;
        loop {
            let freed = self.pins.0.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            {
                let mut held = self.pins.lock();
                if !held.doomed.contains(name) {
                    *held.pinned.entry(name.to_owned()).or_default() += 1;
                    self.names.push(name.to_owned());
                    return at_once;
                }
            }
            at_once = false;
            freed.await;
        }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut held = self.pins.lock();
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
        let mut held = self.pins.lock();
        for name in &self.names {
            held.doomed.remove(name);
        }
        drop(held);
        self.pins.0.freed.notify_waiters();
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
    async fn what_is_needed_is_not_doomed() {
        let pins = Pins::default();
        let (mut one, mut two) = (pins.pin(), pins.pin());
        assert!(one.hold("a").await && two.hold("a").await && two.hold("b").await);
        drop(one);
        assert!(pins.doom(["c".to_owned(), "a".to_owned()]).is_none());
        assert!(pins.doom(name("c")).is_some(), "a doom that failed leaves nothing behind");
        drop(two);
        assert!(!pins.is_pinned("a"));
        assert!(pins.doom(name("a")).is_some());
    }

    #[tokio::test]
    async fn what_is_doomed_is_waited_for() {
        let pins = Pins::default();
        let doom = pins.doom(name("a")).unwrap();
        assert!(pins.doom(name("a")).is_none());
        let mut pin = pins.pin();
        assert!(pin.hold("b").await);
        {
            let hold = pin.hold("a");
            tokio::pin!(hold);
            assert_eq!(hold.as_mut().now_or_never(), None);
            drop(doom);
            assert!(!hold.await, "it had to wait");
        }
        assert!(pins.is_pinned("a"));
    }
}
