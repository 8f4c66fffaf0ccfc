//! The agent's pulse: when its tasks and the disk with its state last answered. The heartbeat has a thread of its own and would vouch for
//! an agent that stands still, so it renews the Lease only while there is a pulse, as a kubelet does with its list of containers.

use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::mutex::lock;

const INTERVAL: Duration = Duration::from_secs(5);

/// The latest beats; clones share them. Time that the Mac sleeps does not count.
#[derive(Debug, Clone)]
pub(crate) struct Pulse(Arc<Mutex<Beats>>);

#[derive(Debug, Clone, Copy)]
struct Beats {
    tasks: Instant,
    disk: Instant,
}

/// What stands still.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Stall {
    #[error("no task of the agent has run for {} s", .0.as_secs())]
    Tasks(Duration),
    #[error("the disk of the state directory has not answered for {} s", .0.as_secs())]
    Disk(Duration),
}

impl Pulse {
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        Self(Arc::new(Mutex::new(Beats { tasks: now, disk: now })))
    }

    /// Beats while the threads of this runtime run tasks, for as long as it is polled.
    pub(crate) async fn run(self) {
        loop {
            // One of the threads has to run it, and then this thread has to go on.
            if tokio::spawn(async {}).await.is_ok() {
                lock(&self.0).tasks = Instant::now();
            }
            sleep(INTERVAL).await;
        }
    }

    /// Beats when the disk has answered. A disk that hangs blocks the thread that asks.
    pub(super) fn ask_disk(&self, file: &Path) {
        // A refusal is an answer, too: the disk may be full.
        drop(File::create(file));
        lock(&self.0).disk = Instant::now();
    }

    /// What has stood still for longer than `limit`.
    pub(super) fn stall(&self, limit: Duration) -> Option<Stall> {
        stall(*lock(&self.0), limit, Instant::now())
    }
}

fn stall(beats: Beats, limit: Duration, now: Instant) -> Option<Stall> {
    let (tasks, disk) = (now.duration_since(beats.tasks), now.duration_since(beats.disk));
    // A disk that hangs holds up the tasks, too.
    if disk > limit { Some(Stall::Disk(disk)) } else { (tasks > limit).then_some(Stall::Tasks(tasks)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_silent_for_longer_than_the_limit_stands_still() {
        let (start, limit) = (Instant::now(), Duration::from_mins(3));
        let at = |second| start + Duration::from_secs(second);
        let found = |tasks, disk, now| stall(Beats { tasks: at(tasks), disk: at(disk) }, limit, at(now));
        let secs = Duration::from_secs;
        assert_eq!(found(0, 0, 180), None);
        assert_eq!(found(0, 170, 181), Some(Stall::Tasks(secs(181))));
        assert_eq!(found(170, 0, 181), Some(Stall::Disk(secs(181))));
        assert_eq!(found(0, 0, 181), Some(Stall::Disk(secs(181))), "the disk comes first");
        // A beat may come between the reading of both times.
        assert_eq!(found(200, 200, 0), None);
    }

    #[tokio::test]
    async fn tasks_that_run_and_a_disk_that_answers_have_a_pulse() {
        let dir = crate::testing::dir();
        let pulse = Pulse::new();
        let before = *lock(&pulse.0);
        let beat = async {
            while lock(&pulse.0).tasks == before.tasks {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            () = beat => {}
            () = pulse.clone().run() => {}
        }
        for file in [dir.path().join("pulse"), dir.path().join("no/such/directory")] {
            let before = lock(&pulse.0).disk;
            pulse.ask_disk(&file);
            assert!(lock(&pulse.0).disk > before, "{}", file.display());
        }
    }
}
