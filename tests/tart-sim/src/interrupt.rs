//! SIGINT cancels a command at the next point where the command checks for it.

use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};

use crate::error::{Error, Result};

static INTERRUPTED: Mutex<bool> = Mutex::new(false);
static CHANGED: Condvar = Condvar::new();

/// From now on SIGINT does not end the process, but is noticed by [`check`] and [`sleep`].
pub(crate) fn listen() {
    let signals = SigSet::from_iter([Signal::SIGINT]);
    // Blocked in this thread before the other one starts, so that only the other one gets the signal.
    if signals.thread_block().is_ok() {
        thread::spawn(move || {
            if signals.wait().is_ok() {
                *INTERRUPTED.lock().unwrap_or_else(PoisonError::into_inner) = true;
                CHANGED.notify_all();
            }
        });
    }
}

/// Fails if SIGINT has arrived.
pub(crate) fn check() -> Result<()> {
    sleep(Duration::ZERO)
}

/// Waits, and fails as soon as SIGINT arrives.
pub(crate) fn sleep(duration: Duration) -> Result<()> {
    let deadline = Instant::now() + duration;
    let mut interrupted = INTERRUPTED.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if *interrupted {
            return Err(Error::cancelled());
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        interrupted = CHANGED.wait_timeout(interrupted, left).unwrap_or_else(PoisonError::into_inner).0;
    }
}
