//! The limit of open files and sockets of this process.

use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};
use tracing::warn;

/// The largest limit that macOS accepts, whatever the hard limit is.
const MOST: rlim_t = 10_240;

/// Raises the limit. launchd sets 256, and the host ports of one Pod can take more.
pub(crate) fn raise_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(soft, hard)| match higher(soft, hard) {
        Some(higher) => setrlimit(Resource::RLIMIT_NOFILE, higher, hard),
        None => Ok(()),
    });
    if let Err(error) = raised {
        warn!(%error, "cannot raise the limit of open files; many Pods or host ports may run out of them");
    }
}

/// The highest possible limit; `None` when it is not higher than the current one.
fn higher(soft: rlim_t, hard: rlim_t) -> Option<rlim_t> {
    Some(hard.min(MOST)).filter(|wanted| *wanted > soft)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_raised_and_never_lowered() {
        assert_eq!(higher(256, rlim_t::MAX), Some(MOST));
        assert_eq!(higher(256, 4096), Some(4096));
        assert_eq!(higher(MOST, rlim_t::MAX), None);
        assert_eq!(higher(1 << 20, 1 << 20), None);
        assert_eq!(higher(256, 256), None);
    }
}
