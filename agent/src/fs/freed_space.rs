//! How much disk space a deletion has freed, by measurements before and after it.

use std::path::Path;
use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::blocking_io::within;
use crate::os::availability::{Availability, volume};

/// A disk that does not answer must not hold up requests for disk space.
pub(crate) const LOOK_LIMIT: Duration = Duration::from_secs(30);
/// APFS frees blocks a moment after their file is deleted.
const FIRST_WAIT: Duration = Duration::from_secs(3);
/// APFS frees the blocks of a large file bit by bit.
const LONGEST_WAIT: Duration = Duration::from_secs(15);
const INTERVAL: Duration = Duration::from_millis(100);

/// How full the disk of a path is, if it answers in time.
pub(crate) async fn measure(path: &Path) -> Option<Availability> {
    let path = path.to_owned();
    within(LOOK_LIMIT, move || volume(&path)).await?
}

/// How many bytes more are free than before, once the disk frees no more.
pub(crate) async fn freed(path: &Path, before: Option<Availability>) -> u64 {
    let Some(before) = before else { return 0 };
    let (begun, mut last) = (Instant::now(), None);
    loop {
        let freed = measure(path).await.map_or(0, |now| now.available.saturating_sub(before.available));
        if is_all(last, freed, begun.elapsed()) {
            return freed;
        }
        last = Some(freed);
        sleep(INTERVAL).await;
    }
}

/// Whether the disk frees no more: it has freed something, and no more than at the last measurement. If other programs write meanwhile, it
/// has less.
fn is_all(last: Option<u64>, freed: u64, waited: Duration) -> bool {
    let has_settled = freed > 0 && last.is_some_and(|last| freed <= last);
    let frees_nothing = freed == 0 && waited >= FIRST_WAIT;
    has_settled || frees_nothing || waited >= LONGEST_WAIT
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result of these measurements, one after each interval.
    fn found(measured: &[u64]) -> Option<u64> {
        let mut last = None;
        for (number, &freed) in (0..).zip(measured) {
            if is_all(last, freed, INTERVAL * number) {
                return Some(freed);
            }
            last = Some(freed);
        }
        None
    }

    #[test]
    fn the_agent_waits_until_the_disk_frees_no_more() {
        assert_eq!(found(&[60, 60]), Some(60));
        assert_eq!(found(&[0, 0, 1, 20, 60, 60, 90]), Some(60));
        assert_eq!(found(&[0, 5, 4]), Some(4), "other programs write meanwhile");
        assert_eq!(found(&[0, 5]), None, "there may be more");
        assert_eq!(found(&[0; 30]), None);
        assert_eq!(found(&[0; 31]), Some(0), "a disk that frees nothing is not waited for longer");
        let ever_more: Vec<u64> = (1..200).collect();
        assert_eq!(found(&ever_more), Some(151));
    }
}
