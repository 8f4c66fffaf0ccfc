//! The release of tart that this process simulates.

use std::sync::OnceLock;

use tart_sim::fault::{self, Fault};

use crate::host::faults;

/// The simulated release, unless the knob `version` names another.
const DEFAULT: &str = "2.35.0";

/// A release: major, minor, patch.
pub(crate) type Release = (u32, u32, u32);

/// What `tart --version` prints.
pub(crate) fn name() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| faults::parameter(Fault::Version).unwrap_or_else(|| DEFAULT.into()))
}

/// Whether the simulated release is this one or a later one; `SNAPSHOT` is later than all.
pub(crate) fn at_least((major, minor, patch): Release) -> bool {
    fault::release(name()) >= Some(fault::Release::Numbered(major, minor, patch))
}

/// Whether the simulated tart is a development build, newer than any release.
pub(crate) fn is_snapshot() -> bool {
    fault::release(name()) == Some(fault::Release::Snapshot)
}
