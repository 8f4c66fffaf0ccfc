//! Reads of the host's disks, which may hang.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;

/// Runs a blocking read; `None` when it has died, or the disk does not answer before the deadline.
pub(crate) async fn within<T: Send + 'static>(
    deadline: Duration,
    read: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    timeout(deadline, spawn_blocking(read)).await.ok()?.ok()
}

/// Runs blocking reads, one at a time. A read that hangs cannot be cancelled, and keeps one of the agent's few threads.
#[derive(Debug, Default)]
pub(crate) struct BlockingIo {
    /// The last read, which may still run after its deadline.
    last: Option<JoinHandle<()>>,
}

impl BlockingIo {
    /// Runs `read`; `None` when the disk does not answer before the deadline. While the last read has not ended, no other one starts.
    pub(crate) async fn run<T: Send + 'static>(
        &mut self,
        deadline: Duration,
        read: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        if let Some(last) = &mut self.last {
            let _ = timeout(deadline, last).await;
        }
        if self.last.as_ref().is_some_and(|last| !last.is_finished()) {
            return None;
        }
        let (sender, result) = oneshot::channel();
        // The receiver may be gone.
        self.last = Some(spawn_blocking(move || drop(sender.send(read()))));
        timeout(deadline, result).await.ok()?.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    const LONG: Duration = Duration::from_mins(1);

    #[tokio::test]
    async fn no_read_starts_while_the_last_one_hangs() {
        let (release, hangs) = mpsc::channel::<()>();
        let (ran, runs) = mpsc::channel();
        let mut io = BlockingIo::default();
        assert_eq!(io.run(Duration::ZERO, move || hangs.recv().is_ok()).await, None);
        for _ in 0..3 {
            let ran = ran.clone();
            assert_eq!(io.run(Duration::ZERO, move || ran.send(())).await, None);
        }
        release.send(()).unwrap();
        assert_eq!(io.run(LONG, || 2).await, Some(2));
        assert!(runs.try_recv().is_err(), "none of the three has run");
    }

    #[tokio::test]
    async fn a_read_whose_caller_is_gone_still_counts() {
        let (release, hangs) = mpsc::channel::<()>();
        let mut io = BlockingIo::default();
        let cancelled = timeout(Duration::ZERO, io.run(LONG, move || hangs.recv().is_ok())).await;
        assert!(cancelled.is_err());
        assert_eq!(io.run(Duration::ZERO, || 1).await, None);
        drop(release);
        assert_eq!(io.run(LONG, || 2).await, Some(2));
    }
}
