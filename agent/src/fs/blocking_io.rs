//! Looks at the host's disks, which may hang.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;

/// Looks at disks, one at a time. Nobody can end one that hangs, and each has a thread of the agent's, of which there are not many.
#[derive(Debug, Default)]
pub(crate) struct BlockingIo {
    /// The last one, which may still be under way though nobody waits for it any more.
    last: Option<JoinHandle<()>>,
}

impl BlockingIo {
    /// What is seen, within so long; `None` when the disk does not answer. While it has not answered the one before, there is no other.
    pub(crate) async fn look<T: Send + 'static>(
        &mut self,
        patience: Duration,
        look: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        if let Some(last) = &mut self.last {
            let _ = timeout(patience, last).await;
        }
        if self.last.as_ref().is_some_and(|last| !last.is_finished()) {
            return None;
        }
        let (tell, told) = oneshot::channel();
        // Whoever has stopped waiting wants no answer.
        self.last = Some(spawn_blocking(move || drop(tell.send(look()))));
        timeout(patience, told).await.ok()?.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    const LONG: Duration = Duration::from_mins(1);

    #[tokio::test]
    async fn there_is_no_second_look_while_the_first_one_hangs() {
        let (release, hangs) = mpsc::channel::<()>();
        let (ran, runs) = mpsc::channel();
        let mut looks = BlockingIo::default();
        assert_eq!(looks.look(Duration::ZERO, move || hangs.recv().is_ok()).await, None);
        for _ in 0..3 {
            let ran = ran.clone();
            assert_eq!(looks.look(Duration::ZERO, move || ran.send(())).await, None);
        }
        release.send(()).unwrap();
        assert_eq!(looks.look(LONG, || 2).await, Some(2));
        assert!(runs.try_recv().is_err(), "nobody has looked meanwhile");
    }

    #[tokio::test]
    async fn one_that_nobody_waits_for_any_more_counts() {
        let (release, hangs) = mpsc::channel::<()>();
        let mut looks = BlockingIo::default();
        let given_up = timeout(Duration::ZERO, looks.look(LONG, move || hangs.recv().is_ok())).await;
        assert!(given_up.is_err());
        assert_eq!(looks.look(Duration::ZERO, || 1).await, None);
        drop(release);
        assert_eq!(looks.look(LONG, || 2).await, Some(2));
    }
}
