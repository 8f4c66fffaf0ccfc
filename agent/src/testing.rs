//! Helpers of unit tests.

use serde::de::DeserializeOwned;
use serde_json::Value;
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

/// A JSON object with the fields of another one, which come first.
pub(crate) fn merged(object: &Value, fields: &Value) -> Value {
    let mut all = object.as_object().unwrap().clone();
    all.extend(fields.as_object().unwrap().clone());
    all.into()
}

/// An API object from its JSON.
pub(crate) fn from_json<T: DeserializeOwned>(json: Value) -> T {
    serde_json::from_value(json).unwrap()
}
