//! How many files, sockets included, a process may have open.

use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};
use tracing::warn;

/// As many as macOS lets a process ask for, whatever its hard limit says.
const MOST: rlim_t = 10_240;

/// Asks for as many as may be asked for: launchd begins with 256, and the host ports of one Pod alone can take more.
pub(crate) fn ask_for_many() {
    let asked = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(soft, hard)| match more(soft, hard) {
        Some(more) => setrlimit(Resource::RLIMIT_NOFILE, more, hard),
        None => Ok(()),
    });
    if let Err(error) = asked {
        warn!(%error, "cannot ask for more open files; many Pods or host ports may run out of them");
    }
}

/// The limit to ask for; `None` when it would be no more than there is.
fn more(soft: rlim_t, hard: rlim_t) -> Option<rlim_t> {
    Some(hard.min(MOST)).filter(|wanted| *wanted > soft)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_is_asked_for_and_never_less() {
        assert_eq!(more(256, rlim_t::MAX), Some(MOST));
        assert_eq!(more(256, 4096), Some(4096));
        assert_eq!(more(MOST, rlim_t::MAX), None);
        assert_eq!(more(1 << 20, 1 << 20), None);
        assert_eq!(more(256, 256), None);
    }
}
