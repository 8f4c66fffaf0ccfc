//! End to end: real API server, scheduler and kubectl; the shipped agent; a simulated Mac.

mod broken_input;
mod commands;
mod conditions;
mod crash_points;
mod crashes;
mod deletion;
mod heartbeat;
mod identity;
mod images;
mod life;
mod metrics;
mod node;
mod objects;
mod registration;
mod rivals;
mod scene;
mod volumes;
