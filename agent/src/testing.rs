//! Helpers of unit tests.

/// A temporary directory in the sandbox of the test run.
pub(crate) fn dir() -> tempfile::TempDir {
    tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap()
}
