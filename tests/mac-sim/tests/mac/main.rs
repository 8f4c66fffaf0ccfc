//! The simulated Mac over real SSH: exact words and exit codes.

mod codesign;
mod host;
mod launchd;
mod programs;
