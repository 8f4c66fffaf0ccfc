//! End to end: real API server, scheduler and kubectl; the shipped agent; a simulated Mac.

mod bases;
mod broken_input;
mod changes;
mod commands;
mod conditions;
mod crash;
mod crashes;
mod deletion;
mod describe;
mod drain;
mod environment;
mod fit;
mod gates;
mod guests;
mod heartbeat;
mod hooks;
mod hostile;
mod hostile_shares;
mod identity;
mod image_gc;
mod images;
mod init;
mod life;
mod metrics;
mod no_space;
mod node;
mod objects;
// Only there can it be told what another process has open.
#[cfg(target_os = "linux")]
mod open_files;
mod orphans;
mod outage;
mod partials;
mod ports;
mod probes;
mod reboot;
mod registration;
mod restarts;
mod rivals;
mod scene;
mod tokens;
mod upkeep;
mod users;
mod volumes;
mod workloads;
