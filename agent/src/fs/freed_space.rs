//! How much room a deletion has made: what the volume says before and after.

use std::path::Path;
use std::time::{Duration, Instant};

use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use crate::os::availability::Availability;
use crate::os::availability::volume;

/// A volume that does not answer must not hold up those who wait for room.
pub(crate) const LOOK_LIMIT: Duration = Duration::from_secs(30);
/// APFS gives blocks back a moment after their file is gone,
const PATIENCE: Duration = Duration::from_secs(3);
/// and those of a large file bit by bit.
const LONGEST: Duration = Duration::from_secs(15);
const INTERVAL: Duration = Duration::from_millis(100);

/// How full the volume of a path is, if it says so in time.
pub(crate) async fn measure(path: &Path) -> Option<Availability> {
    let path = path.to_owned();
    let look = spawn_blocking(move || volume(&path));
    timeout(LOOK_LIMIT, look).await.ok()?.ok()?
}

/// How much more is free than before, once the volume has given back all of it.
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

/// Whether a volume gives back no more than this: it has given back something, and no more than at the look before. One that others
/// fill meanwhile gives back less.
fn is_all(last: Option<u64>, freed: u64, waited: Duration) -> bool {
    let has_settled = freed > 0 && last.is_some_and(|last| freed <= last);
    let gives_nothing = freed == 0 && waited >= PATIENCE;
    has_settled || gives_nothing || waited >= LONGEST
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is found of these looks, one after each interval.
    fn found(looks: &[u64]) -> Option<u64> {
        let mut last = None;
        for (number, &freed) in (0..).zip(looks) {
            if is_all(last, freed, INTERVAL * number) {
                return Some(freed);
            }
            last = Some(freed);
        }
        None
    }

    #[test]
    fn a_volume_is_waited_for_until_it_gives_back_no_more() {
        assert_eq!(found(&[60, 60]), Some(60));
        assert_eq!(found(&[0, 0, 1, 20, 60, 60, 90]), Some(60));
        assert_eq!(found(&[0, 5, 4]), Some(4), "others write meanwhile");
        assert_eq!(found(&[0, 5]), None, "there may be more");
        assert_eq!(found(&[0; 30]), None);
        assert_eq!(found(&[0; 31]), Some(0), "it is never waited for in vain for long");
        let ever_more: Vec<u64> = (1..200).collect();
        assert_eq!(found(&ever_more), Some(151));
    }
}
