//! Commands about running VMs, and the guests in them, through the binary.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod exec;
#[cfg(target_os = "linux")]
mod guest;
mod ip;
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "some of its users are for Linux only"))]
mod mac;
#[cfg(target_os = "linux")]
mod network;
mod run;
#[cfg(target_os = "linux")]
mod users;
