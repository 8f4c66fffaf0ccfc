//! Where those who want room wait: one pass at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{Mutex, OwnedMutexGuard};

/// The line.
#[derive(Debug, Default)]
pub(super) struct PassQueue {
    at_work: Arc<Mutex<()>>,
    /// How many passes have made room.
    fruitful: AtomicU64,
}

/// A moment, by the passes that had made room until then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moment(u64);

/// Nobody else passes while it is held.
pub(super) type PassTurn = OwnedMutexGuard<()>;

impl PassQueue {
    /// This moment.
    pub(super) fn now(&self) -> Moment {
        Moment(self.fruitful.load(Ordering::Acquire))
    }

    /// A pass has made room.
    pub(super) fn bears_fruit(&self) {
        self.fruitful.fetch_add(1, Ordering::Release);
    }

    /// Waits for its turn. There is none for somebody who has come in time for the fruits of another's pass: a full disk is met by
    /// many at once, and is not to cost an image for each.
    pub(super) async fn turn_unless_fruitful_since(&self, since: Moment) -> Option<PassTurn> {
        let turn = self.at_work.clone().lock_owned().await;
        (self.now() == since).then_some(turn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_has_waited_for_a_pass_that_made_room_needs_none_of_its_own() {
        let line = PassQueue::default();
        let (first, second, third) = (line.now(), line.now(), line.now());
        let in_vain = line.turn_unless_fruitful_since(first).await;
        assert!(in_vain.is_some());
        drop(in_vain);
        assert!(line.turn_unless_fruitful_since(second).await.is_some(), "the pass before was in vain");
        line.bears_fruit();
        assert!(line.turn_unless_fruitful_since(third).await.is_none());
        assert!(line.turn_unless_fruitful_since(line.now()).await.is_some(), "it still lacks room");
    }
}
