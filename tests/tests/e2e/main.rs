//! End to end: real API server, scheduler and kubectl; the shipped agent; a simulated Mac.

mod broken_input;
mod commands;
mod conditions;
mod crash_points;
mod crashes;
mod deletion;
mod describe;
mod drain;
mod fit;
mod gates;
mod heartbeat;
mod hostile;
mod identity;
mod images;
mod life;
mod metrics;
mod node;
mod objects;
mod outage;
mod probes;
mod reboot;
mod registration;
mod rivals;
mod scene;
mod workloads;
