//! Helpers of unit tests.

use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Whether programs may be started. A child holds the locks of this process from its fork to its exec.
static PROGRAMS: RwLock<()> = RwLock::const_new(());

/// A temporary directory in the sandbox of the test run.
pub(crate) fn dir() -> tempfile::TempDir {
    tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap()
}

/// For tests that start programs over and over.
pub(crate) async fn programs() -> RwLockReadGuard<'static, ()> {
    PROGRAMS.read().await
}

/// For tests that expect a lock to be free as soon as they have dropped it.
pub(crate) fn no_programs() -> RwLockWriteGuard<'static, ()> {
    PROGRAMS.blocking_write()
}
