//! Points between two effects at which a test can kill the process, as `kill -9` does.
//!
//! A crash test sets `TART_KUBELET_CRASH` to the name of a point, or to the path of a file with one name a line. The process that reaches
//! the first point of the file removes it from the file and dies; the next process continues with the rest. At a point with ` halts` after
//! its name, the process stops until a signal kills it. Release builds have no crash points.

/// Dies or halts if the test has set this point.
#[cfg(debug_assertions)]
pub(crate) fn point(name: &str) {
    if armed::is_reached(name) {
        tracing::error!(name, "crash point");
        let _ = nix::sys::signal::kill(nix::unistd::getpid(), nix::sys::signal::Signal::SIGKILL);
        // Nothing may happen before the signal arrives.
        loop {
            std::thread::park();
        }
    }
    if armed::is_reached(&format!("{name} halts")) {
        tracing::error!(name, "halts at a crash point");
        let _ = nix::sys::signal::kill(nix::unistd::getpid(), nix::sys::signal::Signal::SIGSTOP);
    }
}

#[cfg(not(debug_assertions))]
pub(crate) fn point(_: &str) {}

#[cfg(debug_assertions)]
mod armed {
    use std::fs;
    use std::path::Path;

    /// Whether this is the next point that the test has set.
    pub(super) fn is_reached(name: &str) -> bool {
        let Some(armed) = std::env::var_os("TART_KUBELET_CRASH") else { return false };
        let list = Path::new(&armed);
        if list.is_absolute() { remove_first(list, name) } else { armed == *name }
    }

    /// Removes a point from a list, if it is the first one there.
    fn remove_first(list: &Path, name: &str) -> bool {
        let points = fs::read_to_string(list).unwrap_or_default();
        let Some((first, rest)) = points.split_once('\n') else { return false };
        let shorter = list.with_extension("struck");
        // Renamed, because the test may read the list at any moment.
        first == name && fs::write(&shorter, rest).and_then(|()| fs::rename(&shorter, list)).is_ok()
    }
}
