//! The simulated Mac over real SSH: exact words and exit codes.

mod host;
mod launchd;
