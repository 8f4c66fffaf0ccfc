//! How much room a deletion has made: what the volume says before and after.

use std::path::Path;
use std::time::{Duration, Instant};

use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use crate::node::host::volume;
use crate::node::thresholds::Figure;

/// A volume that does not answer must not hold up those who wait for room.
pub(super) const LOOK_LIMIT: Duration = Duration::from_secs(30);
/// APFS gives blocks back a moment after their file is gone.
const PATIENCE: Duration = Duration::from_secs(3);
const INTERVAL: Duration = Duration::from_millis(100);

/// How full the volume of a path is, if it says so in time.
pub(super) async fn measure(path: &Path) -> Option<Figure> {
    let path = path.to_owned();
    let look = spawn_blocking(move || volume(&path));
    timeout(LOOK_LIMIT, look).await.ok()?.ok()?
}

/// How much more is free than before, once it shows.
pub(super) async fn freed(path: &Path, before: Option<Figure>) -> u64 {
    let Some(before) = before else { return 0 };
    let give_up = Instant::now() + PATIENCE;
    loop {
        let now = measure(path).await;
        let freed = now.map_or(0, |now| now.available.saturating_sub(before.available));
        if freed > 0 || Instant::now() >= give_up {
            return freed;
        }
        sleep(INTERVAL).await;
    }
}
