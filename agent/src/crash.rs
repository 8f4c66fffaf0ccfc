//! Points between two effects at which a test can have the process die, as if by `kill -9`.
//!
//! The crash test sets `TART_KUBELET_CRASH` to the name of a point. Release builds have none of this.

/// Dies here when the test says so.
#[cfg(debug_assertions)]
pub fn point(name: &str) {
    if std::env::var_os("TART_KUBELET_CRASH").is_some_and(|armed| armed == *name) {
        tracing::error!(name, "crash point");
        let _ = nix::sys::signal::kill(nix::unistd::getpid(), nix::sys::signal::Signal::SIGKILL);
        // The signal is on its way; nothing may happen before it arrives.
        loop {
            std::thread::park();
        }
    }
}

/// Does nothing.
#[cfg(not(debug_assertions))]
pub fn point(_: &str) {}
