//! The agent as a process: how it starts, what it tells of itself, and how it does without the API server.

// The clock is moved by a library that only Linux can put in front of a program.
#[cfg(target_os = "linux")]
mod adoption;
mod clock;
mod launchd;
mod metrics;
// Only there can it be told what another process has open.
#[cfg(target_os = "linux")]
mod open_files;
mod outage;
pub(crate) mod startup;
