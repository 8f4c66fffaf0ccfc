//! Where those who want room wait: one pass at a time.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{Mutex, MutexGuard};

/// The line.
#[derive(Debug, Default)]
pub(super) struct Line {
    at_work: Mutex<()>,
    /// How many passes have made room.
    fruitful: AtomicU64,
}

impl Line {
    /// How many passes have made room.
    pub(super) fn fruitful(&self) -> u64 {
        self.fruitful.load(Ordering::Acquire)
    }

    /// A pass has made room.
    pub(super) fn bears_fruit(&self) {
        self.fruitful.fetch_add(1, Ordering::Release);
    }

    /// Waits for its turn.
    pub(super) async fn turn(&self) -> MutexGuard<'_, ()> {
        self.at_work.lock().await
    }

    /// Waits for its turn. There is none for somebody who has come in time for the fruits of another's pass: a full disk is met by
    /// many at once, and is not to cost an image for each.
    pub(super) async fn turn_unless_fruitful_since(&self, since: u64) -> Option<MutexGuard<'_, ()>> {
        let turn = self.turn().await;
        (self.fruitful() == since).then_some(turn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_has_waited_for_a_pass_that_made_room_needs_none_of_its_own() {
        let line = Line::default();
        let (first, second, third) = (line.fruitful(), line.fruitful(), line.fruitful());
        let in_vain = line.turn_unless_fruitful_since(first).await;
        assert!(in_vain.is_some());
        drop(in_vain);
        assert!(line.turn_unless_fruitful_since(second).await.is_some(), "the pass before was in vain");
        line.bears_fruit();
        assert!(line.turn_unless_fruitful_since(third).await.is_none());
        assert!(line.turn_unless_fruitful_since(line.fruitful()).await.is_some(), "it still lacks room");
    }
}
