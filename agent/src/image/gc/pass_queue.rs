//! The queue of those that want images deleted: one pass at a time, and one that frees space serves all that wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{Mutex, OwnedMutexGuard};

#[derive(Debug, Default)]
pub(super) struct PassQueue {
    turn: Arc<Mutex<()>>,
    freeing: AtomicU64,
}

/// A moment, as the number of passes that had freed space until then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PassCount(u64);

/// No other pass runs while it is held.
pub(super) type PassTurn = OwnedMutexGuard<()>;

impl PassQueue {
    pub(super) fn passes(&self) -> PassCount {
        PassCount(self.freeing.load(Ordering::Acquire))
    }

    /// A pass has freed space.
    pub(super) fn freed(&self) {
        self.freeing.fetch_add(1, Ordering::Release);
    }

    /// Waits for its turn. `None` if another pass freed space after `since`: many requesters find a full disk at once, and it must not
    /// cost an image for each.
    pub(super) async fn turn_unless_freed_since(&self, since: PassCount) -> Option<PassTurn> {
        let turn = self.turn.clone().lock_owned().await;
        (self.passes() == since).then_some(turn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_pass_that_freed_space_serves_all_that_waited_for_it() {
        let queue = PassQueue::default();
        let (first, second, third) = (queue.passes(), queue.passes(), queue.passes());
        let in_vain = queue.turn_unless_freed_since(first).await;
        assert!(in_vain.is_some());
        drop(in_vain);
        assert!(queue.turn_unless_freed_since(second).await.is_some(), "the pass before freed nothing");
        queue.freed();
        assert!(queue.turn_unless_freed_since(third).await.is_none());
        assert!(queue.turn_unless_freed_since(queue.passes()).await.is_some(), "it still lacks space");
    }
}
