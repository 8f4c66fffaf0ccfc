//! Points between two effects at which a test can have the process die, as if by `kill -9`.
//!
//! A crash test sets `TART_KUBELET_CRASH` to the name of a point, or to the path of a file with many, one a line: the process that
//! comes to the first of them strikes it off and dies, and the next one goes on from there. At one with `halts` after its name, it
//! does not die but stops until somebody kills it. Release builds have none of this.

/// Dies or halts here when the test says so.
#[cfg(debug_assertions)]
pub(crate) fn point(name: &str) {
    if armed::strikes(name) {
        tracing::error!(name, "crash point");
        let _ = nix::sys::signal::kill(nix::unistd::getpid(), nix::sys::signal::Signal::SIGKILL);
        // The signal is on its way; nothing may happen before it arrives.
        loop {
            std::thread::park();
        }
    }
    if armed::strikes(&format!("{name} halts")) {
        tracing::error!(name, "halts at a crash point");
        let _ = nix::sys::signal::kill(nix::unistd::getpid(), nix::sys::signal::Signal::SIGSTOP);
    }
}

/// Does nothing.
#[cfg(not(debug_assertions))]
pub(crate) fn point(_: &str) {}

#[cfg(debug_assertions)]
mod armed {
    use std::fs;
    use std::path::Path;

    /// Whether the process is to die at a point.
    pub(super) fn strikes(name: &str) -> bool {
        let Some(armed) = std::env::var_os("TART_KUBELET_CRASH") else { return false };
        let list = Path::new(&armed);
        if list.is_absolute() { strike_off(list, name) } else { armed == *name }
    }

    /// Takes a point off a list, if it is the first one there.
    fn strike_off(list: &Path, name: &str) -> bool {
        let points = fs::read_to_string(list).unwrap_or_default();
        let Some((first, rest)) = points.split_once('\n') else { return false };
        let struck = list.with_extension("struck");
        // The test reads it at any moment.
        first == name && fs::write(&struck, rest).and_then(|()| fs::rename(&struck, list)).is_ok()
    }
}
