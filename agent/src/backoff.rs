//! How long to wait before another try.

use std::time::Duration;

const FIRST_DELAY: Duration = Duration::from_secs(10);
const LONGEST_DELAY: Duration = Duration::from_mins(5);

/// How long to wait after this many failures in a row before: as for the kubelet, not at all the first time.
pub(crate) fn restart_delay(crashes: u32) -> Duration {
    let Some(doublings) = crashes.checked_sub(1) else { return Duration::ZERO };
    FIRST_DELAY.saturating_mul(2u32.saturating_pow(doublings)).min(LONGEST_DELAY)
}
