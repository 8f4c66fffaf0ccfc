//! The simulated Mac over real SSH: exact words and exit codes.

mod codesign;
mod hardware;
mod host;
mod launchd;
mod programs;
