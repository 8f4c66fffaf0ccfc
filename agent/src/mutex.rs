//! Locking a mutex.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A value that another thread held when it panicked is still valid.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
