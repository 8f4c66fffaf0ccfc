//! Which release of tart this process pretends to be.

use std::sync::OnceLock;

use crate::faults;

/// The release simulated unless the fault file `version` names another.
const DEFAULT: &str = "2.35.0";

/// A release: major, minor, patch.
pub(crate) type Release = (u32, u32, u32);

/// What `tart --version` prints.
pub(crate) fn name() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        faults::parameter("version").filter(|v| !v.is_empty()).unwrap_or_else(|| DEFAULT.into())
    })
}

/// Whether the simulated release is this one or a later one; `SNAPSHOT` is later than all.
pub(crate) fn at_least(release: Release) -> bool {
    parse(name()).is_none_or(|simulated| simulated >= release)
}

/// Whether the simulated tart is a development build, newer than any release.
pub(crate) fn is_snapshot() -> bool {
    parse(name()).is_none()
}

fn parse(name: &str) -> Option<Release> {
    let mut parts = name.split('.').map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??, parts.next().unwrap_or(Some(0))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_read_and_a_snapshot_is_none() {
        assert_eq!(parse("2.35.0"), Some((2, 35, 0)));
        assert_eq!(parse("2.30"), Some((2, 30, 0)));
        assert_eq!(parse("SNAPSHOT"), None);
    }
}
