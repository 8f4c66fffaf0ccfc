//! End to end: real API server, scheduler and kubectl; the shipped agent; a simulated Mac.

mod bases;
mod broken_input;
mod commands;
mod conditions;
mod crash_points;
mod crashes;
mod deletion;
mod fit;
mod gates;
mod heartbeat;
mod identity;
mod images;
mod life;
mod metrics;
mod node;
mod ports;
mod registration;
mod rivals;
mod scene;
